"""The engine of one attempt: answers the calls of agent code from the record or by running steps, and delivers outcomes in order.

Everything here runs in the loop's thread. Agent code calls in (`call_step`, `start_timer`, `draw_value`); drivers and timers put
outcomes; the pump runs agent code until it is idle and then delivers the next outcome, in journal order, live as on replay.
"""

import asyncio
import contextvars
import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from everstep import faults
from everstep.clock import Clock
from everstep.errors import BadCall, Cancelled, Diverged, Frozen
from everstep.ids import EpochMs, Seq, StepKey
from everstep.journal.progress import Progress
from everstep.journal.records import BLOB_OVER_BYTES, Finished, Intent, Json, Record, Segment, Timer, Value
from everstep.journal.store import Store
from everstep.journal.writer import JournalWriter
from everstep.run.apart import Apart
from everstep.run.arguments import checksums
from everstep.run.bodies import Bodies, key_of
from everstep.run.calls import StepCall, TimerCall
from everstep.run.compaction import Compaction
from everstep.run.config import EngineConfig
from everstep.run.delivery import Delivery
from everstep.run.driver import StepDriver
from everstep.run.epochs import KEPT, Epochs
from everstep.run.gate import Gate
from everstep.run.history import History
from everstep.run.inbox import Inbox
from everstep.run.lane import AgentTask, AgentTimer, Lane, is_interrupt
from everstep.run.limits import Limits
from everstep.run.live import Live
from everstep.run.scope import Scope
from everstep.run.steps import Step
from everstep.run.streams import Channel, Streams
from everstep.run.values import Encoded

if TYPE_CHECKING:
    from everstep.run.agents import Agent
    from everstep.run.artifacts import Noted
    from everstep.run.sync_agent import SyncAgentThread

R = TypeVar("R", bound=Record)
log = logging.getLogger("everstep.run")


