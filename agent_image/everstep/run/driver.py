"""Brings one step call to its outcome: tries, time-outs, what a lost process left open, probes and people.

Runs outside agent scope, one per call that is still awaited when the recorded history was consumed, or that was made since.
A body starts only after its intent is durable. What ends a call is exactly one outcome record: result, failure, abandoned, or
settled.
"""

import asyncio
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from everstep import faults
from everstep.errors import LimitError, MaybeDone, NotJSON, StopRun
from everstep.ids import EpochMs, Seq
from everstep.journal.inbox import SettleBody
from everstep.journal.records import (
    Abandoned,
    Failure,
    Intent,
    Json,
    Result,
    Settled,
    TryFailed,
    Uncertain,
    Waited,
)
from everstep.run.body import BodyEnd, BodyRun
from everstep.run.calls import StepCall
from everstep.run.errordata import TRY_MESSAGE_MAX, error_data, error_message, error_type, try_message_max
from everstep.run.heartbeat import Details
from everstep.run.probe import NOT_DONE, UNKNOWN, Done
from everstep.run.steps import Step
from everstep.run.tries import Tries
from everstep.run.waits import Pause, Question

if TYPE_CHECKING:
    from everstep.run.artifacts import Noted
    from everstep.run.engine import Engine

Used: TypeAlias = dict[str, Any]  # the fields `usage` and `unpriced` of a record, as far as they are known


