"""What a run has spent, folded from its records and from nothing else: the same over replays, tries, attempts and forks.

The live engine feeds each record it seals to the same fold that a later attempt, or a command, runs over the stored ones.

A try holds what it reserved (`intent.reserve`) until a record settles it:

    record                                counts as spent
    ------------------------------------  ------------------------------------------------------------------------------
    result, failure, try_failed,          what the body reported; what it reserved, if it reported nothing
      abandoned, uncertain with exhausted
    settled again, by probe or everstep   nothing: it surely did not happen
    settled otherwise, next intent of     what it reserved: its process was lost or nobody can tell, and it may have been paid
      the same step

Tokens of a model without a price, reported without money, are kept apart (`unpriced`): they are never taken for free.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from everstep.budget import Budget
from everstep.journal.records import Record

_CLOSING = {"result", "failure", "try_failed", "abandoned"}
_SURELY_NOT = {"probe", "everstep"}


@dataclass(slots=True, eq=False, repr=False)
class _Open:
    """A try without an end."""

    tokens: int
    cost: int
    lost: bool = False
    """Its body does not run any more; nobody has said yet what became of it."""


@dataclass(slots=True, eq=False, repr=False)
class Spend:
    """Grows record by record. Tokens are in and out together, money is micro-USD, times are epoch milliseconds."""

    budget: Budget = field(default_factory=Budget)
    """In force: as the run was started with, and as people changed it since."""
    given: dict[str, Any] | None = None  # JSON
    """The budget the run was last started with; None = without one."""
    steps: int = 0
    tokens: int = 0
    """Settled, those of lost tries included."""
    cost: int = 0
    lost_tokens: int = 0
    """Of `tokens`: reserved by tries that were lost, or that reported nothing."""
    lost_cost: int = 0
    usage: dict[str, int] = field(default_factory=dict)
    """What steps reported: inputTokens, outputTokens, costMicroUSD."""
    unpriced: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Tokens in and out by model, reported without money when the model had no price."""
    running_tokens: int = 0
    """Reserved by tries whose bodies run; they may give some of it back."""
    running_cost: int = 0
    open_tokens: int = 0
    """Reserved by lost tries that nobody has settled yet."""
    open_cost: int = 0
    active_done_ms: int = 0
    attempt: int = 0
    last_time: int = 0
    since: int = 0
    running: int = 0
    """Tries whose bodies run; while there are any, active time goes on from `since`."""
    _open: dict[str, _Open] = field(default_factory=dict)
    _copied: tuple[int, int] = (0, 0)
    """Of a fork: its last copied record, and the active time up to there, which copies alone cannot tell."""

    # --- told ---------------------------------------------------------------------------------------------------

    def add(self, record: Record) -> None:
        """Take in the next record."""
        if record.attempt != self.attempt:
            self.begin_attempt(record.attempt)
        self.last_time = record.time
        if record.kind == "intent":
            self._intent(record.key, record.reserve, record.time, record.tries)
        elif record.kind in _CLOSING or (record.kind == "uncertain" and record.exhausted):
            self._close(record.key, record.time, getattr(record, "usage", None), getattr(record, "unpriced", None))
        elif record.kind == "settled":
            self._settle(record.key, record.time, record.decision == "again" and record.by in _SURELY_NOT)
        elif record.kind == "uncertain":
            self._lose(record.key, record.time)
        elif record.kind in ("snapshot", "segment"):
            self.restore(record.totals["spend"])  # the records before it may be gone
        elif record.kind == "run_started":
            self._start(record.budget, record.lineage)
        elif record.kind == "budget_raised":
            self.budget = self.budget.changed(record.limits)
            if not record.inbox:
                self.given = {name: value for name, value in record.limits.items() if value is not None}

        if record.seq == self._copied[0]:
            self.begin_attempt(self.attempt)
            self.active_done_ms = self._copied[1]

    def _start(self, budget: dict[str, Any] | None, lineage: Mapping[str, Any] | None) -> None:  # JSON
        if budget is not None:
            self.given, self.budget = budget, Budget.from_json(budget)
        if lineage is not None:
            self._copied = lineage["copied"], lineage["activeMs"]

    def begin_attempt(self, attempt: int) -> None:
        """Another process: what was running in the one before is lost."""
        if self.running:
            self.active_done_ms += max(0, self.last_time - self.since)
            self.running = 0
        for key in self._open:
            self._mark_lost(key)
        self.attempt = attempt

    def _intent(self, key: str, reserve: Mapping[str, int] | None, time: int, tries: int) -> None:
        if tries == 1:
            self.steps += 1
        self._count_lost(self._pop(key, time))
        tokens, cost = (reserve.get("tokens", 0), reserve.get("costMicroUSD", 0)) if reserve else (0, 0)
        self._open[key] = _Open(tokens, cost)
        self.running_tokens += tokens
        self.running_cost += cost
        if self.running == 0:
            self.since = time
        self.running += 1

    def _close(
        self, key: str, time: int, usage: Mapping[str, int] | None, unpriced: Mapping[str, list[int]] | None
    ) -> None:
        held = self._pop(key, time)
        if usage is None:
            self._count_lost(held)
            return
        for name, amount in usage.items():
            self.usage[name] = self.usage.get(name, 0) + amount
        self.tokens += usage.get("inputTokens", 0) + usage.get("outputTokens", 0)
        self.cost += usage.get("costMicroUSD", 0)
        if not unpriced:
            return
        if held is not None and held.cost:
            self.cost += held.cost  # the step said what it costs at most; that stands
            self.lost_cost += held.cost
            return
        for model, (into, out) in unpriced.items():
            had = self.unpriced.get(model, (0, 0))
            self.unpriced[model] = (had[0] + into, had[1] + out)

    def _settle(self, key: str, time: int, surely_not: bool) -> None:
        held = self._pop(key, time)
        if not surely_not:
            self._count_lost(held)

    def _count_lost(self, held: _Open | None) -> None:
        if held is not None:
            self.tokens += held.tokens
            self.cost += held.cost
            self.lost_tokens += held.tokens
            self.lost_cost += held.cost

    def _pop(self, key: str, time: int) -> _Open | None:
        held = self._open.get(key)
        if held is None:
            return None
        self._lose(key, time)
        self.open_tokens -= held.tokens
        self.open_cost -= held.cost
        del self._open[key]
        return held

    def _lose(self, key: str, time: int) -> None:
        """Its body does not run any more."""
        if self._mark_lost(key):
            self.running -= 1
            if self.running == 0:
                self.active_done_ms += max(0, time - self.since)

    def _mark_lost(self, key: str) -> bool:
        held = self._open.get(key)
        if held is None or held.lost:
            return False
        held.lost = True
        self.running_tokens -= held.tokens
        self.running_cost -= held.cost
        self.open_tokens += held.tokens
        self.open_cost += held.cost
        return True

    # --- asked --------------------------------------------------------------------------------------------------

    @property
    def spent_tokens(self) -> int:
        """What is gone for good, or may be: settled, and reserved by lost tries."""
        return self.tokens + self.open_tokens

    @property
    def spent_cost(self) -> int:
        """The same in micro-USD; what had no price then counts by the price it has now."""
        later = sum(
            price.cost_micro_usd(*counts)
            for model, counts in self.unpriced.items()
            if (price := self.budget.price(model)) is not None
        )
        return self.cost + self.open_cost + later

    @property
    def unpriced_models(self) -> list[str]:
        """Models that were used and still have no price; "" is a use that named none."""
        return sorted(model for model in self.unpriced if self.budget.price(model) is None)

    def active_ms(self, now: int | None = None) -> int:
        """Milliseconds during which at least one body was in flight; up to the last record if `now` is not given."""
        if not self.running:
            return self.active_done_ms
        return self.active_done_ms + max(0, (self.last_time if now is None else now) - self.since)

    # --- carried over a snapshot or a segment -------------------------------------------------------------------

    def carried(self) -> dict[str, Any]:  # JSON
        """All of it as JSON, for a record behind which the earlier ones may be removed. Nothing may be running."""
        return {
            "budget": self.budget.to_json(),
            "given": self.given,
            "steps": self.steps,
            "tokens": self.spent_tokens,  # with those of lost tries: nothing of an earlier epoch is settled in a later one
            "cost": self.cost + self.open_cost,
            "lostTokens": self.lost_tokens,
            "lostCost": self.lost_cost,
            "usage": dict(self.usage),
            "unpriced": {model: list(counts) for model, counts in self.unpriced.items()},
            "activeMs": self.active_ms(),
        }

    def restore(self, data: Mapping[str, Any]) -> None:  # JSON
        """Begin from what `carried` gave."""
        self.budget = Budget.from_json(data["budget"])
        self.given = data["given"]
        self.steps, self.tokens, self.cost = data["steps"], data["tokens"], data["cost"]
        self.lost_tokens, self.lost_cost = data["lostTokens"], data["lostCost"]
        self.usage = dict(data["usage"])
        self.unpriced = {model: (counts[0], counts[1]) for model, counts in data["unpriced"].items()}
        self.active_done_ms = data["activeMs"]
