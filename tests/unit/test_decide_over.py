"""Ends: finished, cancelled, out of time, refused journals, expiry, deletion (design §6; E8, E25, E27, C28, C53)."""

import hashlib
from dataclasses import replace
from typing import Any

import pytest
from tests.support.observed import (
    NO_JOURNAL,
    NOW,
    UNCERTAIN,
    Case,
    at,
    attempts,
    ended,
    finished,
    hash_of,
    head_of,
    journal,
    park,
    pod,
    running,
    said,
    spec,
    status,
)

from everstep.contract import StopReason
from everstep.journal.records import canonical
from everstep_operator.decide.model import Fence, JournalDown, MarkDeleted

# --- finished


@pytest.mark.parametrize(
    ("outcome", "word", "stalled"),
    [
        ("succeeded", "Succeeded/Succeeded", "False"),
        ("failed", "Failed/AgentFailed", "True"),
        ("cancelled", "Cancelled/Cancelled", "False"),
    ],
)
def test_the_record_decides_how_it_ended(outcome: str, word: str, stalled: str) -> None:
    last = finished(9, 1, outcome, value="triaged", type="ValueError", message="no backlog")
    turn = Case(status=status(1), pods=(ended(1, 0, phase="Succeeded"),), journal=journal(9, last=last)).turn()
    assert turn.word == word
    assert turn.condition("Finished")[0] == "True", "kubectl wait always returns"
    assert turn.condition("Stalled")[0] == stalled
    assert turn.condition("Reconciling")[0] == "False"
    assert turn.acts == ["DeletePod(triage-1)"]
    assert turn.status.finish_time is not None
    assert turn.status.checkpoint is not None
    assert turn.status.checkpoint.seq == 9
    assert not turn.decision.again


def test_the_result_is_told_by_digest_and_size_only() -> None:
    turn = Case(status=status(1), journal=journal(9, last=finished(9, 1, value={"secret": "x"}))).turn()
    assert turn.status.result is not None
    raw = canonical({"secret": "x"})
    assert turn.status.result.digest == f"sha256:{hashlib.sha256(raw).hexdigest()}"
    assert turn.status.result.bytes == len(raw)
    patch = turn.decision.status
    assert patch is not None
    assert "secret" not in str(patch.status)
    blob = Case(
        status=status(1), journal=journal(9, last=finished(9, 1, value={"$blob": "f" * 64, "bytes": 70_000}))
    ).turn()
    assert blob.status.result is not None
    assert blob.status.result.bytes == 70_000


def test_of_an_encrypted_run_nothing_is_told_that_could_be_guessed() -> None:
    sealed = replace(journal(9, last=finished(9, 1, value="(encrypted)")), encrypted=True)
    turn = Case(status=status(1), journal=sealed).turn()
    assert turn.word == "Succeeded/Succeeded"
    assert turn.status.result is None


def test_an_erased_run_cannot_go_on() -> None:
    """Its finished record still wins; anything else ends without another attempt, also where the spec was changed."""
    gone = replace(journal(5), encrypted=True, erased=True)
    turn = Case(status=status(1), pods=(pod(1),), journal=gone).turn()
    assert turn.word == "Failed/Erased"
    assert "CreatePod" not in " ".join(turn.acts)
    over = replace(journal(9, last=finished(9, 1, value="(erased)")), encrypted=True, erased=True)
    assert Case(status=status(1), journal=over).turn().word == "Succeeded/Succeeded"


def test_an_end_stays_and_nothing_follows() -> None:
    """E8: pods that end later change nothing."""
    first = Case(status=status(2), pods=(pod(1), pod(2)), journal=journal(9, attempt=2, last=finished(9, 2))).turn()
    assert first.decision.status is not None
    later = Case(
        status=dict(first.decision.status.status),
        pods=(ended(1, 75),),
        journal=journal(9, attempt=2, last=finished(9, 2)),
    ).turn()
    assert later.acts == ["DeletePod(triage-1)"]
    assert later.decision.status is None
    assert later.decision.events == ()
    assert later.decision.look_again_epoch_ms is None


def test_a_wish_that_comes_after_the_end_is_too_late() -> None:
    for wish in ("Cancelled", "Suspended"):
        turn = Case(spec=spec(desiredState=wish), status=status(1), journal=journal(9, last=finished(9, 1))).turn()
        assert turn.word == "Succeeded/Succeeded"


def test_open_questions_close_with_the_run() -> None:
    from tests.support.observed import UID

    from everstep_operator.decide.model import RequestView

    view = RequestView("triage-q1", "hreq-1", UID, "uncertain", "12", "a" * 64, state="Open")
    turn = Case(
        status=status(1), journal=journal(9, last=finished(9, 1), requests={"triage-q1": "hreq-1"}), requests=(view,)
    ).turn()
    assert "SetRequestState(triage-q1)" in turn.acts


