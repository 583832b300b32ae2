"""The operator tells the attempt what it has anchored, once a snapshot waits for it, and only after the status holds it."""

import pytest

from everstep.clock import SystemClock
from everstep.ids import Attempt, JournalId, RecordHash, Seq
from everstep.journal.memory import MemoryStore
from everstep.journal.progress import Progress
from everstep.journal.store import Head
from everstep.journal.told import ANCHOR_FIELD, read_anchor
from everstep_operator.decide.model import JournalView
from everstep_operator.journal_view import Journals, anchor_to_tell
from everstep_operator.keyring import KeyRing

JOURNAL = JournalId("6f0e1c1e-0000-4000-8000-000000000001")
HASH = RecordHash("ab" * 32)


def view(opened_seq: int) -> JournalView:
    return JournalView(genesis=HASH, progress=Progress(1, "running", opened_seq=opened_seq))


@pytest.mark.parametrize(
    ("opened_seq", "checkpoint", "told"),
    [
        (40, {"seq": 40, "hash": HASH}, 40),
        (40, {"seq": 77, "hash": HASH}, 77),
        (40, {"seq": 39, "hash": HASH}, None),
        (0, {"seq": 77, "hash": HASH}, None),
        (40, None, None),
        (40, {}, None),
    ],
)
def test_only_an_anchor_behind_the_waiting_snapshot_is_told(
    opened_seq: int, checkpoint: dict[str, object] | None, told: int | None
) -> None:
    assert anchor_to_tell(view(opened_seq), checkpoint) == (None if told is None else Head(Seq(told), HASH))
    assert anchor_to_tell(JournalView(genesis=HASH), checkpoint) is None


async def test_it_stands_in_the_journals_meta() -> None:
    store = MemoryStore()
    ring = KeyRing({"k1": b"k" * 32})
    await store.fence(JOURNAL, Attempt(1), Head(Seq(0), ring.chain(JOURNAL, "k1").genesis()), {})
    journals = Journals(store, ring, SystemClock(), timeout_s=1.0)
    await journals.tell_anchor(JOURNAL, Head(Seq(9), HASH))
    meta = await store.meta(JOURNAL)
    assert meta is not None
    assert read_anchor(meta.fields[ANCHOR_FIELD]) == Head(Seq(9), HASH)
