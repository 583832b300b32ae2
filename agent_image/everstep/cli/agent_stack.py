"""Where agent code stands: its own frames among those of Everstep and asyncio, and pdb at one of them."""

import asyncio
import contextvars
import linecache
import pdb  # a command of `everstep local replay`
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CoroutineType, FrameType

import everstep
from everstep.run.engine import Engine
from everstep.run.scope import SCOPE

_OURS = str(Path(everstep.__file__).parent) + "/"
_ASYNCIO = str(Path(asyncio.__file__).parent) + "/"
_SKIPPED = [
    "everstep.*",
    "asyncio.*",
    "contextvars",
    "contextlib",
    "pydantic.*",
    "pydantic_core.*",
    "json.*",
    "selectors",
]


@dataclass(frozen=True)
class Place:
    """One line of agent code."""

    file: str
    line: int
    function: str
    source: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}: {self.source}"

    @classmethod
    def of(cls, frame: FrameType) -> "Place":
        file, line = frame.f_code.co_filename, frame.f_lineno
        return cls(file, line, frame.f_code.co_name, linecache.getline(file, line).strip())


def is_agents(frame: FrameType) -> bool:
    """Neither Everstep's nor asyncio's."""
    file = frame.f_code.co_filename
    return not file.startswith((_OURS, _ASYNCIO, "<"))


def calling(engine: Engine) -> list[FrameType]:
    """Frames of agent code that led to the call being made now, the innermost first. For use in `on_call`."""
    frame: FrameType | None = sys._getframe(1)
    thread = engine.loop.agent_thread if engine.sync_agent else None
    if thread is not None:
        frame = sys._current_frames().get(thread)
    found = []
    while frame is not None:
        if is_agents(frame):
            found.append(frame)
        elif found and not frame.f_code.co_filename.startswith(_OURS):
            break  # asyncio, which runs the task: beyond it is whoever runs the loop
        frame = frame.f_back
    return found


def waiting(engine: Engine) -> list[list[FrameType]]:
    """Frames of each task of the agent that waits, the innermost first."""
    stacks = [list(_chain(task.get_coro()))[::-1] for task in sorted(engine.loop.agent_tasks, key=hash)]
    thread = engine.loop.agent_thread if engine.sync_agent else None
    frame = sys._current_frames().get(thread) if thread is not None else None
    blocked = []
    while frame is not None:
        if is_agents(frame) and "/threading.py" not in frame.f_code.co_filename:
            blocked.append(frame)
        frame = frame.f_back
    return [stack for stack in (*stacks, blocked) if stack]


def _chain(coro: object) -> Iterator[FrameType]:
    """A suspended coroutine and those it awaits, as far as they are agent code's."""
    while isinstance(coro, CoroutineType):
        if coro.cr_frame is not None and is_agents(coro.cr_frame):
            yield coro.cr_frame
        coro = coro.cr_await


class Debugger(pdb.Pdb):
    """pdb in agent code: stepping goes over Everstep and asyncio."""

    def __init__(self) -> None:
        super().__init__(skip=_SKIPPED, nosigint=True)
        self.prompt = "(everstep) "

    def open_at(self, frame: FrameType) -> bool:
        """Stop there. With next or step it stops again further on, if `frame` is on this thread's stack. False: quit."""
        self.reset()
        context = contextvars.copy_context()
        context.run(SCOPE.set, None)  # what a person looks at is not agent code's doing
        context.run(self.interaction, frame, None)
        if self.quitting:
            return False
        if getattr(self, "stoplineno", -1) != -1 or getattr(self, "breaks", None):
            below: FrameType | None = frame
            while below is not None and is_agents(below):
                below.f_trace = self.trace_dispatch
                below = below.f_back
            sys.settrace(self.trace_dispatch)
        return True
