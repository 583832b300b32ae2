"""What must be true after any loss: judged from the journal as stored and from the effects' own file.

`openings` counts, per idempotency key, the tries that a loss caught in flight: an intent after which the journal has nothing
more of that step in the same attempt. A step may have done its effect once, plus once per such loss, and not at all more.
"""

from collections import Counter
from dataclasses import dataclass, field

from everstep.journal.records import Intent, Record, Uncertain
from tests.crash.driver import Driver

CLOSING = {"result", "failure", "abandoned", "try_failed"}


@dataclass
class StepStory:
    """All that the journal tells of one step."""

    key: str
    name: str
    effect: str
    idem: str
    intents: int = 0
    failed_tries: int = 0
    lost: int = 0
    """Tries that ended with their process."""
    outcomes: int = 0
    outcome_attempt: int = 0
    uncertain: int = 0
    settled: list[str] = field(default_factory=list)


def stories(records: list[Record]) -> dict[str, StepStory]:
    """Per step key."""
    told: dict[str, StepStory] = {}
    open_in: dict[str, int] = {}
    for record in records:
        key = record.key
        if isinstance(record, Intent):
            story = told.setdefault(key, StepStory(key, record.name, record.effect, record.idem))
            assert story.idem == record.idem, f"the idempotency key of {key} changed"
            assert story.outcomes == 0, f"{record.name} {key}: an intent after its outcome"
            story.lost += key in open_in
            story.intents += 1
            open_in[key] = record.attempt
        elif record.kind in CLOSING or record.kind == "settled":
            story = told[key]
            if record.kind == "settled":
                story.settled.append(f"{record.decision} by {record.by}")
                story.lost += open_in.pop(key, None) is not None
                if record.decision == "again":
                    continue
            else:
                own = open_in.pop(key, None) == record.attempt
                if record.kind == "abandoned" and not own:  # nobody waits any more for what was lost in flight
                    story.lost += 1
                else:
                    assert own, f"{record.kind} of {key} without its own intent"
            if record.kind == "try_failed":
                story.failed_tries += 1
            else:
                story.outcomes += 1
                story.outcome_attempt = record.attempt
        elif isinstance(record, Uncertain):
            told[key].uncertain += 1
            if record.exhausted:  # its last try is known to have failed
                assert open_in.pop(key, None) == record.attempt, f"exhausted tries of {key} without its own intent"
                told[key].failed_tries += 1
    return told


def check_journal(records: list[Record]) -> None:
    """No gap, attempts only grow, one outcome per step, `finished` last and once."""
    assert [r.seq for r in records] == list(range(1, len(records) + 1))
    attempts = [r.attempt for r in records]
    assert attempts == sorted(attempts), "an older attempt wrote after a newer one"
    assert [r.kind for r in records].count("run_started") == 1
    assert [r.kind for r in records].count("finished") == (records[-1].kind == "finished")
    for story in stories(records).values():
        assert story.outcomes <= 1, f"{story.name} {story.key} has {story.outcomes} outcomes"


async def check(driver: Driver, names: tuple[str, ...], at_most_once: set[str]) -> None:
    """Judge a finished run: every named effect happened, none more often than its losses allow."""
    records = await driver.records()
    check_journal(records)
    told = stories(records)
    lines = driver.lines()
    by_idem = {story.idem: story for story in told.values()}
    counts = Counter(str(line["name"]) for line in lines)
    assert sorted(counts) == sorted(names), f"effects {sorted(counts)}"
    for story in told.values():
        done = [line for line in lines if line["idem"] == story.idem]
        assert story.outcomes == 1, f"{story.name} {story.key}: {story}"
        assert len(done) <= 1 + story.failed_tries + story.lost, f"{story.name}: {len(done)} effects, {story}"
        late = [line for line in done if int(str(line["attempt"])) > story.outcome_attempt]
        assert not late, f"a recorded step ran again: {late}"
        if story.effect == "at_most_once":
            assert len(done) == 1, f"{story.name} {story.key}: {len(done)} effects of at_most_once, {story}"
            licences = sum(said.startswith("again ") for said in story.settled)
            assert story.intents <= 1 + story.failed_tries + licences, f"{story.name} ran again unasked: {story}"
            assert len(story.settled) >= story.lost, f"{story.name} was lost in flight and not settled: {story}"
    for line in lines:
        assert line["idem"] in by_idem, f"an effect without an intent: {line}"
        if line["name"] in at_most_once:
            assert by_idem[str(line["idem"])].effect == "at_most_once"


def lost_tries(records: list[Record]) -> int:
    """How many steps were caught in flight by losses."""
    return sum(story.lost for story in stories(records).values())
