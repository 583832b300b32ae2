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
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from everstep.errors import JournalUnreadable
from everstep.ids import InboxId
from everstep.journal.chain import Chain
from everstep.journal.records import Json, canonical
from everstep.journal.store import InboxEntry


class CancelBody(BaseModel):
    """A wish to cancel the run."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    type: Literal["cancel"] = "cancel"
    by: str = ""
    reason: str = ""


class SettleBody(BaseModel):
    """A person's word on an uncertain step."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    type: Literal["settle"] = "settle"
    key: str
    input: str
    decision: Literal["done", "again", "fail"]
    since: int = 0
    """Time of the `uncertain` record that asked, epoch ms: the answer counts for that question alone. 0: not said."""
    value: Json = None
    by: str = ""
    reason: str = ""


class BudgetBody(BaseModel):
    """A person's word on what the run may use."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    type: Literal["budget"] = "budget"
    limits: dict[str, Json]
    """What changes, as in `budget_raised`."""
    by: str = ""
    reason: str = ""


def budget_entry_prefix(park_seq: int) -> str:
    """How the id of a change of the budget begins that was made while the run was parked by record `park_seq`; 0: while it was
    not. What follows is random."""
    return f"budget-{park_seq}-"


InboxBody: TypeAlias = Annotated[CancelBody | SettleBody | BudgetBody, Field(discriminator="type")]


@cache
def _adapter() -> TypeAdapter[InboxBody]:
    return TypeAdapter(InboxBody)


def make_entry(chain: Chain, entry_id: InboxId, body: InboxBody) -> InboxEntry:
    """An entry ready for `Store.inbox_add`."""
    raw = canonical(body.model_dump())
    if chain.sealer is not None and chain.sealer.seals:
        raw = chain.sealer.seal_inbox(raw, entry_id)
    return InboxEntry(entry_id, raw, chain.inbox_mac(entry_id, raw))


def read_body(chain: Chain, entry: InboxEntry) -> InboxBody | None:
    """The body of a genuine entry; None for a forged or unknown one, which is skipped with a warning."""
    if chain.inbox_mac(entry.id, entry.body) != entry.mac:
        return None
    try:
        return _adapter().validate_json(
            entry.body if chain.sealer is None else chain.sealer.open_inbox(entry.body, entry.id)
        )
    except (ValueError, JournalUnreadable):
        return None
