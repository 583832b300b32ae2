"""Parking, waking, answers, suspending (design §6; E29, C30, C31, C35, C41, C42, C63)."""

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs
from tests.support.observed import (
    NAME,
    NOW,
    TIMER,
    UID,
    UNCERTAIN,
    Case,
    attempts,
    ended,
    journal,
    park,
    pod,
    running,
    spec,
    status,
)

from everstep.ids import JournalId
from everstep.journal.inbox import SettleBody
from everstep.journal.records import Waited
from everstep_operator.api.request import request_name
from everstep_operator.decide.model import AddInbox, Answer, Asked, CreateRequest, Refusal, RequestView

QUESTION = request_name(NAME, UNCERTAIN)
PARKED = attempts(
    {"endTime": "2026-02-02T02:00:00Z", "class": "Parked", "reason": "Parked", "pod": "triage-1", "podUID": "pod-1"}
)


def asking(response: Answer | None = None, **changes: Any) -> RequestView:
    given = RequestView(QUESTION, "hreq-1", UID, "uncertain", "12", "a" * 64, response=response, state="Open")
    return replace(given, **changes)


def answer(decision: str = "done", **changes: Any) -> Answer:
    return replace(Answer(decision, {"id": 1}, "PO 4812", "jane@example.org", "a" * 64), **changes)


def parked(*waits: Waited, wake: int | None = None, **more: Any) -> Case:
    """A run that parked with attempt 1, and what of its journal a test adds."""
    view = journal(7, last=park(7, 1, *waits, wake=wake), **more)
    return Case(status=status(1, anchor=7, entries=PARKED), journal=view)


# --- resting


def test_a_timer_waits_without_pod_or_poll() -> None:
    """Promise 6: only a timer in a queue."""
    turn = parked(TIMER, wake=NOW + 60_000).turn()
    assert turn.word == "Waiting/TimerPending"
    assert turn.condition("Parked") == ("True", "TimerPending")
    assert turn.looks_again_in_s() == 60
    assert not turn.decision.again
    assert turn.status.waiting is not None
    assert turn.status.waiting.kind == "timer"
    assert turn.status.pod == ""
    assert turn.condition("Reconciling") == ("False", "AsDesired")
    assert turn.condition("PodReady") == ("False", "NoPod")


def test_parking_takes_the_pod_away_and_anchors_the_park() -> None:
    done = ended(1, 0, phase="Succeeded")
    turn = Case(
        status=status(1, anchor=3), pods=(done,), journal=journal(7, last=park(7, 1, TIMER, wake=NOW + 60_000))
    ).turn()
    assert turn.acts == ["DeletePod(triage-1)"]
    assert turn.status.checkpoint is not None
    assert turn.status.checkpoint.seq == 7
    assert turn.told == ["Parked"]
    assert turn.last_attempt().class_ == "Parked"
    assert turn.status.restarts == 0, "a park is no loss"


def test_a_drain_at_the_park_is_nothing() -> None:
    """E29: DisruptionTarget on a pod that parked."""
    drained = ended(
        1, 143, conditions=({"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"},)
    )
    turn = Case(status=status(1), pods=(drained,), journal=journal(7, last=park(7, 1, TIMER, wake=NOW + 60_000))).turn()
    assert turn.word == "Waiting/TimerPending"
    assert turn.status.restarts == 0


def test_waiting_is_quiet() -> None:
    case = parked(TIMER, wake=NOW + 60_000)
    first = case.turn().decision.status
    assert first is not None
    turn = case.but(status=dict(first.status)).turn()
    assert turn.decision.status is None
    assert turn.decision.events == ()
    assert turn.acts == []


def test_a_due_timer_wakes_it() -> None:
    turn = parked(TIMER, wake=NOW - 1).turn()
    assert turn.status.attempt == 2
    assert turn.last_attempt().cause == "TimerDue"
    assert turn.told == ["Woken"]
    assert turn.word == "Starting/TimerDue"
    assert turn.status.waiting is None


def test_repin_wakes_a_parked_run_once_to_replay_with_the_image_that_was_chosen() -> None:
    """C62: parked, the image changed."""
    chosen = "registry.example/agent:2"
    changed = spec(agent={"entrypoint": "triage:run", "image": chosen})
    case = parked(TIMER, wake=NOW + 60_000).but(spec=changed, annotations={"everstep.dev/repin": chosen})
    pinned = {**(case.status or {}), "agentImage": "x@sha256:" + "a" * 64, "agentImageFrom": "registry.example/agent:1"}
    turn = case.but(status=pinned).turn()
    assert turn.last_attempt().cause == "SpecChanged"
    assert turn.status.attempt == 2
    # without the annotation a change of the image waits for the timer, as it always did; nor is it woken for another image
    for annotations in ({}, {"everstep.dev/repin": "registry.example/agent:3"}):
        assert case.but(status=pinned, annotations=annotations).turn().status.attempt == 1
    # it has replayed with it and parked again, or its pod never ran: once is enough
    entries = attempts(
        {}, {"cause": "SpecChanged", "endTime": "2026-02-02T02:00:00Z", "class": "Parked", "podUID": "p"}
    )
    again = status(2, anchor=7, entries=entries, agentImageFrom="registry.example/agent:1")
    held = journal(7, attempt=2, last=park(7, 2, TIMER, wake=NOW + 60_000))
    assert case.but(status=again, journal=held).turn().status.attempt == 2


