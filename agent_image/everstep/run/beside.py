"""`await everstep.run_async(agent, goal=…)`: runs beside the caller's loop, as many at once as one likes.

All of a process share one thread and its loop, each run with a lane of its own. That is lighter than a thread for each: they do
not contend for the interpreter. As with asyncio in general, agent code or an async body that blocks holds up the others.
"""

import asyncio
import concurrent.futures
import logging
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar, overload

from everstep.budget import Budget
from everstep.clock import SystemClock
from everstep.run.agents import Agent
from everstep.run.inprocess import prepare
from everstep.run.loop import AgentLoop

R = TypeVar("R")
log = logging.getLogger("everstep.run")


class _Thread:
    """The thread and its loop. It lasts as long as the process, and dies with it: what runs is as durable as ever."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = AgentLoop(SystemClock())
        threading.Thread(target=self._run, name="everstep runs", daemon=True).start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while True:
            try:
                self.loop.run_forever()
            except BaseException:  # a body's KeyboardInterrupt or SystemExit; its task holds it, and others go on
                log.exception("something in a run tried to end the loop that all runs of this process share")


_lock = threading.Lock()
_thread: _Thread | None = None


def _shared_loop() -> AgentLoop:
    """Begun at the first run; anew in a forked child, which has no threads."""
    global _thread  # noqa: PLW0603  # one per process is the point
    with _lock:
        if _thread is None or _thread.pid != os.getpid():
            _thread = _Thread()
        return _thread.loop


@overload
async def run_async(
    agent: Agent[..., Coroutine[Any, Any, R]],  # of any signature
    goal: str = "",
    *,
    run_id: str | None = None,
    directory: str | None = None,
    budget: Budget | None = None,
    encrypt: bool = False,
    **inputs: object,
) -> R:
    """An async agent."""


@overload
async def run_async(
    agent: Agent[..., R],
    goal: str = "",
    *,
    run_id: str | None = None,
    directory: str | None = None,
    budget: Budget | None = None,
    encrypt: bool = False,
    **inputs: object,
) -> R:
    """A sync agent: on a thread of its own."""


async def run_async(
    agent: Agent[..., Any],  # of any signature
    goal: str = "",
    *,
    run_id: str | None = None,
    directory: str | None = None,
    budget: Budget | None = None,
    encrypt: bool = False,
    **inputs: object,
) -> Any:  # the agent's result
    """Run an agent to its end and return its result, from code that has an event loop: a web service, a notebook, a test.

    Arguments, result and errors are those of `everstep.run`. Several may run at once:

        await asyncio.gather(*(everstep.run_async(triage, goal=g, run_id=f"triage-{n}") for n, g in enumerate(goals)))

    If the caller is cancelled, the run stops in good order (no further step begins, those in flight may end within 5 s) before
    CancelledError goes on; the same run_id resumes it."""
    there = prepare("run_async", agent, goal, run_id, directory, budget, encrypt, inputs)
    loop = _shared_loop()
    started: concurrent.futures.Future[Any] = asyncio.run_coroutine_threadsafe(there.run_among(loop), loop)
    running = asyncio.wrap_future(started)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        there.stop()
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # it has been looked at
        raise
