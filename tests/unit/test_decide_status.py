"""The status as a whole: complete, current, quiet (design §3, §6; E24, C28, C60, C61)."""

import random

import pytest
from tests.support.observed import (
    NOW,
    TIMER,
    UNCERTAIN,
    Case,
    at,
    ended,
    finished,
    journal,
    park,
    pod,
    running,
    spec,
    status,
)

from everstep.journal.progress import Progress
from everstep_operator.api.words import Cond
from everstep_operator.decide.model import ContainerState, JournalDown

SITUATIONS = {
    "new": Case(prepared=False),
    "bump": Case(),
    "pending": Case(status=status(1), pods=(pod(1, state=ContainerState.WAITING),), journal=journal(0, owner=None)),
    "running": Case(status=status(1), pods=(pod(1),), journal=journal(5, progress=running())),
    "lost": Case(status=status(1), pods=(ended(1, 1),), journal=journal(5)),
    "parked": Case(status=status(1), journal=journal(5, last=park(5, 1, TIMER, wake=NOW + 5000))),
    "uncertain": Case(status=status(1), journal=journal(5, last=park(5, 1, UNCERTAIN))),
    "suspended": Case(spec=spec(desiredState="Suspended"), status=status(1), journal=journal(5)),
    "succeeded": Case(status=status(1), journal=journal(5, last=finished(5, 1))),
    "failed": Case(status=status(1), journal=journal(5, last=finished(5, 1, "failed"))),
    "down": Case(status=status(1), journal=JournalDown("no", NOW)),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_every_write_sets_every_condition_with_reason_and_generation(name: str) -> None:
    turn = SITUATIONS[name].but(generation=7).turn()
    assert [c.type for c in turn.status.conditions] == [c.value for c in Cond]
    assert all(c.reason and c.observed_generation == 7 and c.last_transition_time for c in turn.status.conditions)
    assert turn.status.observed_generation == 7


@pytest.mark.parametrize("name", SITUATIONS)
def test_deciding_twice_on_what_was_written_changes_nothing_more(name: str) -> None:
    """C61: one status write per transition. What comes next is an action or a wait, not another write."""
    case = SITUATIONS[name]
    first = case.turn()
    assert first.decision.status is not None
    if first.status.attempt != (case.status or {}).get("attempt", 0):
        return  # a bump: the next turn acts on the new number
    second = case.but(status=dict(first.decision.status.status)).turn()
    assert second.decision.status is None, f"{first.word} then {second.word}"
    assert second.decision.events == ()


@pytest.mark.parametrize("name", SITUATIONS)
def test_deciding_is_pure(name: str) -> None:
    case = SITUATIONS[name]
    assert case.turn().decision == case.turn().decision


def test_transition_times_stay_while_the_status_stays() -> None:
    first = SITUATIONS["running"].turn().decision.status
    assert first is not None
    later = SITUATIONS["running"].but(
        status=dict(first.status), now=at(600_000), journal=journal(9, progress=running(recorded=5))
    )
    then = later.turn()
    was = {c["type"]: c["lastTransitionTime"] for c in first.status["conditions"]}
    assert {c.type: c.last_transition_time for c in then.status.conditions} == was
    over = later.but(journal=journal(9, last=finished(9, 1))).turn()
    moved = {c.type for c in over.status.conditions if c.last_transition_time != was[c.type]}
    assert moved == {"Succeeded", "Finished", "PodReady", "JournalVerified"} - {"JournalVerified"}


def test_progress_alone_is_written_at_a_bounded_rate_and_moves_the_anchor() -> None:
    first = SITUATIONS["running"].turn().decision.status
    assert first is not None
    busy = SITUATIONS["running"].but(status=dict(first.status), journal=journal(6, progress=running(recorded=4)))
    assert busy.but(now=at(4000)).turn().decision.status is None
    turn = busy.but(now=at(5000)).turn()
    assert turn.status.checkpoint is not None
    assert turn.status.checkpoint.seq == 6
    assert turn.status.steps.recorded == 4
    assert turn.decision.events == ()


def test_an_anchor_never_goes_back() -> None:
    rng = random.Random(20260301)
    held = dict(status(1))
    newest = 0
    for _ in range(200):
        seq = rng.randrange(0, 40)
        held_seq = held["checkpoint"]["seq"]
        view = journal(seq, progress=running(recorded=seq))
        turn = Case(status=held, pods=(pod(1),), journal=view, now=at(rng.randrange(0, 10**6))).turn()
        assert turn.status.checkpoint is not None
        assert turn.status.checkpoint.seq >= held_seq
        newest = max(newest, turn.status.checkpoint.seq)
        if turn.decision.status is not None and turn.condition("Finished")[0] == "False":
            held = dict(turn.decision.status.status)
    assert newest > 20


def test_the_columns() -> None:
    told = Progress(
        attempt=1, state="running", recorded=34, replayed=20, step_key="34", step_name="classify", step_state="intent",
        step_epoch_ms=NOW,
        usage={"inputTokens": 800, "outputTokens": 96, "costMicroUSD": 120},
    )  # fmt: skip
    turn = Case(status=status(1), pods=(pod(1),), journal=journal(70, progress=told)).turn()
    wire = turn.decision.status
    assert wire is not None
    got = wire.status
    assert (got["summary"], got["reason"], got["steps"]["recorded"], got["attempt"], got["restarts"]) == (
        "Running",
        "StepRunning",
        34,
        1,
        0,
    )
    assert (got["pod"], got["node"], got["lastStep"]["name"], got["usage"]["totalTokens"]) == (
        "triage-1",
        "worker",
        "classify",
        896,
    )
    assert got["usage"]["costMicroUSD"] == 120
    assert "waiting" not in got
    parked = SITUATIONS["uncertain"].turn().decision.status
    assert parked is not None
    assert parked.status["waiting"]["since"] == "2026-02-02T02:39:55Z"


def test_the_summary_of_an_attempt_from_its_start_to_its_first_step() -> None:
    case = Case(status=status(2, summary="Starting", reason="Disrupted"), pods=(pod(2),))
    seen = [
        case.but(journal=journal(9, attempt=2, owner=None)).turn().word,
        case.but(journal=journal(9, attempt=2, progress=running(2, state="replaying"))).turn().word,
        case.but(journal=journal(9, attempt=2, progress=running(2))).turn().word,
    ]
    assert seen == ["Starting/Disrupted", "Replaying/Replaying", "Running/StepRunning"]


def test_resumed_is_told_once_with_figures() -> None:
    entries = status(2)["attempts"]
    entries[0] |= {"class": "Disruption", "endTime": "2026-02-02T02:39:57.100Z"}
    told = running(2, replayed=36, replay_ms=11, resumed_epoch_ms=NOW)
    case = Case(
        status=status(2, entries=entries, summary="Replaying"),
        pods=(pod(2),),
        journal=journal(80, attempt=2, progress=told),
    )
    turn = case.turn()
    notes = [e.note for e in turn.decision.events if e.reason == "Resumed"]
    assert notes == ["attempt 2 replayed 36 steps in 11 ms, chain verified, 2.9 s after the loss"]
    assert turn.decision.status is not None
    assert "Resumed" not in case.but(status=dict(turn.decision.status.status)).turn().told


def test_verified_only_by_an_attempt_that_replayed() -> None:
    case = Case(status=status(1), pods=(pod(1),))
    assert (
        case.but(journal=journal(5, progress=running(state="replaying"))).turn().condition("JournalVerified")[0]
        == "Unknown"
    )
    live = case.but(journal=journal(5, progress=running())).turn()
    assert live.condition("JournalVerified") == ("True", "Verified")
    assert live.decision.status is not None
    lost = Case(status=dict(live.decision.status.status), pods=(ended(1, 137),), journal=journal(5)).turn()
    assert lost.condition("JournalVerified")[0] == "True", "what was proved stays proved"


def test_what_an_old_attempt_tells_is_not_taken_for_the_new_one() -> None:
    """C18, C33: progress and pod belong to an attempt."""
    turn = Case(
        status=status(2, summary="Starting"), pods=(pod(2),), journal=journal(9, attempt=2, progress=running(1))
    ).turn()
    assert turn.word == "Starting/Disrupted"


def test_the_status_is_bounded() -> None:
    held = status(60)
    held["attempts"] = held["attempts"][-10:]
    turn = Case(
        status=held, pods=(ended(60, 1, agent_message="x" * 5000),), journal=journal(5, attempt=60, progressed=5)
    ).turn()
    assert len(turn.status.attempts) == 10
    assert turn.status.attempts[-1].number == 61
    assert all(len(c.message) <= 2048 for c in turn.status.conditions)
    assert all(len(a.message) <= 512 for a in turn.status.attempts)
    assert all(len(e.note.encode()) <= 1024 for e in turn.decision.events)
