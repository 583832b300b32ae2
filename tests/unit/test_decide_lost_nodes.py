"""Lost nodes and the proof of death (design §5, §6; E6-E13, C21-C23, C28)."""

from msgspec import structs
from tests.support.observed import (
    NOW,
    Case,
    at,
    attempts,
    ended,
    journal,
    park,
    pod,
    running,
    spec,
    status,
)

from everstep_operator.decide.model import (
    Asked,
    ContainerState,
    CreatePod,
    Decision,
    NodeView,
    Refusal,
)


def create_of(decision: Decision) -> CreatePod:
    return next(a for a in decision.actions if isinstance(a, CreatePod))


# --- lost nodes


def unreachable(since_s: int) -> NodeView:
    return NodeView(ready=False, unreachable_since_epoch_ms=at(-since_s * 1000))


def test_a_pod_on_a_lost_node_is_left_alone_until_its_time() -> None:
    turn = Case(
        status=status(1), pods=(pod(1, node_view=unreachable(20)),), journal=journal(5, progress=running())
    ).turn()
    assert turn.status.attempt == 1
    assert turn.word == "Running/NodeUnreachable"
    assert turn.looks_again_in_s() == 40
    assert turn.condition("PodReady") == ("Unknown", "NodeUnreachable")


def test_then_it_is_fenced_and_replaced_elsewhere_without_proof_of_death() -> None:
    """E6, E7: the replacement must not take the old process for dead."""
    lost = pod(1, node_view=unreachable(61))
    turn = Case(status=status(1), pods=(lost,), journal=journal(5, progressed=5)).turn()
    assert turn.status.attempt == 2
    assert turn.status.attempts[0].reason == "NodeUnreachable"
    assert not turn.status.attempts[0].proven
    assert turn.status.unproven_attempt == 1
    assert turn.decision.status is not None
    create = Case(status=dict(turn.decision.status.status), pods=(lost,), journal=journal(5)).turn()
    assert create.acts == ["Fence(2)", "EnsureRunSecret", "CreatePod(2)"]
    made = create_of(create.decision)
    assert made.predecessor_dead is False
    assert made.not_on_nodes == ("worker",)


def test_policy_wait_never_replaces_what_is_only_out_of_reach() -> None:
    turn = Case(
        spec=spec(nodeLoss={"policy": "Wait"}),
        status=status(1),
        pods=(pod(1, node_view=unreachable(3600), deletion_epoch_ms=at(-3_000_000)),),
        journal=journal(5, progress=running()),
    ).turn()
    assert turn.status.attempt == 1
    assert turn.acts == []


def test_terminating_past_its_deadline() -> None:
    """E9, E10, C28: deletionTimestamp is the deadline; after it and the patience the pod is given up."""
    young = Case(status=status(1), pods=(pod(1, deletion_epoch_ms=at(-59_000)),), journal=journal(5)).turn()
    assert young.status.attempt == 1
    assert young.decision.reason == "Stopping"
    old = Case(status=status(1), pods=(pod(1, deletion_epoch_ms=at(-61_000)),), journal=journal(5)).turn()
    assert old.status.attempt == 2
    assert old.status.attempts[0].reason == "StuckTerminating"


def test_a_returning_node_changes_nothing() -> None:
    """E6, E8: the old pod ends later; no third attempt, no event."""
    live = Case(
        status=status(2), pods=(ended(1, 75), pod(2)), journal=journal(9, attempt=2, progress=running(2))
    ).turn()
    assert live.status.attempt == 2
    assert live.word == "Running/StepRunning"
    assert live.status.restarts == 0


def test_stuck_pending_after_a_reboot() -> None:
    """E13."""
    view = pod(1, state=ContainerState.WAITING, agent_reason="ContainerCreating", created_epoch_ms=at(-601_000))
    turn = Case(status=status(1), pods=(view,), journal=journal(0, owner=None)).turn()
    assert turn.status.attempts[0].reason == "PendingTooLong"
    assert turn.status.restarts == 0


# --- proof of death