class Engine:
    """See the module. `idle` is set whenever the conductor should look."""

    def __init__(
        self,
        *,
        lane: Lane,
        config: EngineConfig,
        store: Store,
        history: History,
        inbox: Inbox,
        clock: Clock,
        sync_agent: bool,
    ) -> None:
        self.lane = lane
        self.loop = lane.loop
        self.config = config
        self.store = store
        self.clock = clock
        self.sync_agent = sync_agent
        self.log = log
        self.history = history
        self.inbox = inbox
        self.writer: JournalWriter
        self.compaction: Compaction
        self.thread: SyncAgentThread | None = None
        self.root: AgentTask[Any] | None = None  # of any result
        self.agent: Agent[..., Any] | None = None  # of any signature
        self.delivery = Delivery(self)
        self.drivers: dict[StepKey, StepDriver] = {}
        self.busy_drivers = 0
        self.bodies = Bodies(self)
        self.apart = Apart(self)
        self.streams = Streams(self)
        self.live: Live
        self.parking = False
        self.terminating = False
        self.finishing = False
        """The last record is on its way: agent code stands still, and nothing else is put."""
        self.gate = Gate(self)
        self.idle = asyncio.Event()
        self.stop_reason: BaseException | None = None
        self.failure: BaseException | None = None
        """An error of the agent that the engine found (it cannot be raised where it happened)."""
        self.patches: dict[StepKey, bool] = {}
        """What `patched` has decided, by the key of its marker. Only agent code touches it."""
        self.epochs = Epochs(self)
        self.limits = Limits(self)
        self.on_outcome: Callable[[], None] | None = None
        """Told of each outcome this process records."""
        self.on_call: Callable[[StepCall], bool] | None = None
        """Asked at each call of a step; True: the call goes no further."""
        self.steps_recorded = history.steps
        self.last_step: tuple[str, str, str, int] = ("", "", "", 0)
        self._unstarted: deque[StepCall] = deque()
        self._after_park: list[Callable[[], None]] = []
        lane.wake = self.delivery.wake
        lane.foreign_wake = self._foreign_wake

    # --- what agent code calls ----------------------------------------------------------------------------------

    @property
    def run_time_s(self) -> float:
        return self.delivery.run_time_ms / 1000

    @property
    def replaying(self) -> bool:
        return self.delivery.replaying

    def call_step(
        self,
        scope: Scope,
        step: Step[..., Any],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        waiter: Channel | None = None,
    ) -> StepCall:
        """A step of an async agent was called. Raises NotJSON, ValueTooLarge, TooManySteps before anything is written."""
        self.check_alive()
        data, input_digest = step.signature.encode(args, kwargs)
        call = StepCall(
            scope.next_step(),
            step,
            data,
            input_digest,
            contextvars.copy_context(),
            waiter or asyncio.Future(loop=self.loop),
        )
        if waiter is not None:
            waiter.call = call
        self.begin(call)
        return call

    def call_step_sync(
        self, scope: Scope, step: Step[..., Any], args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> Any:  # the step's own result
        """The same from the sync agent's thread; blocks until the outcome."""
        assert self.thread is not None
        data, input_digest = step.signature.encode(args, kwargs)
        return self.thread.call_step(scope, step, data, input_digest)

    def begin(self, call: StepCall) -> None:
        """Take a call up: from the record, or as a new intent."""
        self.check_alive()
        if self.on_call is not None and self.on_call(call):
            return
        self.limits.step(call.step.name)
        try:
            call.past = self.history.claim("intent", call.key, call.step.name, call.digest, call.args)
        except Diverged as e:
            self.stop(e)
            return
        self.delivery.pending[call.key] = call
        if call.past is None:
            faults.reach("before_intent")
            if self.terminating:
                return  # an intent whose body never begins would look like a step lost in flight; its task stands still here
            try:
                if self.gate.passes(call):
                    call.intent_seq = self.put_intent(call, 1)
            except BaseException as e:
                self.stop(e)
                return
        if call.past is None or call.past.outcome is None:
            self._unstarted.append(call)

    def forsake(self, call: StepCall) -> None:
        """Agent code stopped waiting for a step."""
        if call.delivered or call.gone or self.stop_reason is not None:
            return
        call.gone = True
        driver = self.drivers.get(call.key)
        if driver is not None:
            driver.forsaken()
        self.delivery.wake()

    def start_timer(self, scope: Scope, when_s: float, handle: asyncio.Handle) -> AgentTimer:
        """A durable timer with an absolute due time (run time, seconds since the epoch)."""
        self.check_alive()
        timer = TimerCall(scope.next_timer(), EpochMs(math.ceil(when_s * 1000 - 1e-3)), handle)
        try:
            timer.past = self.history.claim("timer", timer.key, "")
            if timer.past is None:
                timer.created = EpochMs(self.put(Timer, key=timer.key, due=timer.due).time)
            else:
                record = timer.past.claim
                assert isinstance(record, Timer)
                timer.due, timer.created = EpochMs(record.due), EpochMs(record.time)
        except BaseException as e:
            self.stop(e)
        else:
            self.delivery.add_timer(timer)
        return AgentTimer(when_s, lambda: self.delivery.cancel_timer(timer))

    def draw_value(self, scope: Scope, name: str, draw: Callable[[], Json], key: StepKey | None = None) -> Json:
        """A value drawn once (now, uuid4, random) and the same ever after. `key` None takes the scope's next number."""
        self.check_alive()
        key = key or scope.next_value()
        try:
            past = self.history.claim("value", key, name)
            if past is not None:
                assert isinstance(past.claim, Value)
                return past.claim.value
            value = draw()
            self.put(Value, key=key, name=name, value=value)
            return value
        except Frozen:
            raise
        except BaseException as e:
            self.stop(e)
            raise Frozen("the run has stopped") from e

    def check_alive(self) -> None:
        """Agent code that still runs after the end (a collected coroutine's `finally`) must not touch the journal."""
        if self.stop_reason is not None:
            raise Frozen("the run has stopped; nothing more is journaled")
        self.streams.check()

    def _foreign_wake(self, callback: object) -> None:
        self.fail(
            BadCall(
                "code outside agent scope (a step's body, a thread, a callback, another run) woke agent code through a future, "
                f"an event or a queue ({callback!r}). That is not in the journal, so a replay could not repeat it. Return the "
                "value from a step"
            )
        )

    # --- records ------------------------------------------------------------------------------------------------

    def put(self, kind: type[R], **fields: Any) -> R:  # the fields of that kind, checked by its model
        """Seal one record. Raises what ended the writer."""
        if self.finishing and kind is not Finished and kind is not Segment:
            raise Frozen("the run is finishing; nothing follows its last record")
        made: list[R] = []

        def make(seq: Seq) -> Record:
            record = kind(seq=seq, attempt=self.config.attempt, time=self.clock.now_epoch_ms(), **fields)
            made.append(record)
            return record

        self.writer.put(make)
        record = made[0]
        self.gate.told(record)
        if "inbox" in fields or record.kind in KEPT:
            self.epochs.note(record)
        return record

    def put_intent(self, call: StepCall, tries: int) -> Seq:
        record = self.put(
            Intent,
            key=call.key,
            name=call.step.name,
            effect=call.step.effect,
            input=call.digest,
            args=checksums(call.args),
            idem=key_of(call, self.epochs.idem),
            tries=tries,
            reserve=(call.reserve.to_json(self.history.spend.budget) or None) if call.reserve else None,
        )
        call.began = call.began or EpochMs(record.time)
        self.note_step(record)
        return Seq(record.seq)

    def put_outcome(self, kind: type[R], call: StepCall, **fields: Any) -> None:  # as `put`
        """Seal the outcome of a step and hand it to delivery, at once: it need not be durable before the next effect starts."""
        record = self.put(kind, key=call.key, name=call.step.name, **fields)
        self.steps_recorded += 1
        self.note_step(record)
        self.delivery.add(record)
        if self.on_outcome is not None:
            self.on_outcome()

    def note_step(self, record: Record) -> None:
        self.last_step = (record.key, record.name, record.kind, record.time)

    @staticmethod
    def needs_blob(encoded: Encoded) -> bool:
        """Large values, and data that looks like a reference to a blob, are kept apart."""
        data = encoded.data
        return len(encoded.raw) > BLOB_OVER_BYTES or (
            isinstance(data, dict) and ("$blob" in data or "$artifact" in data)
        )

    async def keep(self, encoded: Encoded, files: "list[Noted] | None" = None) -> Json:
        """The value as it stands in a record; a blob is stored before the record that names it, and so are the files of a body.
        Repeats while the store is away, as long as the writer would."""
        if files:
            return await self.delivery.blobs.artifacts.keep(encoded.data, files)
        if not self.needs_blob(encoded):
            return encoded.data
        return {"$blob": await self.delivery.blobs.put(encoded.raw), "bytes": len(encoded.raw)}

    # --- drivers and bodies -------------------------------------------------------------------------------------

    def start_drivers(self) -> None:
        """At an idle moment after the recorded history was consumed: begin what is still awaited, in order."""
        if not self._unstarted or self.terminating or self.history.finished is not None:
            return  # a finished run is only looked at: what it left in flight stays as it was
        while self._unstarted:
            call = self._unstarted.popleft()
            driver = self.drivers[call.key] = StepDriver(self, call)
            self.busy_drivers += 1
            task = self.loop.start_now(self._drive(driver), f"step {call.key}", self.lane.context())
            if not task.done():  # kept without a callback of asyncio's, as each would cost a turn of the loop
                self.lane.outside_tasks.add(task)

    async def _drive(self, driver: StepDriver) -> None:
        try:
            await driver.run()
        except BaseException as e:
            if is_interrupt(e):
                raise
            self.stop(e)
        finally:
            self.busy_drivers -= 1
            self.drivers.pop(driver.call.key, None)
            if (me := asyncio.current_task()) is not None:
                self.lane.outside_tasks.discard(me)
            self.delivery.wake()

    def driver_waits(self, driver: StepDriver) -> None:
        """A driver waits for a person, or long for its next try: it no longer keeps the run from parking."""
        self.busy_drivers -= 1
        if driver.question is not None:
            self.note_step_waiting(driver)
        self.delivery.wake()

    def driver_goes_on(self) -> None:
        self.busy_drivers += 1

    def note_step_waiting(self, driver: StepDriver) -> None:
        self.last_step = (driver.call.key, driver.step.name, "uncertain", self.clock.now_epoch_ms())

    @property
    def quiescent(self) -> bool:
        """Nothing runs and nothing is on its way; only people and timers can change that."""
        delivery = self.delivery
        if not delivery.live or delivery.busy or self.busy_drivers or self._unstarted:
            return False
        return not (self.thread is not None and self.thread.busy)

    @property
    def stands_still(self) -> bool:
        """Agent code does not go on: the attempt is ending."""
        return self.stop_reason is not None or self.failure is not None or self.finishing or self.terminating

    @property
    def takes_answers(self) -> bool:
        """Whether what people said may become a record now."""
        ending = self.parking or self.terminating or self.finishing or self.stop_reason is not None
        return self.delivery.live and not ending and self.history.finished is None

    # --- parking ------------------------------------------------------------------------------------------------

    def when_not_parking(self, act: Callable[[], None]) -> None:
        """Nothing may be put while a park record is on its way."""
        if self.parking:
            self._after_park.append(act)
        else:
            act()

    def unpark(self) -> None:
        """The park was refused: do what was held back."""
        self.parking = False
        acts, self._after_park = self._after_park, []
        for act in acts:
            act()

    # --- ends ---------------------------------------------------------------------------------------------------

    def stop(self, why: BaseException) -> None:
        """End the attempt without unwinding agent code: no callback of it runs any more. The first reason counts."""
        if self.stop_reason is None:
            why = self.stop_reason = self.apart.explain(why)
            self._after_stop(why)
            self.poke()

    def _after_stop(self, why: BaseException) -> None:
        if isinstance(why, Diverged):
            self.writer.freeze()

    def cancel_root(self) -> None:
        """Unwind the agent: a person's wish."""
        if self.root is not None:
            self.lane.deliver(self.root.cancel, "the run was cancelled")
        elif self.thread is not None:
            self.thread.interrupt(Cancelled("the run was cancelled"))

    def fail(self, why: BaseException) -> None:
        """End the run as failed, for an error that could not be raised in agent code."""
        if self.failure is None:
            self.failure = why
            self.poke()

    def poke(self) -> None:
        self.idle.set()

    def release(self) -> None:
        """The attempt is over: keep nothing of the journal for what is left of agent code, which may refer to this for ever."""
        self.history = History()
        self.delivery.forget()

    # --- what it tells of itself --------------------------------------------------------------------------------

    def progress(self) -> bytes:
        key, name, state, time = self.last_step
        delivery = self.delivery
        return Progress(
            attempt=self.config.attempt,
            state=self._state(),
            recorded=self.steps_recorded,
            replayed=delivery.replayed,
            replay_ms=delivery.replay_ms,
            resumed_epoch_ms=delivery.resumed_epoch_ms,
            step_key=key,
            step_name=name,
            step_state=state,
            step_epoch_ms=time,
            usage=self.history.spend.usage,
            opened_seq=self.compaction.waits_for,
            warning=self.limits.warning,
        ).to_bytes()

    def _state(self) -> str:
        if self.terminating or self.stop_reason is not None:
            return "stopping"
        if not self.delivery.live:
            return "replaying"
        return "running" if self.busy_drivers else "waiting"
