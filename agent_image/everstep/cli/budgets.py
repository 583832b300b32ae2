"""Budgets on the command line: the options of `local run`, `local budget`, and how `get` shows what was spent."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from everstep.budget import MILLION, Budget, Price
from everstep.cli import inspect, text
from everstep.cli.exits import EPILOG
from everstep.cli.options import anchor_head, directory_option, me, run_argument, with_store
from everstep.clock import SystemClock
from everstep.errors import ConfigError
from everstep.ids import InboxId
from everstep.journal.inbox import BudgetBody, budget_entry_prefix, make_entry
from everstep.journal.spend import Spend
from everstep.journal.store import Store
from everstep.local.files import LocalDir
from everstep.local.locks import FileLock
from everstep.local.sealing import chain_of
from everstep.local.spec import RunSpec

F = TypeVar("F", bound=Callable[..., Any])  # Any: commands take whatever their options say
NONE = "none"


def budget_options(command: F) -> F:
    """--max-steps, --max-tokens, --max-cost-usd, --max-active, --on-exceeded, --price; `budget_from` reads what they give."""
    for option in reversed((
        click.option("--max-steps", metavar="N", help="Budget: at most so many step calls (none: no limit)."),
        click.option("--max-tokens", metavar="N", help="Budget: at most so many tokens, in and out."),
        click.option("--max-cost-usd", metavar="DOLLARS", help="Budget: at most so much money."),
        click.option("--max-active", metavar="SECONDS", help="Budget: seconds with a step's body in flight."),
        click.option("--on-exceeded", type=click.Choice(["park", "fail"]),
                     help="What a step does that does not fit the budget: wait for a person (park), or raise BudgetExceeded."),
        click.option("--price", "prices", multiple=True, metavar="MODEL=IN/OUT",
                     help="Price of a model in dollars per million tokens in and out, e.g. gpt-5*=1.25/10. Repeatable."),
    )):  # fmt: skip
        command = option(command)
    return command


def budget_from(options: Mapping[str, Any]) -> dict[str, Any]:  # Any: what click gives; JSON
    """What the options say, in the form of everstep.budget; {} if nothing. Raises ConfigError naming the option."""
    changes: dict[str, Any] = {}
    for name, option, field, scale in (
        ("max_steps", "--max-steps", "maxSteps", 1),
        ("max_tokens", "--max-tokens", "maxTokens", 1),
        ("max_cost_usd", "--max-cost-usd", "maxCostMicroUSD", MILLION),
        ("max_active", "--max-active", "maxActiveSeconds", 0),
    ):
        if (given := options.get(name)) is not None:
            changes[field] = _amount(option, given, scale)
    if options.get("on_exceeded"):
        changes["onExceeded"] = options["on_exceeded"]
    prices = dict(_price(given) for given in options.get("prices") or ())
    if prices:
        changes["prices"] = prices
    Budget.from_json(changes)
    return changes


def _amount(option: str, given: str, scale: int) -> float | int | None:
    """A limit; whole after scaling, except where `scale` is 0."""
    if given == NONE:
        return None
    try:
        amount = float(given.replace("_", ""))
        whole = round(amount * scale)
    except (ValueError, OverflowError):
        amount, whole = -1.0, 0
    if not 0 <= amount < float("inf") or (scale == 1 and whole != amount):
        raise ConfigError(f"{option} {given!r}: give a number, 0 or more, or {NONE}")
    return amount if scale == 0 else whole


def _price(given: str) -> tuple[str, dict[str, int]]:
    model, equals, rest = given.rpartition("=")
    into, slash, out = rest.partition("/")
    try:
        if not (model and equals and slash):
            raise ValueError(given)
        price = Price.of(model, (float(into), float(out)))
    except ValueError as e:
        raise ConfigError(
            f"--price {given!r}: write MODEL=IN/OUT in dollars per million tokens, e.g. gpt-5=1.25/10"
        ) from e
    return model, {"input": price.input, "output": price.output}


@click.command(epilog=EPILOG)
@run_argument
@budget_options
@click.option("--reason", default="", help="Why; kept in the journal.")
@directory_option
def budget(run: str, reason: str, directory: Path, **limits: Any) -> None:  # Any: of budget_options
    """Change what a run may use, from here on: each limit given replaces the old one.

    The change waits in the run's inbox; a run that is parked at its budget goes on with it.

    \b
    everstep local budget monday --max-tokens 400000 --reason "second half"
    """
    where = LocalDir(directory)

    async def send(spec: RunSpec, store: Store) -> None:
        changes = budget_from(limits)
        if not changes:
            raise ConfigError("nothing to change: give a limit, e.g. --max-tokens 400000")
        chain = await chain_of(where, spec, store)
        history = await inspect.read_history(store, chain, run, anchor_head(where, spec))
        if history.finished is not None:
            raise ConfigError(f"run {run} is over already: {history.summary}")
        park = history.park.seq if history.park else 0
        body = BudgetBody(limits=changes, by=me(), reason=reason)
        entry = make_entry(chain, InboxId(f"{budget_entry_prefix(park)}{SystemClock().nonce()[:16]}"), body)
        await store.inbox_add(spec.journal, entry)
        from everstep.cli.local_run import resume_command  # here: `local run` shows what these options give

        going = FileLock(where.supervisor_lock(spec.run)).is_held()
        how = "takes it up now" if going else f"takes it up when it goes on:\n  {resume_command(spec, where)}"
        click.echo(f"budget of run {run} changed by {body.by}; the run {how}")

    with_store(where, run, send)
    sys.exit(0)


def document(spend: Spend) -> dict[str, Any] | None:  # JSON
    """What `get -o json` tells: the limits, what is spent, and of that what lost tries may have cost. None without a budget."""
    if not spend.budget.limited:
        return None
    return {
        "limits": spend.budget.to_json(),
        "spent": {
            "maxSteps": spend.steps,
            "maxTokens": spend.spent_tokens,
            "maxCostMicroUSD": spend.spent_cost,
            "maxActiveSeconds": spend.active_ms() / 1000,
        },
        "lost": {
            "maxTokens": spend.lost_tokens + spend.open_tokens,
            "maxCostMicroUSD": spend.lost_cost + spend.open_cost,
        },
        "unpricedModels": spend.unpriced_models,
    }


def told(document: Mapping[str, Any] | None) -> str:  # of `document`
    """`12 of 100 steps, 1204 of 5000 tokens (30 by lost tries), $0.013 of $2, 61 s of 3600 s active`"""
    if document is None:
        return ""
    limits, spent, lost = document["limits"], document["spent"], document["lost"]
    parts = []
    for name, show in (
        ("maxSteps", lambda n: f"{n}"),
        ("maxTokens", lambda n: f"{n}"),
        ("maxCostMicroUSD", dollars),
        ("maxActiveSeconds", lambda n: f"{n:g} s"),
    ):
        if name in limits:
            unit = {"maxSteps": " steps", "maxTokens": " tokens", "maxActiveSeconds": " active"}.get(name, "")
            gone = f" ({show(lost[name])} by lost tries)" if lost.get(name) else ""
            parts.append(f"{show(spent[name])} of {show(limits[name])}{unit}{gone}")
    return ", ".join(parts)


def dollars(micro_usd: int) -> str:
    """`$0.0137`"""
    shown = f"{micro_usd / MILLION:.6f}".rstrip("0")
    whole, _, cents = shown.partition(".")
    return f"${whole}" if not cents else f"${whole}.{cents:<02}"


def cure(run: str, reason: str) -> str:
    """The command that lets a held step go on."""
    for word, option in (
        (" steps spent", "--max-steps N"),
        (" tokens spent", "--max-tokens N"),
        (" micro-USD spent", "--max-cost-usd DOLLARS"),
        ("has no price", "--price MODEL=IN/OUT"),
        ("s of work done", "--max-active SECONDS"),
    ):
        if word in reason:
            return f"everstep local budget {text.clean(run)} {option}"
    return f"everstep local budget {text.clean(run)} --max-tokens N"