def test_expiry() -> None:
    first = Case(
        spec=spec(ttlSecondsAfterFinished=60), status=status(1), journal=journal(9, last=finished(9, 1))
    ).turn()
    assert first.decision.status is not None
    held = dict(first.decision.status.status)
    case = Case(spec=spec(ttlSecondsAfterFinished=60), status=held, journal=journal(9, last=finished(9, 1)))
    waiting = case.turn()
    assert waiting.looks_again_in_s() == 60
    assert waiting.acts == []
    assert case.but(now=NOW + 60_000).turn().acts == ["DeleteRun"]


# --- cancel


def cancelled(**more: Any) -> dict[str, Any]:
    return spec(desiredState="Cancelled", cancelGraceSeconds=30, **more)


def test_a_cancel_is_recorded_before_anything_else() -> None:
    """C53: first recorded, then delivered."""
    turn = Case(
        spec=cancelled(), status=status(1), pods=(pod(1),), journal=journal(5, progress=running()), generation=2
    ).turn()
    assert turn.acts == ["AddInbox(cancel-2)"]
    assert turn.status.cancel_time is not None
    assert turn.decision.reason == "Cancelling"
    assert turn.status.attempt == 1, "the agent's own clean-up runs first"


def told(**more: Any) -> dict[str, Any]:
    """The wish to cancel was seen at NOW."""
    return status(1, cancelTime="2026-02-02T02:40:00Z", **more)


def test_while_the_agent_cleans_up() -> None:
    turn = Case(
        spec=cancelled(), status=told(), pods=(pod(1),), journal=journal(5, progress=running(), inbox=("cancel-2",))
    ).turn()
    assert turn.acts == []
    assert turn.word == "Running/Cancelling"


def test_a_parked_run_is_woken_to_clean_up_once() -> None:
    entries = attempts({"endTime": "2026-02-02T02:00:00Z", "class": "Parked", "pod": "triage-1", "podUID": "pod-1"})
    case = Case(
        spec=cancelled(),
        status=told(entries=entries),
        journal=journal(7, last=park(7, 1, UNCERTAIN), inbox=("cancel-2",)),
    )
    turn = case.turn()
    assert turn.status.attempt == 2
    assert turn.last_attempt().cause == "Cancelling"
    assert turn.last_attempt().inbox == ("cancel-2",)


def test_after_its_grace_time_it_is_fenced_read_and_ended() -> None:
    live = Case(
        spec=cancelled(),
        status=told(),
        pods=(pod(1),),
        journal=journal(5, progress=running(), inbox=("cancel-2",)),
        now=NOW + 36_000,
    )
    bump = live.turn()
    assert bump.status.attempt == 2
    assert bump.last_attempt().cause == "ForcedCancel"
    assert bump.decision.status is not None
    held = dict(bump.decision.status.status)
    fence = live.but(status=held).turn()
    assert fence.acts == ["Fence(2)"]
    end = live.but(status=held, journal=journal(6, attempt=2, owner=None)).turn()
    assert end.word == "Cancelled/CancelForced"
    assert end.condition("Finished") == ("True", "CancelForced")
    assert end.condition("Stalled")[0] == "False"
    assert end.acts == ["DeletePod(triage-1)"]
    won = live.but(status=held, journal=journal(6, attempt=2, owner=None, last=finished(6, 1, "succeeded"))).turn()
    assert won.word == "Succeeded/Succeeded", "a finished record found by the read wins"


def test_cancelled_before_it_began() -> None:
    turn = Case(spec=cancelled(), prepared=False).turn()
    assert turn.word == "Cancelled/Cancelled"
    assert turn.acts == []


def test_a_cancelled_run_whose_pod_is_lost_gets_another_one_to_clean_up() -> None:
    turn = Case(spec=cancelled(), status=told(), pods=(ended(1, 137),), journal=journal(5, inbox=("cancel-2",))).turn()
    assert turn.status.attempt == 2


# --- deadline


def test_a_deadline_needs_no_pod_and_no_event() -> None:
    """C28: a deadline that falls due on a lost node, while parked, while suspended."""
    for case in (
        Case(status=status(1), pods=(pod(1),), journal=journal(5, progress=running())),
        Case(status=status(1), journal=journal(7, last=park(7, 1, UNCERTAIN))),
        Case(spec=spec(desiredState="Suspended"), status=status(1), journal=journal(5)),
    ):
        short = case.but(spec={**case.spec, "deadlineSeconds": 3600})
        bump = short.turn()
        assert bump.status.attempt == 2
        assert bump.last_attempt().cause == "DeadlineExceeded"
        assert bump.decision.status is not None
        held = dict(bump.decision.status.status)
        assert short.but(status=held).turn().acts == ["Fence(2)"]
        end = short.but(status=held, journal=journal(8, attempt=2, owner=None)).turn()
        assert end.word == "Failed/DeadlineExceeded"
        won = short.but(status=held, journal=journal(9, attempt=2, owner=None, last=finished(9, 1))).turn()
        assert won.word == "Succeeded/Succeeded"


