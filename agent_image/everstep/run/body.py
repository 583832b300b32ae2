"""Running one step body (or probe) outside agent scope, and saying how it ended.

An async body is a task; a sync body runs in a thread of its own, or on the sync agent's own thread. Threads cannot be
cancelled: one that is left behind is told of as `ended=False`, which matters for at_most_once steps.
"""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from everstep.run import debugging, tracebacks
from everstep.run.lane import Lane, is_interrupt

if TYPE_CHECKING:
    from everstep.run.heartbeat import Heart


@dataclass(frozen=True)
class BodyEnd:
    """How a body ended: with a value, an error, or neither (cancelled). `ended` False: it may still be running."""

    value: object = None
    error: BaseException | None = None
    cancelled: bool = False
    timed_out: bool = False
    silent: bool = False
    """With `timed_out`: for want of a heartbeat."""
    ended: bool = True


class BodyRun:
    """One body in flight; `await run.end` gives its BodyEnd, whatever it does."""

    def __init__(self, lane: Lane, cancel_wait_s: float, timeout_s: float | None, heart: "Heart | None" = None) -> None:
        self._lane = lane
        self._cancel_wait_s = cancel_wait_s
        self._timeout_s = timeout_s
        self._heart = heart
        self._task: asyncio.Task[BodyEnd] | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._timed_out = False
        self._silent = False
        self.patient = False
        """Set for the sync agent's own thread: the agent cannot go on before the body returns, so it is always waited for."""
        self.end: asyncio.Future[BodyEnd] = asyncio.Future(loop=lane.loop)

    def start_task(
        self, body: Callable[[], Coroutine[Any, Any, object]], context: contextvars.Context, name: str
    ) -> None:
        """Run an async body."""
        self._arm()
        self._task = self._lane.task_now(_told(body), name, context)
        if self._task.done():
            self._task_done(self._task)
        else:
            self._task.add_done_callback(self._task_done)

    def start_thread(self, body: Callable[[], object], context: contextvars.Context, name: str) -> None:
        """Run a sync body in a thread of its own. A daemon, so that one that hangs does not keep the process."""
        threading.Thread(target=self.acting(body, context), name=f"everstep {name}", daemon=True).start()
        self._arm()

    def acting(self, body: Callable[[], object], context: contextvars.Context) -> Callable[[], None]:
        """What a thread has to call: `in_thread`, which counts as acting from now on until it is over."""
        acted = self._lane.acts()

        def main() -> None:
            try:
                self.in_thread(body, context)
            finally:
                acted()

        return main

    def in_thread(self, body: Callable[[], object], context: contextvars.Context) -> None:
        """Run a sync body here, in a thread that is not the loop's, and tell its end to the loop."""
        try:
            end = BodyEnd(value=context.run(body))
        except asyncio.CancelledError:  # what a heartbeat raises in a body that nobody waits for
            end = BodyEnd(cancelled=True)
        except BaseException as e:
            end = BodyEnd(error=e)
        with contextlib.suppress(RuntimeError):  # the loop is closed: the attempt ended meanwhile
            self._lane.loop.call_soon_threadsafe(self._finish, end, context=contextvars.Context())

    def cancel(self) -> None:
        """The agent does not wait any more: cancel the body and give it a bounded time to end."""
        if self._heart is not None:
            self._heart.given_up = True
        if self.end.done() or self.patient:
            return
        if self._task is not None:
            self._task.cancel()
        self._timers.append(self._lane.at(self._cancel_wait_s, self._leave_behind))

    def _arm(self) -> None:
        """Start the time-outs of this body; the only place that does."""
        listens = self._heart is not None and self._heart.timeout_s is not None
        if (self._timeout_s is None and not listens) or debugging.suspended():
            return
        if self._timeout_s is not None:
            self._timers.append(self._lane.at(self._timeout_s, self._time_out))
        if self._heart is not None and self._heart.timeout_s is not None:
            self._listen(self._heart)

    def _listen(self, heart: "Heart") -> None:
        """Until the heart has been silent for too long."""
        left_s = heart.left_s()
        if self.end.done() or self._timed_out:
            return
        if left_s > 0:
            self._timers = [timer for timer in self._timers if timer.when() > self._lane.loop.time()]
            self._timers.append(self._lane.at(left_s, lambda: self._listen(heart)))
        else:
            self._silent = True
            self._time_out()

    def _time_out(self) -> None:
        if debugging.suspended():
            return
        self._timed_out = True
        if self._heart is not None:
            self._heart.given_up = True
        if self._task is None:
            self._leave_behind()
        else:
            self.cancel()

    def _leave_behind(self) -> None:
        self._finish(BodyEnd(cancelled=True, ended=False))

    def _task_done(self, task: asyncio.Task[BodyEnd]) -> None:
        if task.cancelled():
            self._finish(BodyEnd(cancelled=True))
        elif (error := task.exception()) is not None:
            self._finish(BodyEnd(error=error))
        else:
            self._finish(task.result())

    def _finish(self, end: BodyEnd) -> None:
        for timer in self._timers:
            timer.cancel()
        if self.end.done():
            return
        if end.error is not None:
            tracebacks.keep(end.error)
        if self._timed_out and (end.cancelled or end.error is not None):
            end = replace(end, timed_out=True, silent=self._silent)
        self.end.set_result(end)


async def _told(body: Callable[[], Coroutine[Any, Any, object]]) -> BodyEnd:
    """The body's end as data: neither SystemExit nor a signal of another library may end the loop from here."""
    try:
        return BodyEnd(value=await body())
    except asyncio.CancelledError:
        return BodyEnd(cancelled=True)
    except BaseException as e:
        if is_interrupt(e):
            raise
        return BodyEnd(error=e)
