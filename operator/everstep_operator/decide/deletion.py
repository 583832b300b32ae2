"""A run that is gone or going: fence at once, note when, and leave its journal to the sweeper."""

from everstep.ids import Attempt, EpochMs
from everstep.journal.store import Head
from everstep_operator.api.times import rfc3339
from everstep_operator.decide.model import Decision, Fence, JournalDown, MarkDeleted, Observed, Rules


def decide_deleted(seen: Observed, rules: Rules, now: EpochMs) -> Decision:
    """Its pods go by garbage collection. Whatever still runs is cut off: the number is raised past every attempt there was."""
    journal = seen.journal
    if isinstance(journal, JournalDown):
        return Decision(
            look_again_epoch_ms=EpochMs(now + rules.store_down_retry_s * 1000), summary="Deleted", reason="Deleted"
        )
    if journal.attempt == 0 or journal.deleted_at or journal.head is None:
        return Decision(summary="Deleted", reason="Deleted")
    # The anchor went with the object; the head itself fits whatever the journal holds, records that still land included.
    anchor = Head(journal.head.seq, journal.head.hash)
    return Decision(
        actions=(Fence(Attempt(journal.attempt + 1), anchor, None), MarkDeleted(rfc3339(now))),
        again=True,
        summary="Deleted",
        reason="Deleted",
    )