def test_a_park_of_an_earlier_attempt_is_history() -> None:
    """Attempt 2 was made to go on and was lost before it wrote: it is replaced, not left parked."""
    entries = [*PARKED, {"number": 2, "cause": "TimerDue", "pod": "triage-2", "podUID": "pod-2"}]
    turn = Case(
        status=status(2, anchor=7, entries=entries),
        pods=(ended(2, 137),),
        journal=journal(7, attempt=2, last=park(7, 1, TIMER, wake=NOW - 1)),
    ).turn()
    assert turn.status.attempt == 3
    assert turn.status.attempts[1].class_ == "OutOfMemory"


def test_a_run_whose_clock_is_behind_does_not_spin() -> None:
    entries = attempts(
        {"cause": "TimerDue", "startTime": "2026-02-02T03:30:00Z", "endTime": "2026-02-02T03:33:00Z", "class": "Parked"}
    )
    case = Case(
        status=status(1, anchor=7, entries=entries), journal=journal(7, last=park(7, 1, TIMER, wake=NOW - 3_600_000))
    )
    turn = case.turn()
    assert turn.status.attempt == 1
    pause_s = turn.looks_again_in_s()
    assert pause_s is not None
    assert pause_s > 0


def test_nothing_wakes_while_the_parked_pod_still_lives() -> None:
    """E29: the answer comes before the pod is gone: one pod at a time, the wake-up is not lost."""
    case = parked(TIMER, wake=NOW - 1).but(pods=(pod(1),))
    turn = case.turn()
    assert turn.status.attempt == 1
    assert turn.acts == ["DeletePod(triage-1)"]
    assert turn.looks_again_in_s() == 1
    assert case.but(pods=(ended(1, 0),)).turn().status.attempt == 2


# --- questions


def test_an_uncertain_step_is_asked_about() -> None:
    turn = parked(UNCERTAIN).turn()
    assert turn.acts == [f"CreateRequest({QUESTION})"]
    made = turn.decision.actions[0]
    assert isinstance(made, CreateRequest)
    assert made.wait == UNCERTAIN
    assert turn.decision.again
    assert turn.word == "Uncertain/StepUncertain"
    assert "kubectl everstep settle triage 12" in turn.message("Parked")
    assert "send_mail #12" in turn.message("Parked")


def test_exhausted_tries_are_asked_about_and_are_no_uncertainty() -> None:
    exhausted = structs.replace(UNCERTAIN, kind="exhausted")
    turn = parked(exhausted).turn()
    [name] = turn.acts
    assert name.startswith("CreateRequest(")
    assert turn.word == "Waiting/TriesExhausted"
    assert "failed in all tries: kubectl everstep settle triage 12" in turn.message("Parked")
    both = parked(UNCERTAIN, structs.replace(exhausted, key="13")).turn()
    assert both.word == "Uncertain/StepUncertain"
    assert "may have happened, or failed in all tries" in both.message("Parked")


def test_asked_once() -> None:
    turn = parked(UNCERTAIN, requests={QUESTION: "hreq-1"}).but(requests=(asking(),)).turn()
    assert turn.acts == []
    assert turn.looks_again_in_s() is None, "an answer is an event; no poll"
    assert turn.status.waiting is not None
    assert turn.status.waiting.request == QUESTION


def test_a_question_that_somebody_deleted_is_asked_again() -> None:
    """C31."""
    turn = parked(UNCERTAIN, requests={QUESTION: "hreq-1"}).turn()
    assert turn.acts == [f"CreateRequest({QUESTION})"]


@pytest.mark.parametrize("stranger", [{"uid": "hreq-2"}, {"run_uid": JournalId("another")}])
def test_requests_that_the_operator_did_not_create_are_not_heeded(stranger: dict[str, str]) -> None:
    turn = parked(UNCERTAIN, requests={QUESTION: "hreq-1"}).but(requests=(asking(answer(), **stranger),)).turn()
    assert not any(a.startswith("AddInbox") for a in turn.acts)
    assert turn.status.attempt == 1


