"""The gate before each try: it may begin only if what is spent, what is reserved and its own reserve stay within the budget.

A call that does not fit is *held*: it waits for running ones to settle and give back what they did not use. One that can never
fit waits for a person who raises the budget (the run parks), or fails with BudgetExceeded; on_exceeded says which. Held calls go
in their order: a later one may pass only if it leaves enough for those before it, or wants none of what they wait for.

After a cancel nothing is held: the clean-up may use steps without a reserve, others that do not fit fail at once.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from everstep import faults
from everstep.budget import LIMITS, Budget, Reserve
from everstep.errors import BadCall, BudgetExceeded, ConfigError
from everstep.ids import EpochMs
from everstep.journal.inbox import BudgetBody
from everstep.journal.records import BudgetRaised, Failure, Held, Record, Waited
from everstep.journal.spend import Spend
from everstep.run.arguments import checksums
from everstep.run.driver import StepDriver
from everstep.run.scope import BodyContext, outside
from everstep.run.waits import shown_arguments

if TYPE_CHECKING:
    from everstep.run.calls import StepCall
    from everstep.run.engine import Engine

log = logging.getLogger("everstep.run")
_NOTHING = Reserve()
_UNITS = {"maxSteps": "steps", "maxTokens": "tokens", "maxCostMicroUSD": "micro-USD"}
_SETTLING = {"result", "failure", "try_failed", "abandoned", "settled", "uncertain"}


class _Wants:
    """What one try would add. `unpriced`: tokens of this model, whose price is not known."""

    def __init__(self, steps: int = 0, tokens: int = 0, cost: int = 0, unpriced: str | None = None) -> None:
        self.steps = steps
        self.tokens = tokens
        self.cost = cost
        self.unpriced = unpriced


class _No:
    """Why a try does not fit."""

    def __init__(self) -> None:
        self.limits: dict[str, dict[str, Any]] = {}  # JSON
        self.words: list[str] = []
        self.never = False
        """However the running ones settle."""

    def add(self, name: str, said: str, never: bool, **numbers: object) -> None:
        self.limits[name] = numbers
        self.words.append(said)
        self.never = self.never or never


class _Hold:
    """A call that is held."""

    def __init__(self, call: "StepCall", since: EpochMs) -> None:
        self.call = call
        self.since = since
        self.driver: StepDriver | None = None
        self.waiter: asyncio.Future[_No | None] | None = None
        """Resolved with None when its intent was written, or with why it is refused."""


class Gate:
    """Of one attempt."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self.spend: Spend = engine.history.spend
        self.spend.begin_attempt(engine.config.attempt)
        self._held: dict[str, _Hold] = {}
        self._looking = False

    # --- told ---------------------------------------------------------------------------------------------------

    def told(self, record: Record) -> None:
        """A record was sealed."""
        self.spend.add(record)
        if self._held and record.kind in _SETTLING:
            self.look()

    def go_live(self) -> None:
        """The recorded history was consumed: a budget that was given otherwise than at the last start counts from here."""
        budget = self._engine.config.budget
        if budget is None or self._engine.history.finished is not None:
            return
        given, before = budget.to_json(), self.spend.given or {}
        if given != before:
            lifted = {name: None for name in LIMITS if name in before and name not in given}
            self._engine.put(BudgetRaised, limits=lifted | given, reason="given at a start")
            self.look()

    def raised(self, entry_id: str, body: BudgetBody) -> None:
        """A person's word."""
        try:
            self.spend.budget.changed(body.limits)
        except ConfigError as e:
            log.warning("the budget that %s set was refused: %s", body.by or "somebody", e)
            return
        self._engine.put(BudgetRaised, limits=body.limits, by=body.by, reason=body.reason, inbox=entry_id)
        faults.reach("after_raised")
        self._engine.writer.flush_soon()
        self.look()

    def usage(self, body: BodyContext) -> dict[str, Any]:  # fields of the record that settles a try
        """What a body reported, with the money it comes to; {} if it reported nothing."""
        if not body.reported:
            return {}
        usage = dict(body.usage)
        priced_itself = "costMicroUSD" in usage
        unpriced: dict[str, list[int]] = {}
        for model, (into, out) in body.tokens.items():
            if not model and priced_itself:
                continue
            price = self.spend.budget.price(model)
            if price is None:
                unpriced[model] = [into, out]
            else:
                usage["costMicroUSD"] = usage.get("costMicroUSD", 0) + price.cost_micro_usd(into, out)
        if list(unpriced) == [""] and "costMicroUSD" not in usage:
            unpriced = {}  # tokens without money say as much themselves
        return {"usage": usage} | ({"unpriced": unpriced} if unpriced else {})

    # --- a call -------------------------------------------------------------------------------------------------

    def passes(self, call: "StepCall") -> bool:
        """Whether a new call may have its intent now. If not it is held, which is recorded in the intent's place."""
        try:
            call.reserve = self.reserve_of(call)
        except Exception as e:
            self._engine.fail(BadCall(f"reserve= of step {call.step.name} raised {type(e).__name__}: {e}"))
            return False
        no = self._why_not(call, first=True)
        if no is None:
            return True
        held = self._engine.put(
            Held,
            key=call.key,
            name=call.step.name,
            effect=call.step.effect,
            input=call.digest,
            args=checksums(call.args),
            reason="; ".join(no.words)[:1024],
        )
        faults.reach("after_held")
        self._held[call.key] = _Hold(call, EpochMs(held.time))
        return False

    async def admit(self, driver: StepDriver) -> bool:
        """Write the intent of the next try when it fits. False: the call has its outcome instead, or the agent gave it up."""
        call, engine = driver.call, self._engine
        if call.reserve is None:
            call.reserve = self.reserve_of(call)
        hold = self._held.get(call.key)
        no = self._why_not(call, first=driver.tries == 0, hold=hold)
        if no is None:
            self._held.pop(call.key, None)
            self._announce(driver, call)
            return True
        if hold is None:
            since = call.past.claim.time if call.past is not None and driver.tries == 0 else engine.clock.now_epoch_ms()
            hold = self._held[call.key] = _Hold(call, EpochMs(since))
        if not self._refuses(no):
            hold.driver, hold.waiter = driver, asyncio.get_running_loop().create_future()
            engine.writer.flush_soon()
            engine.busy_drivers -= 1  # it does not keep the run from parking
            engine.delivery.wake()
            no = await hold.waiter
        self._held.pop(call.key, None)
        if no is not None and not call.gone:
            data = {"budget": no.limits}
            engine.put_outcome(
                Failure, call, type=BudgetExceeded.__name__, message=self._said(call, no), data=data, usage={}
            )
            faults.reach("after_result")
        return call.intent_seq != 0

    def forsaken(self, call: "StepCall") -> None:
        """The agent gave up a call that is held."""
        hold = self._held.pop(call.key, None)
        if hold is not None:
            self._resolve(hold, None)

    def reserve_of(self, call: "StepCall") -> Reserve:
        """What the step declares for these arguments."""
        declared = call.step.reserve
        if declared is None or isinstance(declared, Reserve):
            return declared or _NOTHING
        args, kwargs = call.step.signature.decode(call.args)
        made = outside(call.context).run(declared, *args, **kwargs)
        if not isinstance(made, Reserve):
            raise TypeError(f"it gave {made!r}; it must give an everstep.Reserve")
        return made

    def look(self) -> None:
        """Something was settled or raised: let through what fits now, in order, and refuse what never will."""
        engine = self._engine
        standing = engine.terminating or engine.finishing or engine.parking or engine.stop_reason is not None
        if self._looking or standing:
            return
        self._looking = True
        try:
            for hold in list(self._held.values()):
                if hold.call.gone:
                    continue
                first = hold.call.past is None or hold.call.past.tries == 0
                if hold.driver is not None:
                    first = hold.driver.tries == 0
                no = self._why_not(hold.call, first=first, hold=hold)
                if no is None:
                    del self._held[hold.call.key]
                    self._announce(hold.driver, hold.call)
                    self._resolve(hold, None)
                elif hold.waiter is not None and self._refuses(no):
                    del self._held[hold.call.key]
                    self._resolve(hold, no)
        finally:
            self._looking = False

    def _announce(self, driver: StepDriver | None, call: "StepCall") -> None:
        tries = 1
        if driver is not None:
            driver.tries += 1
            tries = driver.tries
        call.intent_seq = self._engine.put_intent(call, tries)

    def _resolve(self, hold: _Hold, no: _No | None) -> None:
        if hold.waiter is not None and not hold.waiter.done():
            self._engine.driver_goes_on()  # at once: until its task has its turn, the run could park
            hold.waiter.set_result(no)

    def _refuses(self, no: _No) -> bool:
        return no.never and (self.spend.budget.on_exceeded == "fail" or self._engine.delivery.cancel_delivered)

    # --- parking ------------------------------------------------------------------------------------------------

    def waits(self) -> list[Waited]:
        """For the park record."""
        found = []
        for hold in self._held.values():
            call = hold.call
            first = hold.driver is None or hold.driver.tries == 0
            no = None if call.gone else self._why_not(call, first=first, hold=hold)
            if no is not None:
                found.append(
                    Waited(
                        kind="budget",
                        key=call.key,
                        name=call.step.name,
                        input=call.digest,
                        arguments=shown_arguments(call.args, call.step.mask),
                        reason=self._said(call, no)[:1024],
                        since=hold.since,
                    )
                )
        return found

    # --- the sums -----------------------------------------------------------------------------------------------

    @staticmethod
    def _said(call: "StepCall", no: _No) -> str:
        return f"with step {call.step.name} the run would use more than its budget: {'; '.join(no.words)}"

    def _wants(self, call: "StepCall", *, first: bool) -> _Wants:
        assert call.reserve is not None
        reserve = call.reserve.to_json(self.spend.budget)
        known = "costMicroUSD" in reserve or not call.reserve.tokens
        return _Wants(
            int(first),
            reserve.get("tokens", 0),
            reserve.get("costMicroUSD", 0),
            None if known else call.reserve.model,
        )

    def _why_not(self, call: "StepCall", *, first: bool, hold: _Hold | None = None) -> _No | None:
        budget, spend = self.spend.budget, self.spend
        if not budget.limited:
            return None
        wants = self._wants(call, first=first)
        if self._engine.delivery.cancel_delivered and not (wants.tokens or wants.cost or wants.unpriced is not None):
            return None
        ahead = self._ahead(hold)
        no = _No()
        counts = (
            ("maxSteps", budget.max_steps, spend.steps, 0, wants.steps, ahead.steps),
            ("maxTokens", budget.max_tokens, spend.spent_tokens, spend.running_tokens, wants.tokens, ahead.tokens),
            (
                "maxCostMicroUSD",
                budget.max_cost_micro_usd,
                spend.spent_cost,
                spend.running_cost,
                wants.cost,
                ahead.cost,
            ),
        )
        for name, limit, spent, running, wanted, before in counts:
            if limit is not None and spent + running + wanted + (before if wanted else 0) > limit:
                reserved = running + (before if wanted else 0)
                said = f"{spent} {_UNITS[name]} spent, {reserved} reserved, {wanted} wanted, the limit is {limit}"
                no.add(name, said, spent + wanted > limit, limit=limit, spent=spent, reserved=reserved, wanted=wanted)
        self._money_unknown(budget, wants, no)
        self._time(budget, no)
        return no if no.words else None

    def _money_unknown(self, budget: Budget, wants: _Wants, no: _No) -> None:
        if budget.max_cost_micro_usd is None:
            return
        models = self.spend.unpriced_models + ([wants.unpriced] if wants.unpriced is not None else [])
        if models:
            names = ", ".join(f"model {m!r}" if m else "a use that names no model" for m in sorted(set(models)))
            said = f"{names} has no price, so what it costs cannot be told"
            no.add("prices", said, True, models=sorted(set(models)))

    def _time(self, budget: Budget, no: _No) -> None:
        if budget.max_active_s is None:
            return
        active_s = self.spend.active_ms(self._engine.clock.now_epoch_ms()) / 1000
        if active_s >= budget.max_active_s:
            said = f"{active_s:.1f} s of work done, the limit is {budget.max_active_s:g} s"
            no.add("maxActiveSeconds", said, True, limit=budget.max_active_s, spent=active_s, reserved=0, wanted=0)

    def _ahead(self, hold: _Hold | None) -> _Wants:
        """What held calls before this one wait for."""
        total = _Wants()
        for other in self._held.values():
            if other is hold:
                break
            if not other.call.gone:
                first = other.driver is None or other.driver.tries == 0
                wants = self._wants(other.call, first=first)
                total.steps += wants.steps
                total.tokens += wants.tokens
                total.cost += wants.cost
        return total