class StepDriver:
    """See the module."""

    def __init__(self, engine: "Engine", call: StepCall) -> None:
        self.engine = engine
        self.call = call
        self.step = call.step
        past = call.past
        self.tries = past.tries if past else int(call.intent_seq != 0)
        self.bounds = Tries(call)
        self.details = Details(engine, call, past.details if past else None)
        self.body: BodyRun | None = None
        self.question: Question | None = None
        self.pause: Pause | None = None
        self._files: list[Noted] = []
        """What the newest body wants kept."""
        self._waiting = False
        """Waits for a person, or long for its next try, and does not keep the run from parking."""
        self._total_first = False
        """What bounds the try in flight is total_timeout."""

    # --- told from outside --------------------------------------------------------------------------------------

    def forsaken(self) -> None:
        """The agent cancelled its wait."""
        self.engine.gate.forsaken(self.call)
        if self.body is not None:
            self.body.cancel()
        if self.question is not None and self.question.exhausted and not self.question.answer.done():
            self._abandon("cancelled by the agent while a person was asked about its exhausted tries")
            self._go_on()
            self.question.answer.set_result(False)
        self._end_pause()

    # --- the way to an outcome ----------------------------------------------------------------------------------

    async def run(self) -> None:
        try:
            again = await self._take_up()
            while again:
                again = await self._try()
        finally:
            self.details.close()

    async def _take_up(self) -> bool:
        """From where the record stands. True: a try is due."""
        past = self.call.past
        if past is None:
            return True
        if isinstance(past.last, Uncertain):
            return await self._take_up_question(past.last)
        if isinstance(past.last, Intent) and "at_most_once" in (self.step.effect, past.last.effect):
            reason = f"the process of attempt {past.last.attempt} was lost while the step was in flight"
            return await self._resolve(reason, proved=self.engine.config.predecessor_dead)
        if self.call.gone:
            return self._abandon("its process was lost, and the agent did not wait for it any more")
        if isinstance(past.last, TryFailed) and past.last.due is not None:
            await self._wait_until(EpochMs(past.last.due), past.last)
        return True

    async def _take_up_question(self, asked: Uncertain) -> bool:
        if not asked.exhausted:
            return await self._resolve(asked.reason, proved=False, asked=asked)
        if self.call.gone:
            return self._abandon("the agent does not wait any more for what a person was asked about")
        return await self._ask(asked, asked.reason)

    async def _try(self) -> bool:
        """One try: intent, body, record. True: another one is due."""
        call, engine = self.call, self.engine
        if call.gone or self._out_of_time():
            return await self._no_body()
        if call.intent_seq == 0:
            await engine.bodies.may_begin()  # an intent without a body would look like a step lost in flight
            if not await engine.gate.admit(self):
                return call.gone and self._abandon("cancelled while the budget held it back", usage={})
        await engine.writer.durable(call.intent_seq)
        faults.reach("after_intent")
        end_turn = await engine.bodies.turn(call)
        if call.gone or self._out_of_time():  # it may have waited for a thread
            end_turn()
            return await self._no_body()
        call.intent_seq = Seq(0)
        began = engine.clock.monotonic_s()
        end, used = await self._run_body(end_turn)
        took_ms = int((engine.clock.monotonic_s() - began) * 1000)
        if end.error is None and not end.cancelled:
            await self._record_value(end.value, took_ms, used)
            engine.bodies.ended()
            return False
        engine.bodies.ended()
        return await self._not_a_value(end, took_ms, used)

    async def _no_body(self) -> bool:
        """A try was due, but nobody waits for it any more or its time is over."""
        if self.call.gone:
            return self._abandon("cancelled before its body began", usage={})
        self.call.intent_seq = Seq(0)
        return await self._exhausted(self.bounds.out_of_time(), "total_timeout", 0, {"usage": {}})

    async def _run_body(self, end_turn: Callable[[], None]) -> tuple[BodyEnd, Used]:
        faults.reach("in_body")
        call, engine = self.call, self.engine
        left_s = self.bounds.left_s(engine.clock.now_epoch_ms())
        self._total_first = left_s is not None and left_s <= (self.step.timeout_s or math.inf)
        self.body, context = engine.bodies.start(call, self.tries, end_turn, self.details, left_s=left_s)
        end = await self.body.end
        self.body = None
        self._files = context.files
        engine.live.ended(context, well=end.error is None and not end.cancelled)
        faults.reach("after_effect")
        return end, engine.gate.usage(context)

    async def _record_value(self, value: object, took_ms: int, used: Used) -> None:
        """The effect has happened: a value that cannot be journaled is a failure, never another try."""
        engine, call = self.engine, self.call
        try:
            encoded = self.step.signature.result.encode(value)
            data = await engine.keep(encoded, self._files)
        except LimitError as e:
            self._fail(type(e).__name__, str(e), None, took_ms, used)
            return
        engine.put_outcome(Result, call, value=data, took_ms=took_ms, **used)
        faults.reach("after_result")

    async def _not_a_value(self, end: BodyEnd, took_ms: int, used: Used) -> bool:
        # A cancelled body proves nothing: a thread, a subprocess or a shielded task that it started may still send.
        at_most_once = self.step.effect == "at_most_once"
        if end.error is None and self.call.gone and not end.timed_out:
            if at_most_once:
                return await self._resolve("the agent cancelled it while its body ran", proved=False)
            return self._abandon(
                "cancelled by the agent" if end.ended else "cancelled by the agent; its body did not end", **used
            )
        if end.timed_out:
            expired = self._total_first and not end.silent
            error = self.bounds.out_of_time() if expired else TimeoutError(_late(self.step, end))
            if at_most_once:
                return await self._resolve(f"the step timed out: {error}", proved=False)
            return await self._failed_try(error, took_ms, used, expired=expired)
        raised = end.error or asyncio.CancelledError("the body cancelled itself")
        if isinstance(raised, StopRun):
            raised = RuntimeError(f"the body raised {type(raised).__name__}, which only the engine may: {raised}")
        if at_most_once and isinstance(raised, MaybeDone):
            return await self._resolve(str(raised) or "its body does not know whether it was done", proved=False)
        return await self._failed_try(raised, took_ms, used)

    async def _failed_try(self, error: BaseException, took_ms: int, used: Used, *, expired: bool = False) -> bool:
        engine, call = self.engine, self.call
        chance = engine.clock.random_bytes(1)[0] / 255
        verdict = self.bounds.failed(error, engine.clock.now_epoch_ms(), chance, expired=expired)
        if call.gone or not verdict.worth:
            self._fail(error_type(error), error_message(error), error_data(error), took_ms, used)
            return False
        if verdict.exhausted:
            return await self._exhausted(error, verdict.exhausted, took_ms, used)
        record = engine.put(
            TryFailed,
            key=call.key,
            name=self.step.name,
            tries=self.tries,
            type=error_type(error),
            message=error_message(error, try_message_max(self.bounds.failures)),
            limit=verdict.limit or None,
            due=engine.clock.now_epoch_ms() + math.ceil(verdict.wait_s * 1000) if verdict.wait_s > 0 else None,
            **used,
        )
        engine.writer.flush_soon()
        faults.reach("before_retry")
        if record.due is not None:
            await self._wait_until(EpochMs(record.due), record)
        return True

    def _out_of_time(self) -> bool:
        left_s = self.bounds.left_s(self.engine.clock.now_epoch_ms())
        return left_s is not None and left_s <= 0

    async def _wait_until(self, due: EpochMs, failed: TryFailed) -> None:
        """For the next try; if that is long, the run may park meanwhile, and another process goes on."""
        engine, call = self.engine, self.call
        left_s = (due - engine.clock.now_epoch_ms()) / 1000
        if left_s <= 0 or call.gone:
            return
        reason = f"try {failed.tries} failed: {failed.type}: {failed.message}"
        pause = self.pause = Pause(due, EpochMs(failed.time), reason, asyncio.get_running_loop().create_future())
        timer = engine.lane.at(left_s, lambda: engine.when_not_parking(self._end_pause))
        if left_s > engine.config.park_linger_s:
            self.details.record()
            self._waiting = True
            engine.driver_waits(self)
        await pause.over
        timer.cancel()
        self.pause = None

    def _end_pause(self) -> None:
        if self.pause is not None and not self.pause.over.done():
            self._go_on()
            self.pause.over.set_result(None)

    def _go_on(self) -> None:
        """At once, not when this driver's task has its turn: until then the run could park with a body about to begin."""
        if self._waiting:
            self._waiting = False
            self.engine.driver_goes_on()

    # --- outcomes -----------------------------------------------------------------------------------------------

    def _fail(self, type_: str, message: str, data: Json, took_ms: int, used: Used) -> None:
        self.engine.put_outcome(Failure, self.call, type=type_, message=message, data=data, took_ms=took_ms, **used)
        faults.reach("after_result")

    def _abandon(self, reason: str, **used: Any) -> bool:  # as `Used`
        self.engine.put_outcome(Abandoned, self.call, reason=reason, **used)
        return False

    # --- exhausted ------------------------------------------------------------------------------------------------

    async def _exhausted(self, error: BaseException, bound: str, took_ms: int, used: Used) -> bool:
        """The last try failed, and `bound` allows no other. True: a person lets it run again."""
        type_, message, data = error_type(error), error_message(error), error_data(error)
        if self.step.retry.on_exhausted == "fail" or self.call.gone:
            self._fail(type_, message, data, took_ms, used)
            return False
        self.details.record()
        faults.reach("before_question")
        asked = self.engine.put(
            Uncertain,
            key=self.call.key,
            name=self.step.name,
            reason=f"all tries failed ({bound}), the last one: {type_}: {error_message(error, TRY_MESSAGE_MAX)}",
            input=self.call.digest,
            exhausted=True,
            type=type_,
            message=message,
            data=data,
            **used,
        )
        faults.reach("after_question")
        return await self._ask(asked, asked.reason)

    # --- uncertain ----------------------------------------------------------------------------------------------

    async def _resolve(self, reason: str, *, proved: bool, asked: Uncertain | None = None) -> bool:
        """The effect may have happened. `proved`: whoever was at it is gone for sure. True: it may run again."""
        if asked is not None and self.engine.inbox.holds(self.call.key):
            return await self._ask(asked, asked.reason)  # a person's word came before another probe
        again, hint = await self._settle_by_probe(proved)
        if again is not None:
            return again
        reason = asked.reason if asked is not None else reason + hint
        if self.step.on_uncertain == "fail":
            self.engine.put_outcome(Settled, self.call, decision="fail", by="on_uncertain", reason=reason)
            return False
        if asked is None:
            self.details.record()
            asked = self.engine.put(
                Uncertain, key=self.call.key, name=self.step.name, reason=reason, input=self.call.digest
            )
        return await self._ask(asked, reason)

    async def _settle_by_probe(self, proved: bool) -> tuple[bool | None, str]:
        """(True: run again | False: it has its outcome | None: nobody can tell, what the reason should add)."""
        answer = await self._probe()
        if isinstance(answer, Done):
            try:
                encoded = self.step.signature.result.encode(answer.value)
            except LimitError as e:
                return None, f"; the probe said done, but its value was refused: {e}"
            data = await self.engine.keep(encoded)
            self.engine.put_outcome(Settled, self.call, decision="done", value=data, by="probe")
            return False, ""
        if answer is not NOT_DONE:
            return None, ""
        if not proved:
            return None, "; the probe says not done, but whoever was at it may still be alive"
        return self._not_done(), ""

    def _not_done(self) -> bool:
        """It surely did not happen."""
        if self.call.gone:
            return self._abandon("cancelled by the agent; the probe says that it was not done")
        self._settled_again("probe", "the probe says that it was not done", "")
        return True

    async def _probe(self) -> object:
        if self.step.probe is None:
            return UNKNOWN
        end_turn = await self.engine.bodies.turn(self.call, probe=True)
        faults.reach("before_probe")
        run, _ = self.engine.bodies.start(self.call, self.tries, end_turn, self.details, probe=True)
        end = await run.end
        self.engine.bodies.ended()
        faults.reach("after_probe")
        if end.error is not None or end.cancelled:
            self.engine.log.warning(
                "the probe of step %s (%s) did not answer: %s",
                self.step.name,
                self.call.key,
                end.error or "no answer in time",
            )
            return UNKNOWN
        if isinstance(end.value, Done) or end.value in (NOT_DONE, UNKNOWN):
            return end.value
        self.engine.log.warning(
            "the probe of step %s answered %r; it must answer Done(value), NOT_DONE or UNKNOWN",
            self.step.name,
            end.value,
        )
        return UNKNOWN

    async def _ask(self, asked: Uncertain, reason: str) -> bool:
        self.question = Question(asked, reason, asyncio.get_running_loop().create_future())
        self.engine.inbox.offer(self)
        if self.question.answer.done():
            again = self.question.answer.result()
        else:
            self.engine.writer.flush_soon()
            self._waiting = True
            self.engine.driver_waits(self)
            again = await self.question.answer
        self.question = None
        return again

    def settle(self, body: SettleBody, inbox_id: str) -> bool:
        """A person's answer. False: refused, and the question stays with the reason."""
        assert self.question is not None
        try:
            data = self._checked(body)
        except (NotJSON, ValueError) as e:
            self.question.refused = f"the answer of {body.by or 'somebody'} was refused: {e}"
            self.engine.log.warning("step %s (%s): %s", self.step.name, self.call.key, self.question.refused)
            self.engine.poke()
            return False
        if body.decision == "again":
            said = self._settled_again(body.by, body.reason, inbox_id)
            self.bounds.renew(EpochMs(said.time), tries=self.question.exhausted)
        else:
            asked, failed = self.question.asked, self.question.exhausted and body.decision == "fail"
            self.engine.put_outcome(
                Settled,
                self.call,
                decision=body.decision,
                value=data,
                by=body.by,
                reason=body.reason,
                inbox=inbox_id,
                type=asked.type if failed else None,
                message=asked.message if failed else None,
                data=asked.data if failed else None,
            )
        self._go_on()
        self.question.answer.set_result(body.decision == "again")
        return True

    def _checked(self, body: SettleBody) -> Json:
        assert self.question is not None
        if body.input != self.call.digest:
            raise ValueError("it answers a call with other arguments")
        if body.since and body.since != self.question.since:
            raise ValueError("it answers an earlier question about this step")
        if body.decision == "again" and self.call.gone:
            raise ValueError("the agent has cancelled this step, so it cannot run again; answer done or fail")
        if body.decision != "done":
            return None
        value = self.step.signature.result.decode(body.value)
        encoded = self.step.signature.result.encode(value)
        if self.engine.needs_blob(encoded):
            raise ValueError("its value is too large for an answer")
        return encoded.data

    def _settled_again(self, by: str, reason: str, inbox_id: str) -> Settled:
        return self.engine.put(
            Settled, key=self.call.key, name=self.step.name, decision="again", by=by, reason=reason, inbox=inbox_id
        )

    def waited(self) -> Waited:
        """For the park record."""
        waits = self.pause or self.question
        assert waits is not None
        return waits.waited(self.call)


def _late(step: Step[..., Any], end: BodyEnd) -> str:  # of any signature
    if end.silent:
        return f"no heartbeat within {step.heartbeat_timeout_s:g} s"
    return f"no result within {step.timeout_s:g} s"
