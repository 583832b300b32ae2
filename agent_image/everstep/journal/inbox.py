"""Bodies of inbox entries: what operator, supervisor or a person tells a run.

    {"type": "cancel", "by": "jane@example.org", "reason": "wrong backlog"}
    {"type": "settle", "key": "12", "input": "<digest the question was about>", "decision": "done" | "again" | "fail",
     "since": 1764532800000, "value": …, "by": "jane@example.org", "reason": "PO 4812"}
    {"type": "budget", "limits": {"maxTokens": 400000}, "by": "jane@example.org", "reason": "approved"}

The entry's id makes it count once: `cancel-<generation>`, `settle-<HumanRequest uid>`, `budget-<seq of the park, or 0>-<random>`.
The pod checks the MAC, copies the entry into the chain (`settled`, `cancel`, `budget_raised`) with its id, and skips those it
knows.
"""

from functools import cache
from typing import ClassVar, Literal, TypeAlias

import msgspec

from everstep.errors import JournalUnreadable
from everstep.ids import Decision, InboxId
from everstep.journal.chain import Chain
from everstep.journal.records import Json, canonical
from everstep.journal.store import InboxEntry


class _Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    by: str = ""
    """Who said it."""
    reason: str = ""


class CancelBody(_Body, frozen=True, kw_only=True, tag="cancel"):
    """A wish to cancel the run."""

    type: ClassVar[Literal["cancel"]] = "cancel"


class SettleBody(_Body, frozen=True, kw_only=True, tag="settle"):
    """A person's word on an uncertain step."""

    type: ClassVar[Literal["settle"]] = "settle"
    key: str
    input: str
    decision: Decision
    since: int = 0
    """Time of the `uncertain` record that asked, epoch ms: the answer counts for that question alone. 0: not said."""
    value: Json = None


class BudgetBody(_Body, frozen=True, kw_only=True, tag="budget"):
    """A person's word on what the run may use."""

    type: ClassVar[Literal["budget"]] = "budget"
    limits: dict[str, Json]
    """What changes, as in `budget_raised`."""


def budget_entry_prefix(park_seq: int) -> str:
    """How the id of a change of the budget begins that was made while the run was parked by record `park_seq`; 0: while it was
    not. What follows is random."""
    return f"budget-{park_seq}-"


InboxBody: TypeAlias = CancelBody | SettleBody | BudgetBody


@cache
def _decoder() -> msgspec.json.Decoder[InboxBody]:
    return msgspec.json.Decoder(InboxBody)


def make_entry(chain: Chain, entry_id: InboxId, body: InboxBody) -> InboxEntry:
    """An entry ready for `Store.inbox_add`."""
    raw = canonical(msgspec.to_builtins(body))
    if chain.sealer is not None and chain.sealer.seals:
        raw = chain.sealer.seal_inbox(raw, entry_id)
    return InboxEntry(entry_id, raw, chain.inbox_mac(entry_id, raw))


def read_body(chain: Chain, entry: InboxEntry) -> InboxBody | None:
    """The body of a genuine entry; None for a forged or unknown one, which is skipped with a warning."""
    if chain.inbox_mac(entry.id, entry.body) != entry.mac:
        return None
    try:
        return _decoder().decode(entry.body if chain.sealer is None else chain.sealer.open_inbox(entry.body, entry.id))
    except (msgspec.DecodeError, ValueError, RecursionError, JournalUnreadable):
        return None
