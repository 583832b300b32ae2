"""`kubectl everstep budget` in the operator's pod: a change of what a run may use, put into its inbox under its key."""

import argparse
import json

from everstep.budget import Budget
from everstep.cli import inspect
from everstep.errors import ConfigError
from everstep.ids import InboxId
from everstep.journal.chain import Chain
from everstep.journal.inbox import BudgetBody, budget_entry_prefix, make_entry
from everstep.journal.store import Head, Store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `budget` takes besides run, journal and anchor."""
    parser.add_argument("--limits", default="", help="with budget: what changes, JSON in the form of everstep.budget")
    parser.add_argument("--by", default="", help="with budget: who says so")
    parser.add_argument("--reason", default="", help="with budget: why")
    parser.add_argument("--entry", default="", help="with budget: random end of the entry's id; asking again is safe")


async def add_entry(store: Store, chain: Chain, arguments: argparse.Namespace, anchor: Head | None) -> inspect.Document:
    """{"run", "entry", "parked"}. Raises ConfigError, JournalTampered, JournalLost, JournalUnavailable."""
    try:
        limits = json.loads(arguments.limits)
    except ValueError as e:
        raise ConfigError(f"--limits is not JSON: {e}") from e
    Budget.from_json(limits)
    if not limits or not arguments.entry:
        raise ConfigError("budget needs --limits and --entry")
    history = await inspect.read_history(store, chain, arguments.run, anchor)
    if history.finished is not None:
        raise ConfigError(f"run {arguments.run} is over already: {history.summary}")
    entry_id = InboxId(f"{budget_entry_prefix(history.park.seq if history.park else 0)}{arguments.entry}")
    body = BudgetBody(limits=limits, by=arguments.by, reason=arguments.reason)
    await store.inbox_add(chain.journal_id, make_entry(chain, entry_id, body))
    return {"run": arguments.run, "entry": entry_id, "parked": history.park is not None}
