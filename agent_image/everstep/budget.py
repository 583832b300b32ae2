"""Budgets: what a run may use, what a step may use at most, and prices. Plain data; nothing here looks at a journal.

    everstep.run(agent, goal="…", budget=Budget(max_tokens=200_000, max_cost_micro_usd=2_000_000, prices={"gpt-*": (1.25, 10)}))

    {"maxSteps": 100, "maxTokens": 200000, "maxCostMicroUSD": 2000000, "maxActiveSeconds": 3600, "onExceeded": "park",
     "prices": {"gpt-*": {"input": 1250000, "output": 10000000}}}

The second form, JSON, is what the journal, EVERSTEP_BUDGET and a local run's file hold. Prices there are micro-USD per million
tokens (1.25 dollars per million = 1250000); in Python a pair of numbers is dollars per million, as price lists print them.
Everstep ships no price list: it would be wrong by the time it is read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, cast

from everstep.errors import ConfigError

OnExceeded = Literal["park", "fail"]
MILLION = 1_000_000
_FIELDS = {
    "maxSteps": "max_steps",
    "maxTokens": "max_tokens",
    "maxCostMicroUSD": "max_cost_micro_usd",
    "maxActiveSeconds": "max_active_s",
}
LIMITS = tuple(_FIELDS)
"""The names of the limits in JSON."""


@dataclass(frozen=True)
class Price:
    """Of one model: micro-USD per million tokens, in and out."""

    input: int
    output: int

    def __post_init__(self) -> None:
        for name, amount in (("input", self.input), ("output", self.output)):
            _whole(f"price: {name}", amount)

    def cost_micro_usd(self, input_tokens: int, output_tokens: int) -> int:
        """Rounded up, so that no sum of small calls is free."""
        return -(-(input_tokens * self.input + output_tokens * self.output) // MILLION)

    @property
    def dearest(self) -> int:
        """The dearer of the two: a bound for tokens whose direction is not known yet."""
        return max(self.input, self.output)

    @classmethod
    def of(cls, model: str, given: object) -> "Price":
        """From a Price, a pair of dollars per million tokens, or the JSON form. Raises ConfigError."""
        if isinstance(given, cls):
            return given
        if isinstance(given, Mapping) and set(given) == {"input", "output"}:
            return cls(given["input"], given["output"])
        if isinstance(given, tuple) and len(given) == 2 and all(_is_number(n) for n in given):
            dollars = cast("tuple[float, float]", given)
            return cls(round(dollars[0] * MILLION), round(dollars[1] * MILLION))
        raise ConfigError(
            f"budget: the price of {model!r} must be (input, output) in dollars per million tokens, e.g. (1.25, 10), "
            f"not {given!r}"
        )


@dataclass(frozen=True)
class Budget:
    """What a run may use, over all its attempts. None = no limit.

    max_steps           step calls that begin; further tries of one call count once
    max_tokens          tokens in and out, as steps report and reserve them
    max_cost_micro_usd  money, integer micro-USD (1,000,000 = one dollar)
    max_active_s        seconds during which at least one step's body was in flight; waiting and being parked are free
    on_exceeded         "park": the run waits for a person who raises the budget (default). "fail": the step that does not fit
                        raises BudgetExceeded in the agent
    prices              model name to (input, output) in dollars per million tokens; a name may end in `*`. Money that a step
                        reports itself needs none. A model without a price under a money limit stops the run as if the limit
                        were reached: it never counts as zero

    Raises ConfigError naming the field."""

    max_steps: int | None = None
    max_tokens: int | None = None
    max_cost_micro_usd: int | None = None
    max_active_s: float | None = None
    on_exceeded: OnExceeded = "park"
    prices: Mapping[str, Any] = field(default_factory=dict)  # Any: what Price.of takes; Price afterwards

    def __post_init__(self) -> None:
        for name in ("max_steps", "max_tokens", "max_cost_micro_usd"):
            if (amount := getattr(self, name)) is not None:
                _whole(f"budget: {name}", amount)
        if self.max_active_s is not None and (not _is_number(self.max_active_s) or not self.max_active_s >= 0):
            raise ConfigError(f"budget: max_active_s must be a number of seconds, 0 or more, not {self.max_active_s!r}")
        if self.on_exceeded not in ("park", "fail"):
            raise ConfigError(f'budget: on_exceeded must be "park" or "fail", not {self.on_exceeded!r}')
        if not isinstance(self.prices, Mapping):
            raise ConfigError(f"budget: prices must map model names to prices, not {self.prices!r}")
        object.__setattr__(self, "prices", {str(m): Price.of(str(m), p) for m, p in self.prices.items()})

    @cached_property
    def limited(self) -> bool:
        """There is any limit."""
        return any(getattr(self, name) is not None for name in _FIELDS.values())

    def price(self, model: str) -> Price | None:
        """Of a model: by its name, else by the longest pattern that ends in `*`."""
        found = self.prices.get(model)
        if found is None:
            fitting = [p for p in self.prices if p.endswith("*") and model.startswith(p[:-1])]
            found = self.prices[max(fitting, key=len)] if fitting else None
        return cast("Price | None", found)

    def to_json(self) -> dict[str, Any]:  # JSON
        """Only what is set."""
        data: dict[str, Any] = {k: v for k, name in _FIELDS.items() if (v := getattr(self, name)) is not None}
        if self.on_exceeded != "park":
            data["onExceeded"] = self.on_exceeded
        if self.prices:
            data["prices"] = {m: {"input": p.input, "output": p.output} for m, p in self.prices.items()}
        return data

    @classmethod
    def from_json(cls, data: object) -> "Budget":
        """Raises ConfigError naming the field."""
        return cls().changed(data)

    def changed(self, data: object) -> "Budget":
        """This budget with what `data` (JSON form, any part of it) says otherwise; null lifts a limit, prices are added.
        Raises ConfigError naming the field."""
        if not isinstance(data, Mapping):
            raise ConfigError(f"budget: must be a JSON object, not {data!r}")
        if unknown := sorted(set(data) - {*_FIELDS, "onExceeded", "prices"}):
            raise ConfigError(f"budget: unknown field {unknown[0]}; known: {', '.join(_FIELDS)}, onExceeded, prices")
        fields: dict[str, Any] = {name: data[k] for k, name in _FIELDS.items() if k in data}
        if "onExceeded" in data:
            fields["on_exceeded"] = str(data["onExceeded"]).lower()
        if "prices" in data:
            if not isinstance(data["prices"], Mapping):
                raise ConfigError(f"budget: prices must be an object, not {data['prices']!r}")
            fields["prices"] = {**self.prices, **data["prices"]}
        return replace(self, **fields)


@dataclass(frozen=True)
class Reserve:
    """The most that one try of a step may use, set aside before its body begins and settled by what it reports.

    tokens          tokens in and out together
    cost_micro_usd  money; None: `tokens` at the dearer price of `model`
    model           whose price it is"""

    tokens: int = 0
    cost_micro_usd: int | None = None
    model: str = ""

    def __post_init__(self) -> None:
        _whole("Reserve: tokens", self.tokens)
        if self.cost_micro_usd is not None:
            _whole("Reserve: cost_micro_usd", self.cost_micro_usd)

    @property
    def empty(self) -> bool:
        """Nothing is set aside."""
        return not self.tokens and not self.cost_micro_usd

    def to_json(self, budget: Budget) -> dict[str, int]:
        """As it stands in an intent: {"tokens", "costMicroUSD"}, without money if that cannot be told."""
        cost = self.cost_micro_usd
        if cost is None and self.tokens and (price := budget.price(self.model)) is not None:
            cost = -(-self.tokens * price.dearest // MILLION)
        data = {"tokens": self.tokens} if self.tokens else {}
        return data if cost is None else data | {"costMicroUSD": cost}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(what: str, amount: object) -> None:
    if isinstance(amount, bool) or not isinstance(amount, int) or amount < 0:
        raise ConfigError(f"{what} must be a whole number, 0 or more, not {amount!r}")
