"""Gives an attempt its turn in a loop, and takes its lane away again without unwinding agent code.

Agent code that is not over when its attempt ends (parked, fenced, diverged, stopped) must never be resumed nor closed: closing
a coroutine runs its `finally` blocks as if the agent were over. A process of its own leaves by os._exit; within a larger process
what is left is kept, out of reach of the garbage collector, for as long as the process lasts: the agent's own frames, as the
engine lets go of the journal (`Engine.release`).
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from everstep.run.lane import Lane

T = TypeVar("T")
Tidy = Callable[[], Awaitable[None]]
_LEFT: list[object] = []
"""What ended attempts left behind in this process."""
TIDY_S = 2.0


def host(lane: Lane, main: Coroutine[Any, Any, T], tidy: Tidy | None = None) -> T:
    """Run `main` in the lane's loop to its end, then close the loop. `tidy` (closing the store) runs in it, too, unless main was
    cut off."""
    loop = lane.loop
    task = lane.task(main, "attempt")
    cut_off = True
    try:
        value = loop.run_until_complete(task)
        cut_off = False
        return value
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        cut_off = False
        raise
    finally:
        lane.stop()
        try:
            if not cut_off:
                others = [*lane.outside_tasks, *loop.outside_tasks]
                loop.run_until_complete(lane.task(_tidy(others, tidy), "tidy"))
        finally:
            _keep(lane, *loop.outside_tasks)
            with contextlib.suppress(RuntimeError):
                loop.close()


async def attend(lane: Lane, main: Coroutine[Any, Any, T], tidy: Tidy | None = None) -> T:
    """The same in a loop that is running and goes on."""
    try:
        return await lane.task(main, "attempt")
    finally:
        lane.stop()
        try:
            await asyncio.shield(lane.task(_tidy(list(lane.outside_tasks), tidy), "tidy"))
        finally:
            for task in lane.outside_tasks:  # bodies that ignore that they are cancelled; here they go on
                task.add_done_callback(_told(lane.acts()))
            _keep(lane)


def _told(ended: Callable[[], None]) -> Callable[[object], None]:
    return lambda _task: ended()


def _keep(lane: Lane, *others: asyncio.Task[Any]) -> None:  # of any result
    left: list[asyncio.Task[Any]] = [*lane.tasks, *lane.outside_tasks, *others]  # the same
    for task in left:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is left on purpose
    if left:
        _LEFT.append(left)


async def _tidy(others: list[asyncio.Task[Any]], tidy: Tidy | None) -> None:  # as above
    """Step bodies and the engine's own tasks may end as usual; they are cancelled and waited for."""
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=TIDY_S)
    if tidy is not None:
        with contextlib.suppress(Exception):  # the attempt is over; a store that cannot be closed changes nothing
            await tidy()
