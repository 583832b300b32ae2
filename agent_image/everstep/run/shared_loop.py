"""`await everstep.run_async(agent, goal=…)`: runs beside the caller's loop, as many at once as one likes.

All of a process share one thread and its loop, each run with a lane of its own. That is lighter than a thread for each: they do
not contend for the interpreter. As with asyncio in general, agent code or an async body that blocks holds up the others, and what
a body leaves running in the loop is cancelled when its run ends: a client that several runs share cannot live in one of them.
"""

import asyncio
import concurrent.futures
import concurrent.futures.thread  # registers its own end first, so that ours is called before it
import contextlib
import logging
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar, overload

from everstep.budget import Budget
from everstep.clock import SystemClock
from everstep.run.agents import Agent
from everstep.run.inprocess import InProcess, prepare
from everstep.run.lane import of_no_run
from everstep.run.loop import AgentLoop

R = TypeVar("R")
log = logging.getLogger("everstep.run")


END_WITHIN_S = 8.0
"""How long the end of the process waits for runs to stop: their grace of 5 s and what it takes to tidy up."""


class _Shared:
    """The thread and its loop. It lasts as long as the process, and dies with it: what runs is as durable as ever."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = AgentLoop(SystemClock())
        self.runs: dict[concurrent.futures.Future[Any], InProcess] = {}
        threading.Thread(target=self._run, name="everstep runs", daemon=True).start()
        with contextlib.suppress(RuntimeError):  # the process is ending already
            # Before executors close: a body that needs one would fail, and that be recorded. As concurrent.futures does it.
            threading._register_atexit(self._end)  # type: ignore[attr-defined]  # private, and in every Python

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while True:
            try:
                self.loop.run_forever()
            except BaseException:  # what asyncio lets through from a task; the task holds it, and others go on
                log.exception("something in a run tried to end the loop that all runs of this process share")

    def _end(self) -> None:
        """The process ends: stop what runs, in good order."""
        if self.pid == os.getpid() and self.runs:
            left = list(self.runs)
            for run in list(self.runs.values()):
                run.stop()
            concurrent.futures.wait(left, END_WITHIN_S)

    def start(self, run: InProcess) -> concurrent.futures.Future[Any]:  # of the agent's result
        """Begin it, outside whatever run the caller may be a part of."""
        started = of_no_run().run(asyncio.run_coroutine_threadsafe, run.run_among(self.loop), self.loop)
        self.runs[started] = run
        started.add_done_callback(self.runs.pop)
        return started


_lock = threading.Lock()
_made: _Shared | None = None


def _shared() -> _Shared:
    """Begun at the first run; anew in a forked child, which has no threads."""
    global _made  # noqa: PLW0603  # one per process is the point
    with _lock:
        if _made is None or _made.pid != os.getpid():
            _made = _Shared()
        return _made


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
    run = prepare("run_async", agent, goal, run_id, directory, budget, encrypt, inputs)
    running = asyncio.wrap_future(_shared().start(run))
    running.add_done_callback(_looked_at)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        run.stop()
        await asyncio.wait([running])
        raise


def _looked_at(running: "asyncio.Future[Any]") -> None:  # as above
    """Else asyncio complains of an exception that a caller who was cancelled did not wait for."""
    if not running.cancelled():
        running.exception()
