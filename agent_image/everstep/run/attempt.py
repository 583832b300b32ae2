"""One attempt, from claim to its end: claim, read to that head, verify, check the pins, replay, run, and finish, park or stop.

Stopping never unwinds agent code. What ends an attempt without a record (fenced, diverged, terminated, unreachable) is raised
from `Attempt.run`; finished and parked are returned.
"""

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from everstep import faults
from everstep.clock import Clock
from everstep.errors import ContinuedAsNew, Diverged, Fenced, JournalUnavailable, LimitError, TerminalError, Terminated
from everstep.ids import Seq
from everstep.journal.records import Finished, Park, RunStarted, Settled, Waited, canonical
from everstep.journal.store import ClaimAnswer, Head, Store
from everstep.journal.verify import verify
from everstep.journal.writer import JournalWriter, ParkReply
from everstep.run import debugging, epochs
from everstep.run.agents import Agent
from everstep.run.blobs import read_value
from everstep.run.calls import StepCall, TimerCall
from everstep.run.compaction import Compaction
from everstep.run.config import EngineConfig
from everstep.run.engine import Engine
from everstep.run.errordata import error_data, error_message, error_type
from everstep.run.history import History
from everstep.run.identity import RunIdentity
from everstep.run.inbox import Inbox
from everstep.run.lane import Lane
from everstep.run.live import Live
from everstep.run.pins import check_pins, python_minor
from everstep.run.proved import Proved
from everstep.run.scope import SCOPE
from everstep.run.values import digest

T = TypeVar("T")
log = logging.getLogger("everstep.run")
UNREACHABLE_AFTER_S = 60.0
"""How long claim and reading are repeated while the store is away; as the writer's."""
SDK_VERSION = "0.1.0"


class AttemptEnd(NamedTuple):
    """How an attempt ended with a record of its own, or found the run finished."""

    record: Finished | Park
    head: Head
    error: BaseException | None = None
    """The agent's own exception, when it was raised in this process."""


