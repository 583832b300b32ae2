"""The bodies of steps and probes in flight: their turns, their threads, and what they may know of themselves.

A body runs outside agent scope, on a copy of its arguments. No body begins after SIGTERM.
"""

import asyncio
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast

from everstep.ids import JournalId, StepKey
from everstep.journal.records import canonical
from everstep.run.body import BodyRun
from everstep.run.calls import StepCall
from everstep.run.heartbeat import Details, Heart
from everstep.run.scope import BODY, BodyContext, outside

if TYPE_CHECKING:
    from everstep.run.engine import Engine


class Bodies:
    """Of one attempt."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self.running = 0
        self.in_threads = 0
        self.started: Counter[StepKey] = Counter()
        """Bodies this process began, by step key; only for tests, since it grows with the run."""
        self._threads = asyncio.Semaphore(engine.config.max_threads)
        self._never: asyncio.Future[None] = asyncio.Future(loop=engine.loop)

    async def may_begin(self) -> None:
        """Holds back every body after SIGTERM; the process ends meanwhile."""
        if self._engine.terminating:
            await asyncio.shield(self._never)

    def _inline(self, call: StepCall, probe: bool) -> bool:
        """Whether it runs on the sync agent's own thread."""
        apart = probe or call.own_thread or call.step.is_async or call.step.bounded
        return self._engine.thread is not None and not apart

    async def turn(self, call: StepCall, *, probe: bool = False) -> Callable[[], None]:
        """Wait until a body may begin: for a thread if it needs one, and for ever after SIGTERM. Gives what ends the turn."""
        if (call.step.probe_is_async if probe else call.step.is_async) or self._inline(call, probe):
            await self.may_begin()
            return _nothing
        await self._threads.acquire()
        await self.may_begin()
        return self._threads.release

    def start(
        self,
        call: StepCall,
        tries: int,
        end_turn: Callable[[], None],
        details: Details,
        *,
        left_s: float | None = None,
        probe: bool = False,
    ) -> tuple[BodyRun, BodyContext]:
        """Start a step's body or its probe, outside agent scope, on a copy of its arguments. `left_s`: what total_timeout leaves
        to this try."""
        step = call.step
        function = step.probe if probe else step.fn
        assert function is not None
        is_async = step.probe_is_async if probe else step.is_async
        inline = self._inline(call, probe)
        args, kwargs = step.signature.decode(call.args)
        body = BodyContext(step.name, call.key, key_of(call, self._engine.epochs.idem), tries)
        body.say = None if probe else self._engine.live.say
        context = outside(call.context)
        context.run(BODY.set, body)
        timeout_s = (step.timeout_s or self._engine.config.probe_timeout_s) if probe else step.timeout_s
        if left_s is not None and not probe:
            timeout_s = min(left_s, math.inf if timeout_s is None else timeout_s)
        body.details = details.newest
        if not probe:
            body.heart = Heart(self._engine, details, step.heartbeat_timeout_s)
        run = BodyRun(self._engine.lane, self._engine.config.body_cancel_s, timeout_s, body.heart)
        if end_turn is not _nothing:
            run.end.add_done_callback(lambda _end: end_turn())
        self.running += 1
        if not probe and self._engine.config.count_bodies:
            self.started[call.key] += 1
        if is_async:
            run.start_task(
                lambda: cast(Coroutine[Any, Any, object], function(*args, **kwargs)), context, f"body of {step.name}"
            )
        elif inline and self._engine.thread is not None:
            run.patient = True
            self.in_threads += 1
            run.end.add_done_callback(self._thread_free)
            self._engine.thread.run_body(run, lambda: function(*args, **kwargs), context)
        else:
            self.in_threads += 1
            run.end.add_done_callback(self._thread_free)
            run.start_thread(lambda: function(*args, **kwargs), context, step.name)
        return run, body

    def _thread_free(self, _end: object) -> None:
        self.in_threads -= 1

    @property
    def threads_busy(self) -> bool:
        """A thread is at work; it takes real time even where time is virtual."""
        return self.in_threads > 0 or (self._engine.thread is not None and self._engine.thread.busy)

    def ended(self) -> None:
        self.running -= 1
        if self._engine.terminating:
            self._engine.poke()


def _nothing() -> None:
    return None


def key_of(call: StepCall, made: Callable[[StepKey], str]) -> str:
    """The recorded key where there is one: a step that was in flight when its run was forked keeps it."""
    if not call.idem:
        past = call.past
        recorded = past.intent.idem if past is not None and past.intent is not None else ""
        call.idem = recorded or made(call.key)
    return call.idem


def idempotency_key(journal_id: JournalId, key: StepKey, segment: int = 0, snapshot_epoch: int = 0) -> str:
    """Stable over tries and attempts, different for every step of every run: 64 hex digits."""
    parts = (canonical(journal_id), canonical(segment), canonical(snapshot_epoch), canonical(key))
    return hashlib.sha256(b"everstep/idem/1[" + b",".join(parts) + b"]").hexdigest()
