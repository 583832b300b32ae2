"""Finds agent code that reaches outside, at first use: sockets, subprocesses, threads, executors.

Python tells audit hooks of these events before they happen. The hook looks whether the caller is in agent scope; if so the call
raises OutsideStep with the place in the agent's source and what to write instead. An audit hook cannot be removed, so it is one
set look-up for every other event, and does nothing outside agent scope.
"""

import asyncio
import sys
import threading
import traceback
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from everstep.errors import OutsideStep
from everstep.run.lane import LANE
from everstep.run.scope import SCOPE

_EVENTS: dict[str, str] = {
    "socket.__new__": "a socket",
    "socket.connect": "a connection",
    "socket.bind": "a socket",
    "socket.sendto": "a socket",
    "socket.getaddrinfo": "a name look-up",
    "socket.gethostbyname": "a name look-up",
    "subprocess.Popen": "a subprocess",
    "os.system": "a subprocess",
    "os.exec": "a subprocess",
    "os.fork": "a fork",
    "os.forkpty": "a fork",
    "os.posix_spawn": "a subprocess",
    "os.spawn": "a subprocess",
    "_thread.start_new_thread": "a thread",
    "_thread.start_joinable_thread": "a thread",
}
_OWN = (
    "everstep/run/",
    "everstep/adapters/",
    "asyncio/",
    "socket.py",
    "subprocess.py",
    "threading.py",
    "concurrent/",
    "contextlib.py",
    "selectors.py",
)
_installed = False


def install() -> None:
    """Once per process."""
    global _installed  # noqa: PLW0603  # an audit hook is per process and cannot be removed
    if not _installed:
        _installed = True
        sys.addaudithook(_hook)
        if sys.version_info < (3, 12):  # tells of no event when a thread starts
            threading.Thread.start = _guarded_start  # type: ignore[method-assign]  # the plain method, with a look before it


def _hook(event: str, _args: tuple[Any, ...]) -> None:  # whatever the event carries
    if event not in _EVENTS:
        return
    if SCOPE.get() is not None and not _importing():
        refuse(f"{_EVENTS[event]} ({event})")


_plain_start = threading.Thread.start


def _guarded_start(self: threading.Thread) -> None:
    if SCOPE.get() is not None and not _importing():
        refuse("a thread (Thread.start)")
    _plain_start(self)


def refuse(what: str) -> NoReturn:
    """Raise OutsideStep for the line of agent code that is running."""
    file, line, source = _place()
    raise OutsideStep(
        f"{file}:{line}: {source!r} opens {what} in agent code, where it would happen again at each replay. "
        f'Put it into the body of a step: a function with @everstep.step(effect="read" | "idempotent" | "at_most_once"). '
        f"A client or session that steps use is opened with everstep.resource(…)"
    )


def _importing() -> bool:
    """A module imported by agent code may probe the system while it loads; that leaves no trace in the run."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _place() -> tuple[str, int, str]:
    """The innermost line of the author's own code; of the library that is nearest if there is none in this task."""
    stack = traceback.extract_stack(sys._getframe(2))
    found = _innermost(stack) or stack[-1]
    return found.filename, found.lineno or 0, found.line or "?"


def _innermost(stack: Sequence[traceback.FrameSummary]) -> traceback.FrameSummary | None:
    nearest = None
    for frame in reversed(stack):
        file = frame.filename.replace("\\", "/")
        if file.endswith(_TASK_BEGINS):
            break  # further out is whoever runs the loop
        if file.startswith("<") or any(own in file for own in _OWN):
            continue
        nearest = nearest or frame
        if not file.startswith(_libraries()) and not any(word in file for word in _INSTALLED):
            return frame
    return nearest


def place_of_call() -> str:
    """`file.py:12: `source`` of the agent code that is calling the engine, "" if it cannot be told. Slow: for messages.

    A task that runs one step and nothing else (gather(look(1), look(2))) has no line of its own: then where it was made."""
    found = _innermost(traceback.extract_stack(sys._getframe(1)))
    loop = asyncio._get_running_loop()
    if found is None and loop is not None:
        made_at = getattr(asyncio.current_task(loop), "made_at", None)
        found = traceback.FrameSummary(made_at[0], made_at[1], "") if made_at is not None else None
    if found is None:  # a sync agent's request, taken up by the loop's thread
        lane = LANE.get()
        agent = sys._current_frames().get(lane.thread or 0) if lane is not None else None
        found = _innermost(traceback.extract_stack(agent)) if agent is not None else None
    if found is None:
        return ""
    file = Path(found.filename)
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return f"{shown}:{found.lineno}" + (f": `{found.line[:LINE_SHOWN]}`" if found.line else "")


def maker() -> tuple[str, int] | None:
    """File and line of whoever is making a task, past asyncio's own frames. Cheap: it reads no source."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_MAKER_DEPTH):
        if frame is None:
            return None
        file = frame.f_code.co_filename
        if not file.startswith(_ASYNCIO):
            return file, frame.f_lineno
        frame = frame.f_back
    return None


LINE_SHOWN = 120
_MAKER_DEPTH = 8
_ASYNCIO = (str(Path(asyncio.__file__).parent), str(Path(__file__).parent))
_TASK_BEGINS = "asyncio/events.py"
_INSTALLED = ("/site-packages/", "/dist-packages/")


@cache
def _libraries() -> tuple[str, ...]:
    """An HTTP client opens the socket, but the line to change is the one that calls the client."""
    import sysconfig  # only for a message

    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple(sysconfig.get_path(name).replace("\\", "/").rstrip("/") + "/" for name in names)