def test_dead_is_said_only_on_a_terminal_status_of_the_kubelet() -> None:
    entries = attempts({"endTime": "2026-02-02T02:00:00Z", "class": "OutOfMemory", "proven": True}, {})
    proven = Case(status=status(2, entries=entries), journal=journal(4, attempt=1)).turn()
    assert create_of(proven.decision).predecessor_dead is True
    entries[0]["proven"] = False
    turn = Case(status=status(2, entries=entries), journal=journal(4, attempt=1)).turn()
    assert turn.status.unproven_attempt == 1, "noted before the pod is made"
    assert turn.acts == []
    assert turn.decision.status is not None
    turn = Case(status=dict(turn.decision.status.status), journal=journal(4, attempt=1)).turn()
    assert create_of(turn.decision).predecessor_dead is False


def test_an_old_doubt_outlives_a_proven_death() -> None:
    """Attempt 1 may still be sending although attempt 2 surely died: what 1 had in flight is not 'not done'."""
    entries = attempts(
        {"endTime": "2026-02-02T02:00:00Z", "class": "Disruption", "proven": False},
        {"endTime": "2026-02-02T02:10:00Z", "class": "OutOfMemory", "proven": True},
        {},
    )
    turn = Case(status=status(3, entries=entries, unprovenAttempt=1), journal=journal(6, attempt=2)).turn()
    assert create_of(turn.decision).predecessor_dead is False


def test_a_park_settles_old_doubts() -> None:
    turn = Case(
        status=status(3, unprovenAttempt=1), pods=(), journal=journal(7, attempt=3, last=park(7, 3, wake=NOW + 1000))
    ).turn()
    assert turn.status.unproven_attempt == 0


def test_a_parked_pod_that_nobody_saw_end_is_no_doubt() -> None:
    entries = attempts({"endTime": "2026-02-02T02:00:00Z", "class": "Parked", "proven": False}, {"cause": "TimerDue"})
    turn = Case(status=status(2, entries=entries), journal=journal(7, last=park(7, 1, wake=NOW))).turn()
    assert create_of(turn.decision).predecessor_dead is True
    assert turn.status.unproven_attempt == 0


def test_attempts_that_the_status_does_not_know_are_in_doubt() -> None:
    turn = Case(status=status(2), journal=journal(4, attempt=7)).turn()
    assert turn.status.unproven_attempt == 7


def test_a_refusal_of_the_number_before_does_not_hold_up_the_next() -> None:
    refusal = Refusal(Asked.CREATE_POD, 409, "ForeignPod", "taken", NOW, 1, attempt=pod(2).attempt)
    entries = attempts(
        {"endTime": "2026-02-02T02:00:00Z", "class": "Stopped", "reason": "Renumbered", "proven": True},
        {"proven": True},
        {},
    )
    turn = Case(
        status=status(3, entries=entries), journal=journal(4, attempt=2, owner=None), refusals=(refusal,)
    ).turn()
    assert "CreatePod(3)" in turn.acts


def test_an_image_that_is_missing_on_this_node_only() -> None:
    """A run that has come far is not failed because the next node never had its image."""
    view = pod(2, state=ContainerState.WAITING, agent_reason="ErrImageNeverPull", agent_message="not present")
    held = status(2, agentImage="sha256:abc", agentImageFrom="registry.example/agent:1")
    turn = Case(status=held, pods=(view,), journal=journal(9, attempt=2, owner=None)).turn()
    assert turn.condition("Finished")[0] == "False"
    assert turn.last_attempt().class_ == "NotStarted"
    assert turn.acts == ["DeletePod(triage-2)"]


def test_an_attempt_that_wrote_nothing_leaves_nothing_in_flight() -> None:
    """Attempt 2 was lost unseen but never wrote: the newest record is attempt 1's, which is proved dead."""
    entries = attempts(
        {"endTime": "2026-02-02T02:00:00Z", "class": "OutOfMemory", "proven": True},
        {"endTime": "2026-02-02T02:10:00Z", "class": "Disruption", "proven": False},
        {},
    )
    last = journal(4, attempt=2)
    assert last.last is not None
    turn = Case(
        status=status(3, entries=entries),
        journal=journal(4, attempt=2, last=structs.replace(last.last, attempt=1)),
    ).turn()
    assert create_of(turn.decision).predecessor_dead is True
