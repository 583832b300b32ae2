"""Gives an attempt its loop, and takes the loop away again without unwinding agent code.

Agent code that is not over when its attempt ends (parked, fenced, diverged, stopped) must never be resumed nor closed: closing
a coroutine runs its `finally` blocks as if the agent were over. A process of its own leaves by os._exit; within a larger process
what is left is kept, out of reach of the garbage collector.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from everstep.run.loop import AgentLoop

T = TypeVar("T")
_LEFT: list[object] = []
"""What ended attempts left behind in this process."""
TIDY_S = 2.0


def host(loop: AgentLoop, main: Coroutine[Any, Any, T], tidy: Callable[[], Awaitable[None]] | None = None) -> T:
    """Run `main` in the loop to its end, then close the loop. `tidy` (closing the store) runs in it, too, unless main was cut
    off."""
    task = loop.engine_task(main, "attempt")
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
        _dismantle(loop, None if cut_off else tidy)


def _dismantle(loop: AgentLoop, tidy: Callable[[], Awaitable[None]] | None) -> None:
    left: list[asyncio.Task[Any]] = list(loop.agent_tasks)  # tasks of any result
    loop.wake = lambda: None
    loop.agent_ready.clear()
    try:
        if tidy is not None:
            loop.run_until_complete(loop.engine_task(_tidy(loop, tidy), "tidy"))
    finally:
        left += loop.outside_tasks
        for task in left:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is left on purpose
        if left:
            _LEFT.append((loop, left))
        with contextlib.suppress(RuntimeError):
            loop.close()


async def _tidy(loop: AgentLoop, tidy: Callable[[], Awaitable[None]]) -> None:
    """Step bodies and the engine's own tasks may end as usual; they are cancelled and waited for."""
    me = asyncio.current_task()
    others = [task for task in loop.outside_tasks if task is not me]
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=TIDY_S)
    with contextlib.suppress(Exception):  # the attempt is over; a store that cannot be closed changes nothing
        await tidy()