class Attempt:
    """One attempt in one lane. `load` gives the agent; it is called after verification, because importing it runs its module."""

    def __init__(
        self,
        lane: Lane,
        store: Store,
        load: Callable[[], Agent[..., Any]],  # of any signature
        identity: RunIdentity,
        config: EngineConfig,
        clock: Clock,
        *,
        run_to_end: bool = False,
    ) -> None:
        self.lane = lane
        self.store = store
        self.load = load
        self.identity = identity
        self.config = config
        self.clock = clock
        self.run_to_end = run_to_end
        """Run agent code even over a finished journal, to check that it still replays."""
        self.head = Head(Seq(0), identity.chain.genesis())
        self.engine: Engine | None = None
        self.on_call: Callable[[StepCall], bool] | None = None
        """As of the engine."""
        self._terminating = False
        self._agent: Agent[..., Any] | None = None
        self._outcome: tuple[object, BaseException | None] = (None, None)
        self._grace_watched = False
        self._grace_over = False

    # --- from outside -------------------------------------------------------------------------------------------

    def hold_back(self) -> None:
        """From here on no new body begins. Only sets flags, so a signal handler may call it at any point of the loop's thread;
        `terminate` must follow in the loop."""
        self._terminating = True
        if self.engine is not None:
            self.engine.terminating = True

    def terminate(self) -> None:
        """SIGTERM: no new body begins, the ones in flight may finish within the grace time. In the loop's thread."""
        self.hold_back()
        if self.engine is not None:
            self.engine.poke()

    @property
    def confirmed(self) -> Head:
        """The last head the store confirmed, for the termination message."""
        return self.engine.writer.confirmed if self.engine is not None else self.head

    # --- start --------------------------------------------------------------------------------------------------

    async def run(self) -> AttemptEnd:
        """Raises ConfigError, JournalError, JournalUnavailable, Fenced, Terminated; anything else is a defect."""
        self._check_terminating()
        history = await self._read()
        if history.finished is not None and not self.run_to_end:
            return AttemptEnd(history.finished, self.head)
        agent = self._agent = self.load()
        inputs = history.inputs if history.inputs is not None else self.identity.inputs
        bound = agent.bind(self.identity.goal, inputs)
        pins = check_pins(history, self.identity)
        self._check_terminating()
        engine = await self._make_engine(history, agent)
        engine.delivery.pins = pins
        if history.began is not None and history.began.files is not None:
            await engine.delivery.blobs.put_back(history.began.files)
        if self.config.compact and not self.run_to_end:
            await engine.compaction.begin()
            self.lane.task(engine.compaction.run(), "compaction")
        self._start_agent(engine, agent, bound)
        self.lane.task(engine.inbox.poll(), "inbox")
        self.lane.task(self._report(engine), "report")
        end = await self._conduct(engine)
        await self._close(engine)
        return end

    @staticmethod
    async def _close(engine: Engine) -> None:
        """In good order, where there is time; a killed process closes nothing."""
        await engine.live.close()
        await engine.apart.close()

    def _check_terminating(self) -> None:
        if self._terminating:
            raise Terminated("the process was told to stop")

    async def _read(self) -> History:
        """Claim, read to the claimed head, prove it, decode it."""
        identity, journal_id = self.identity, self.config.journal_id
        claim = await self._patiently(lambda: self.store.claim(journal_id, self.config.attempt, identity.owner))
        if claim.answer is not ClaimAnswer.OK or claim.head is None:
            what = (
                "another process claimed it"
                if claim.answer is ClaimAnswer.TAKEN
                else f"attempt {claim.attempt} is in force"
            )
            raise Fenced(f"attempt {self.config.attempt} cannot be claimed: {what}", claim.attempt)
        faults.reach("after_claim")
        self.head = claim.head

        async def prove() -> Proved:
            proved = Proved(identity.chain.sealer)
            whole = await verify(
                self.store, identity.chain, journal_id, upto=claim.head, anchor=identity.anchor, proved=proved.add
            )
            proved.first_seq = whole.require_whole().first
            return proved

        proved = await self._patiently(prove)
        faults.reach("after_verify")
        history = proved.history()
        await epochs.load(history, lambda data: self._patiently(lambda: read_value(self.store, identity.chain, data)))
        return history

    async def _make_engine(self, history: History, agent: Agent[..., Any]) -> Engine:  # of any signature
        identity, config = self.identity, self.config
        inbox = Inbox(self.store, config.journal_id, identity.chain, history.inbox_ids)
        engine = Engine(
            lane=self.lane,
            config=config,
            store=self.store,
            history=history,
            inbox=inbox,
            clock=self.clock,
            sync_agent=not agent.is_async,
        )
        engine.writer = JournalWriter(
            self.store,
            config.journal_id,
            config.attempt,
            identity.owner,
            identity.chain,
            head=self.head,
            clock=self.clock,
            inbox_position=lambda: inbox.position,
            progress=engine.progress,
            on_stop=engine.stop,
        )
        engine.agent = agent
        engine.compaction = Compaction(engine, identity.owner, identity.anchor)
        inbox.attach(engine)
        engine.live = Live(engine, identity.owner, identity.chain.sealer)
        engine.on_outcome = self.terminate if config.always_replay else None
        engine.on_call = self.on_call
        engine.delivery.blobs.sealer = identity.chain.sealer
        if history.started is None:
            engine.delivery.run_time_ms = engine.put(
                RunStarted,
                run=identity.run_name or config.journal_id,
                namespace=identity.namespace,
                goal=digest(identity.goal.encode()),
                inputs=digest(canonical(identity.inputs)),
                entrypoint=identity.entrypoint,
                image=identity.image,
                python=identity.python or python_minor(),
                sdk=SDK_VERSION,
                key_id=identity.key_id,
                budget=(self.config.budget.to_json() or None) if self.config.budget else None,
            ).time
        await self._patiently(inbox.read)
        await self._tell(engine)
        await engine.live.open(history)
        self.engine = engine
        if self._terminating:  # told while the engine was being made
            self.terminate()
        return engine

    def _start_agent(self, engine: Engine, agent: Agent[..., Any], bound: dict[str, Any]) -> None:  # of any signature
        scope = engine.epochs.root_scope()
        if not agent.is_async:
            from everstep.run.sync_agent import SyncAgentThread  # an async agent needs nothing of it

            engine.thread = SyncAgentThread(engine)
            engine.thread.start(lambda: agent.fn(**bound), scope, self._agent_ended)
            return
        root = engine.root = self.lane.root(_awaited(agent, bound), scope, f"agent {agent.name}")
        # In agent scope, so that the end has its turn in the order of agent code.
        context = contextvars.Context()
        context.run(SCOPE.set, scope)
        root.add_done_callback(self._root_done, context=context)

    def _root_done(self, root: "asyncio.Task[Any]") -> None:  # of any result
        if root.cancelled():
            self._agent_ended(None, asyncio.CancelledError("the agent was cancelled"))
        elif (error := root.exception()) is not None:
            self._agent_ended(None, error)
        else:
            self._agent_ended(root.result(), None)

    def _agent_ended(self, value: object, error: BaseException | None) -> None:
        assert self.engine is not None
        self._outcome = (value, error)
        self.engine.delivery.root_done = True
        self.engine.delivery.root_raised = error_type(error) if error is not None else ""
        self.engine.delivery.wake()

    # --- the middle ---------------------------------------------------------------------------------------------

    async def _conduct(self, engine: Engine) -> AttemptEnd:
        """Look whenever agent code is idle: at the end, finish; when only long waits are left, park."""
        while True:
            await engine.idle.wait()
            engine.idle.clear()
            if engine.stop_reason is not None:
                raise engine.stop_reason
            if self._terminating:
                await self._leave(engine)
            if engine.failure is not None:
                return await self._finish(engine, None, engine.failure)
            if engine.delivery.live and not engine.delivery.live_told:
                engine.delivery.live_told = True
                await self._tell(engine)
            self._watch_cancel(engine)
            if self._grace_over:
                return await self._finish(
                    engine, None, TimeoutError(f"clean-up did not end within {self.config.cancel_grace_s:g} s")
                )
            if self._done(engine):
                value, error = self._outcome[0], engine.epochs.left(self._outcome[1])
                if not isinstance(error, ContinuedAsNew):
                    return await self._finish(engine, value, error)
                await self._start_again(engine)
            if (end := await self._maybe_park(engine)) is not None:
                return end

    async def _start_again(self, engine: Engine) -> None:
        """The agent continued as new."""
        assert self._agent is not None
        try:
            inputs = await engine.epochs.continue_as_new()
        except LimitError as e:
            engine.fail(e)
            return
        engine.delivery.restart()
        self._outcome = (None, None)
        self._start_agent(engine, self._agent, self._agent.bind(self.identity.goal, inputs))
        engine.inbox.apply()

    def _done(self, engine: Engine) -> bool:
        delivery = engine.delivery
        if not (delivery.live and delivery.agent_ended and engine.busy_drivers == 0):
            return False
        return delivery.cancel_delivered or not engine.drivers

    def _watch_cancel(self, engine: Engine) -> None:
        """The clean-up after a cancel is bounded, from when it can begin in this process."""
        if engine.delivery.cancel_delivered and engine.delivery.live and not self._grace_watched:
            self._grace_watched = True
            if engine.history.finished is not None:  # what the record does not tell will not happen any more
                self.lane.at(0, self._end_grace)
            elif not debugging.suspended():
                self.lane.at(self.config.cancel_grace_s, self._end_grace)

    def _end_grace(self) -> None:
        self._grace_over = True
        assert self.engine is not None
        self.engine.poke()

    async def _maybe_park(self, engine: Engine) -> AttemptEnd | None:
        """Park if nothing can happen but an answer or a long timer; fail if nothing can ever happen."""
        delivery = engine.delivery
        if not engine.quiescent:
            return None
        questions = [d for d in engine.drivers.values() if d.question is not None and not d.question.answer.done()]
        timers = [] if delivery.agent_ended else [c for c in delivery.waits() if isinstance(c, TimerCall)]
        held = engine.gate.waits()
        pauses = [d for d in engine.drivers.values() if d.pause is not None]
        if not questions and not timers and not held and not pauses:
            engine.fail(
                TerminalError(
                    "the agent waits for something that no step, timer or answer will ever bring (a lock, event, queue or future)"
                )
            )
            return None
        now = self.clock.now_epoch_ms()
        dues = [t.due for t in timers] + [d.pause.due for d in pauses if d.pause is not None]
        if any(due - now <= self.config.park_linger_s * 1000 for due in dues):
            return None
        asked = [d.waited() for d in (*questions, *pauses)]
        return await self._park(engine, [*asked, *held, *(_waited(t) for t in timers)])

    async def _park(self, engine: Engine, waits: list[Waited]) -> AttemptEnd | None:
        dues = [w.due for w in waits if w.due is not None]
        made: list[Park] = []

        def make(seq: Seq) -> Park:
            now = self.clock.now_epoch_ms()
            made.append(
                Park(seq=seq, attempt=self.config.attempt, time=now, waits=waits, wake=min(dues) if dues else None)
            )
            return made[-1]

        engine.parking = True
        faults.reach("before_park")
        reply = await engine.writer.append_park(make)
        if reply is ParkReply.PARKED:
            faults.reach("after_park")
            return AttemptEnd(made[-1], engine.writer.confirmed)
        engine.unpark()
        await self._patiently(engine.inbox.read)
        engine.poke()
        return None

    # --- ends ---------------------------------------------------------------------------------------------------

    async def _finish(self, engine: Engine, value: object, error: BaseException | None) -> AttemptEnd:
        cancelled = engine.delivery.cancel_delivered
        engine.finishing = True
        fields: dict[str, Any] = {}  # of Finished, checked by its model
        if error is None:
            assert self._agent is not None
            try:
                fields["value"] = await engine.keep(self._agent.result.encode(value))
            except LimitError as e:
                error = e
        if error is not None and not (cancelled and isinstance(error, asyncio.CancelledError)):
            fields |= {"type": error_type(error), "message": error_message(error), "data": error_data(error)}
        outcome = "cancelled" if cancelled else "succeeded" if error is None else "failed"
        if engine.history.finished is not None:
            self._compare(engine.history.finished, outcome, fields)
            return AttemptEnd(engine.history.finished, self.head, error)
        faults.reach("before_finished")
        record = engine.put(Finished, outcome=outcome, **fields)
        await engine.writer.drain()
        faults.reach("after_finished")
        return AttemptEnd(record, engine.writer.confirmed, error)

    @staticmethod
    def _compare(finished: Finished, outcome: str, fields: dict[str, Any]) -> None:  # as _finish
        if finished.outcome == outcome == "cancelled" and finished.type == "TimeoutError":
            return  # clean-up was cut off: how far it came by then hung on the clock
        had = (finished.outcome, canonical(finished.value), finished.type)
        has = (outcome, canonical(fields.get("value")), fields.get("type", ""))
        if had != has:
            raise Diverged(
                f"the agent ended in another way than the journal tells.\n  the record:  {finished.outcome} {finished.type}\n"
                f"  the code:    {outcome} {fields.get('type', '')}\nResults must come from inputs and step results alone."
            )

    async def _leave(self, engine: Engine) -> None:
        """After SIGTERM. Raises Terminated."""
        until = self.clock.monotonic_s() + self.config.grace_s
        _record_details(engine)  # at once: nothing promises that the grace time is really given
        while engine.bodies.running and engine.stop_reason is None and self.clock.monotonic_s() < until:
            engine.idle.clear()
            try:
                await asyncio.wait_for(engine.idle.wait(), max(0.01, until - self.clock.monotonic_s()))
            except TimeoutError:
                break
        if engine.stop_reason is not None:
            raise engine.stop_reason
        _record_details(engine)
        for call in list(engine.delivery.pending.values()):
            # Announced, never begun: say so, or the next attempt would have to ask whether it happened, or was paid.
            if isinstance(call, StepCall) and call.intent_seq and _must_say_that_it_did_not_begin(call):
                engine.put(
                    Settled,
                    key=call.key,
                    name=call.step.name,
                    decision="again",
                    by="everstep",
                    reason="its process was told to stop before the body began",
                )
        with contextlib.suppress(TimeoutError):  # the store is away; what it did not take is lost with the process
            await asyncio.wait_for(engine.writer.drain(), max(1.0, until - self.clock.monotonic_s()))
        await self._close(engine)
        raise Terminated("the process was told to stop; everything recorded is written")

    # --- the store ----------------------------------------------------------------------------------------------

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call while the store is away, for a bounded time. Raises JournalUnavailable."""
        wait_s = 0.05
        until = self.clock.monotonic_s() + UNREACHABLE_AFTER_S
        while True:
            try:
                return await call()
            except JournalUnavailable:
                if self.clock.monotonic_s() > until:
                    raise
                self._check_terminating()
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, 2.0)

    async def _tell(self, engine: Engine) -> None:
        """Report progress; also how an idle process learns that it was fenced. Raises Fenced."""
        try:
            reply = await self.store.report(
                self.config.journal_id, self.config.attempt, self.identity.owner, engine.progress()
            )
        except JournalUnavailable as e:
            log.debug("progress could not be reported: %s", e)
            return
        if reply.answer is not ClaimAnswer.OK:
            raise Fenced(f"attempt {reply.attempt} has replaced attempt {self.config.attempt}", reply.attempt)

    async def _report(self, engine: Engine) -> None:
        while True:
            await asyncio.sleep(self.config.report_every_s)
            try:
                await self._tell(engine)
            except BaseException as e:
                engine.stop(e)
                return


def _record_details(engine: Engine) -> None:
    """The newest heartbeats of the bodies in flight, for the attempt that follows."""
    for driver in list(engine.drivers.values()):
        driver.details.record()


async def _awaited(agent: Agent[..., Any], bound: dict[str, Any]) -> Any:  # of any signature and result
    return await agent.fn(**bound)


def _must_say_that_it_did_not_begin(call: StepCall) -> bool:
    return call.step.effect == "at_most_once" or (call.reserve is not None and not call.reserve.empty)


def _waited(timer: TimerCall) -> Waited:
    return Waited(kind="timer", key=timer.key, due=timer.due, since=timer.created)


__all__ = ["Attempt", "AttemptEnd", "RunIdentity"]