def test_an_answer_goes_into_the_inbox_then_wakes_the_run() -> None:
    """C42: Answered, Applied, running are separate times."""
    case = parked(UNCERTAIN, requests={QUESTION: "hreq-1"}).but(requests=(asking(answer()),))
    turn = case.turn()
    assert turn.acts == ["AddInbox(settle-hreq-1)", f"SetRequestState({QUESTION})"]
    assert turn.decision.again
    add = turn.decision.actions[0]
    assert isinstance(add, AddInbox)
    assert isinstance(add.body, SettleBody)
    assert (add.body.key, add.body.decision, add.body.by) == ("12", "done", "jane@example.org")
    assert turn.status.attempt == 1, "first recorded, then an attempt"
    delivered = parked(UNCERTAIN, requests={QUESTION: "hreq-1"}, inbox=("settle-hreq-1",))
    woken = delivered.but(requests=(asking(answer(), state="Answered"),)).turn()
    assert woken.status.attempt == 2
    assert woken.last_attempt().cause == "Answered"
    assert woken.last_attempt().inbox == ("settle-hreq-1",)


def test_an_answer_about_other_arguments_is_not_delivered() -> None:
    """C41."""
    stale = answer(arguments_digest="b" * 64)
    turn = parked(UNCERTAIN, requests={QUESTION: "hreq-1"}).but(requests=(asking(stale),)).turn()
    assert not any(a.startswith("AddInbox") for a in turn.acts)


def test_the_same_answer_wakes_no_second_attempt() -> None:
    """E29: the same answer twice; one resume."""
    entries = [
        *PARKED,
        {"number": 2, "cause": "Answered", "inbox": ["settle-hreq-1"], "pod": "triage-2", "podUID": "pod-2"},
    ]
    case = Case(
        status=status(2, anchor=7, entries=entries),
        pods=(pod(2),),
        journal=journal(
            9,
            attempt=2,
            inbox=("settle-hreq-1",),
            requests={QUESTION: "hreq-1"},
            applied=("settle-hreq-1",),
            progress=running(2),
        ),
        requests=(asking(answer(), state="Answered"),),
    )
    turn = case.turn()
    assert turn.status.attempt == 2
    assert not any(a.startswith("AddInbox") for a in turn.acts)


def test_applied_means_that_the_record_was_seen() -> None:
    entries = [
        *PARKED,
        {"number": 2, "cause": "Answered", "inbox": ["settle-hreq-1"], "pod": "triage-2", "podUID": "pod-2"},
    ]
    case = Case(
        status=status(2, anchor=7, entries=entries),
        pods=(pod(2),),
        journal=journal(
            9,
            attempt=2,
            inbox=("settle-hreq-1",),
            requests={QUESTION: "hreq-1"},
            applied=("settle-hreq-1",),
            progress=running(2),
        ),
        requests=(asking(answer(), state="Answered"),),
    )
    assert f"SetRequestState({QUESTION})" in case.turn().acts
    before = case.but(
        journal=journal(
            7, attempt=2, last=park(7, 1, UNCERTAIN), inbox=("settle-hreq-1",), requests={QUESTION: "hreq-1"}
        )
    )
    assert f"SetRequestState({QUESTION})" not in before.turn().acts


def test_an_answer_that_the_run_could_not_take_is_followed_by_a_new_question() -> None:
    refused = structs.replace(UNCERTAIN, reason="value: expected a list")
    entries = [
        *PARKED,
        {
            "number": 2,
            "cause": "Answered",
            "inbox": ["settle-hreq-1"],
            "endTime": "2026-02-02T02:10:00Z",
            "class": "Parked",
        },
    ]
    case = Case(
        status=status(2, anchor=9, entries=entries),
        journal=journal(
            9, attempt=2, last=park(9, 2, refused), inbox=("settle-hreq-1",), requests={QUESTION: "hreq-1"}
        ),
        requests=(asking(answer(), state="Answered"),),
    )
    turn = case.turn()
    second = request_name(NAME, UNCERTAIN, 2)
    assert turn.acts == [f"SetRequestState({QUESTION})", f"CreateRequest({second})"]
    assert turn.status.attempt == 2, "no attempt for an answer it has had"
    assert "expected a list" in turn.message("Parked")


def test_two_questions_answer_one() -> None:
    """C35, C36: the answer names its question; the other one stays open."""
    other = structs.replace(UNCERTAIN, key="13", name="charge", input="c" * 64)
    second = request_name(NAME, other)
    requests = {QUESTION: "hreq-1", second: "hreq-2"}
    views = (
        asking(),
        replace(
            asking(answer(arguments_digest="c" * 64)), name=second, uid="hreq-2", key="13", arguments_digest="c" * 64
        ),
    )
    turn = parked(UNCERTAIN, other, requests=requests).but(requests=views).turn()
    assert [a for a in turn.acts if a.startswith("AddInbox")] == ["AddInbox(settle-hreq-2)"]
    woken = parked(UNCERTAIN, other, requests=requests, inbox=("settle-hreq-2",)).but(requests=views).turn()
    assert woken.last_attempt().inbox == ("settle-hreq-2",)


