"""What a journal tells after the run: when each loss was overcome, what was replayed, what was not paid twice."""

from collections.abc import Iterable, Sequence

from everstep.journal.records import Record, Result
from tests.demo.tally import Loss

OUTCOMES = ("result", "failure", "abandoned", "settled")


def outcomes(records: Iterable[Record]) -> list[Record]:
    """Every record that ended a step."""
    return [r for r in records if r.kind in OUTCOMES and not (r.kind == "settled" and r.decision == "again")]


def attempts(records: Iterable[Record]) -> list[int]:
    """Every attempt that wrote something, in order."""
    return sorted({r.attempt for r in records})


def replayed(records: Sequence[Record], name: str = "") -> int:
    """How often a recorded step (of this name) was replayed instead of run: once per later attempt that got past it."""
    ended = [r for r in outcomes(records) if not name or r.name == name]
    return sum(sum(r.attempt < attempt for r in ended) for attempt in attempts(records))


def replayed_by_the_last(records: Sequence[Record]) -> int:
    """How many steps the last attempt took from the journal."""
    return sum(r.attempt < records[-1].attempt for r in outcomes(records))


def place_losses(losses: Iterable[Loss], records: Sequence[Record]) -> None:
    """Fill in what was done before each loss, and when the next new step of a later attempt began."""
    for loss in losses:
        before = [r for r in records if r.time <= loss.at_epoch_ms]
        attempt = before[-1].attempt if before else 0
        loss.steps_before = len(outcomes(before))
        later = [r for r in records if r.kind == "intent" and r.attempt > attempt]
        loss.resumed_epoch_ms = later[0].time if later else None


def usage(records: Iterable[Record]) -> dict[str, int]:
    """Tokens as the recorded results tell them: a replayed step adds nothing."""
    total: dict[str, int] = {}
    for record in records:
        if isinstance(record, Result):
            for name, amount in (record.usage or {}).items():
                total[name] = total.get(name, 0) + amount
    return total
