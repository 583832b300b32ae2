"""Where agent code stands: its own frames among those of Everstep and asyncio."""

import asyncio
import linecache
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CoroutineType, FrameType

import everstep
from everstep.run.engine import Engine

_OURS = str(Path(everstep.__file__).parent) + "/"
_ASYNCIO = str(Path(asyncio.__file__).parent) + "/"


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
    thread = engine.lane.thread if engine.sync_agent else None
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
    stacks = [list(_chain(task.get_coro()))[::-1] for task in sorted(engine.lane.tasks, key=hash)]
    thread = engine.lane.thread if engine.sync_agent else None
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