def test_a_question_that_could_not_be_created_is_told() -> None:
    refusal = Refusal(Asked.CREATE_REQUEST, 403, "Forbidden", "policy says no", NOW, 1)
    turn = parked(UNCERTAIN).but(refusals=(refusal,)).turn()
    assert turn.word == "Blocked/RequestRefused"
    assert turn.condition("Parked")[0] == "True"
    assert turn.acts == []


# --- suspend and resume


def test_suspending_stops_the_pod_and_charges_nothing() -> None:
    """C63."""
    case = Case(
        spec=spec(desiredState="Suspended"), status=status(1), pods=(pod(1),), journal=journal(5, progress=running())
    )
    turn = case.turn()
    assert turn.acts == ["DeletePod(triage-1)"]
    assert turn.word == "Running/Suspending"
    assert turn.decision.status is not None
    held = dict(turn.decision.status.status)
    gone = case.but(status=held, pods=(ended(1, 143, gone=True),)).turn()
    assert gone.word == "Suspended/Suspended"
    assert gone.condition("Suspended") == ("True", "Suspended")
    assert gone.last_attempt().class_ == "Stopped"
    assert gone.status.restarts == 0
    assert gone.looks_again_in_s() is None


def test_suspended_stays_so_although_a_timer_is_due_and_an_answer_is_there() -> None:
    case = parked(TIMER, UNCERTAIN, wake=NOW - 1, inbox=("settle-hreq-1",), requests={QUESTION: "hreq-1"})
    turn = case.but(spec=spec(desiredState="Suspended"), requests=(asking(answer()),)).turn()
    assert turn.status.attempt == 1
    assert turn.word == "Suspended/Suspended"
    assert turn.condition("Parked")[0] == "True"


def test_resumed_at_once() -> None:
    entries = attempts(
        {
            "endTime": "2026-02-02T02:00:00Z",
            "class": "Stopped",
            "reason": "Suspended",
            "pod": "triage-1",
            "podUID": "pod-1",
        }
    )
    turn = Case(status=status(1, entries=entries), journal=journal(5)).turn()
    assert turn.status.attempt == 2
    assert turn.last_attempt().cause == "Resumed"


def test_resumed_while_the_old_pod_is_still_leaving() -> None:
    entries = attempts(
        {"class": "Stopped", "reason": "Suspended", "pod": "triage-1", "podUID": "pod-1", "node": "worker"}
    )
    case = Case(status=status(1, entries=entries), journal=journal(5))
    leaving = case.but(pods=(pod(1, deletion_epoch_ms=NOW),)).turn()
    assert leaving.status.attempt == 1
    over = case.but(pods=(ended(1, 143, deletion_epoch_ms=NOW),)).turn()
    assert over.status.attempt == 2
    assert over.status.restarts == 0


def test_suspended_before_it_began() -> None:
    turn = Case(spec=spec(desiredState="Suspended"), prepared=False).turn()
    assert turn.word == "Suspended/Suspended"
    assert turn.acts == []
    assert turn.status.attempt == 0


HELD = Waited(kind="budget", key="3", name="think", reason="90 tokens spent, 0 reserved, 30 wanted, the limit is 100")


def test_c59_a_run_parked_at_its_budget_says_so_and_costs_nothing() -> None:
    turn = parked(HELD, HELD).turn()
    assert turn.word == "Waiting/BudgetExceeded"
    assert "the limit is 100, and 1 more: kubectl everstep budget triage --max-… raises it" in turn.message("Parked")
    assert turn.status.waiting is not None
    assert (turn.status.waiting.kind, turn.status.waiting.key, turn.status.waiting.name) == ("budget", "3", "think")
    assert turn.acts == []
    assert turn.decision.look_again_epoch_ms is None or turn.looks_again_in_s() >= 60
    with_timer = parked(TIMER, HELD, wake=NOW + 60_000).turn()
    assert with_timer.status.waiting is not None
    assert with_timer.status.waiting.kind == "budget"
    assert with_timer.looks_again_in_s() == 60


@pytest.mark.parametrize(
    ("entries", "wakes"),
    [(("budget-7-aa",), True), (("budget-0-aa", "budget-5-bb", "budget-70-cc"), False), ((), False)],
)
def test_a_change_of_the_budget_wakes_the_park_it_was_made_for(entries: tuple[str, ...], wakes: bool) -> None:
    """C42: one attempt for it, and none for a change that an earlier attempt has seen."""
    turn = parked(HELD, inbox=entries).turn()
    assert turn.status.attempt == (2 if wakes else 1)
    if wakes:
        assert turn.status.attempts[-1].inbox == entries
        assert turn.status.attempts[-1].cause == "Answered"
