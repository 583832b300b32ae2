"""Reading a journal forward and proving each link on the way: what the supervisor shows and anchors is never assumed."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from everstep.errors import JournalTampered
from everstep.ids import Seq
from everstep.journal.chain import Chain
from everstep.journal.records import Record, Segment, Snapshot, decode
from everstep.journal.store import Head, Store
from everstep.journal.verify import VerifyReport, verify


async def read_whole(store: Store, chain: Chain, anchor: Head) -> tuple[list[Record], Head]:
    """All records of a journal nobody writes to, proved up to its end and against the anchor; and its head.

    Raises JournalTampered (`bad_seq` is in the message, too), JournalLost, JournalUnreadable, JournalUnavailable (retry).
    """
    if anchor.seq == 0 and await store.meta(chain.journal_id) is None and await store.last(chain.journal_id) is None:
        return [], Head(Seq(0), chain.genesis())
    report = await verify(store, chain, chain.journal_id, anchor=anchor, keep=True)
    report.require_whole()
    return [decode(stored.record, stored.seq, chain.sealer) for stored in report.records], report.head


async def applied_ids(store: Store, chain: Chain, records: Sequence[Record]) -> set[str]:
    """Inbox entries that were applied before the newest snapshot or segment, where it keeps their ids apart.

    Raises JournalTampered if they are missing or others, JournalUnavailable (retry)."""
    opened = next((r for r in reversed(records) if isinstance(r, Snapshot | Segment)), None)
    if opened is None or not isinstance(opened.applied, dict):
        return set()
    raw = await store.blob_get(chain.journal_id, opened.applied["$blob"])
    if raw is None or hashlib.sha256(raw).hexdigest() != opened.applied["$blob"]:
        raise JournalTampered(f"the ids kept beside record {opened.seq} are missing or were changed", Seq(opened.seq))
    return set(json.loads(raw if chain.sealer is None else chain.sealer.open_blob(raw, Seq(opened.seq))))


def describe(report: VerifyReport) -> str:
    """What is wrong, beginning with `tampered` or `lost`, for people."""
    if report.whole:
        return report.message
    word = "lost" if report.verdict.value in ("lost", "tail-cut") else "tampered"
    at = f" at record {report.bad_seq}" if report.bad_seq is not None else ""
    return f"journal {word}{at}: {report.message}"


@dataclass
class Tail:
    """A place in a journal that somebody else is writing to. `head` is the last record that was read and fits the chain."""

    store: Store
    chain: Chain
    head: Head

    async def poll(self) -> Sequence[Record]:
        """The records that came since the last call, in order.

        Raises JournalTampered with the first seq that does not fit, JournalUnreadable, JournalUnavailable (retry).
        """
        found = []
        async for stored in self.store.read(self.chain.journal_id, after=self.head.seq):
            expected = Seq(self.head.seq + 1)
            digest = self.chain.link(self.head.hash, stored.record)
            if stored.seq != expected or stored.prev_hash != self.head.hash or digest != stored.hash:
                raise JournalTampered(f"record {expected} was changed while the run was going on", expected)
            found.append(decode(stored.record, expected, self.chain.sealer))
            self.head = Head(expected, stored.hash)
        return found