def test_the_deadline_is_in_the_timer() -> None:
    turn = Case(
        spec=spec(deadlineSeconds=7200), status=status(1), journal=journal(7, last=park(7, 1, UNCERTAIN))
    ).turn()
    assert turn.looks_again_in_s() == 3600


# --- a journal that cannot be trusted


def test_a_journal_that_ends_before_the_anchor_is_lost() -> None:
    """E27: no pod until a person acts."""
    for view in (journal(5, attempt=1), NO_JOURNAL):
        turn = Case(status=status(1, anchor=9), pods=(pod(1),), journal=view).turn()
        assert turn.word == "Failed/JournalLost"
        assert turn.condition("JournalVerified") == ("False", "JournalLost")
        assert turn.acts == ["DeletePod(triage-1)"]
        assert turn.status.checkpoint is not None
        assert turn.status.checkpoint.seq == 9, "the anchor stays"
        assert "9" in turn.message("Finished")


def test_another_record_at_the_anchor_is_tampering() -> None:
    turn = Case(status=status(1, anchor=9), journal=replace(journal(12), at_anchor=hash_of(99))).turn()
    assert turn.word == "Failed/JournalTampered"
    assert "record 9" in turn.message("Finished")


def test_a_newest_record_that_is_not_genuine_is_never_believed() -> None:
    forged = journal(12, last=finished(12, 1), tampered="record 12 was not written by this run")
    turn = Case(status=status(1, anchor=9), journal=forged).turn()
    assert turn.word == "Failed/JournalTampered"
    assert turn.status.checkpoint is not None
    assert turn.status.checkpoint.seq == 9


def test_a_tampered_journal_never_becomes_the_anchor() -> None:
    """Neither at the verdict, nor while it stands, nor when a changed spec has it looked at again."""
    forged = replace(journal(12), at_anchor=hash_of(99))
    held = dict(status(1, anchor=9))
    for generation in (1, 1, 2, 2, 3):
        turn = Case(status=held, journal=forged, generation=generation).turn()
        assert turn.status.checkpoint is not None
        assert (turn.status.checkpoint.seq, turn.status.checkpoint.hash) == (9, hash_of(9))
        assert turn.condition("JournalVerified") == ("False", "JournalTampered")
        assert not any(a.startswith("CreatePod") for a in turn.acts)
        held = dict(turn.decision.status.status) if turn.decision.status else held


def test_what_the_sdk_refused_stays_refused_until_an_attempt_proves_the_chain() -> None:
    refused = ended(1, 65, agent_message=said(StopReason.JOURNAL_TAMPERED, bad_seq=3))
    first = Case(status=status(1, anchor=2), pods=(refused,), journal=journal(7)).turn()
    assert first.word == "Failed/JournalTampered"
    assert first.status.checkpoint is not None
    assert first.status.checkpoint.seq == 2
    assert first.decision.status is not None
    again = Case(status=dict(first.decision.status.status), journal=journal(7), generation=2).turn()
    assert again.status.attempt == 2
    assert again.condition("JournalVerified")[0] == "False"
    assert again.decision.status is not None
    live = Case(
        status=dict(again.decision.status.status),
        pods=(pod(2),),
        journal=journal(8, attempt=2, progress=running(2)),
        generation=2,
        now=at(60_000),
    ).turn()
    assert live.condition("JournalVerified") == ("True", "Verified")
    assert live.status.checkpoint is not None
    assert live.status.checkpoint.seq == 8


def test_a_restored_journal_is_looked_at_again_when_the_spec_changes() -> None:
    lost = Case(status=status(1, anchor=9), journal=journal(5)).turn()
    assert lost.decision.status is not None
    held = dict(lost.decision.status.status)
    still = Case(status=held, journal=journal(5), generation=2).turn()
    assert still.status.attempt == 2, "bumped, to be looked at with a fresh eye"
    assert still.decision.status is not None
    again = Case(status=dict(still.decision.status.status), journal=journal(5), generation=2).turn()
    assert again.word == "Failed/JournalLost"
    assert not any(a.startswith("CreatePod") for a in again.acts)


# --- deletion


def test_a_deleted_run_is_fenced_at_once_and_marked_for_the_sweeper() -> None:
    """E25."""
    for case in (
        Case(exists=False, journal=journal(5, attempt=3)),
        Case(deleting=True, status=status(3), journal=journal(5, attempt=3)),
    ):
        turn = case.turn()
        fence, mark = turn.decision.actions
        assert isinstance(fence, Fence)
        assert (fence.attempt, fence.anchor) == (4, head_of(5))
        assert isinstance(mark, MarkDeleted)
        marked = case.but(journal=journal(5, attempt=4, deleted_at="2026-02-02T02:40:00Z")).turn()
        assert marked.acts == []
        assert not marked.decision.again


def test_a_deleted_run_without_a_journal_or_with_one_out_of_reach() -> None:
    assert Case(exists=False).turn().acts == []
    down = Case(exists=False, journal=JournalDown("refused", NOW)).turn()
    assert down.acts == []
    assert down.looks_again_in_s() == 5
