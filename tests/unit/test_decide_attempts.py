"""The attempt protocol: bump, fence, create; replacement; budgets and back-off (design §6; E6-E20, C23-C30)."""

import pytest
from tests.support.observed import (
    GENESIS,
    NO_JOURNAL,
    NOW,
    UID,
    Case,
    at,
    attempts,
    ended,
    finished,
    head_of,
    journal,
    pod,
    running,
    said,
    spec,
    status,
)

from everstep.contract import StopReason
from everstep_operator.decide.model import (
    Asked,
    ContainerState,
    CreatePod,
    Decision,
    Fence,
    NodeView,
    PodView,
    Refusal,
    Rules,
)


def action(decision: Decision, kind: type) -> object:
    return next(a for a in decision.actions if isinstance(a, kind))


def create_of(decision: Decision) -> CreatePod:
    found = action(decision, CreatePod)
    assert isinstance(found, CreatePod)
    return found


# --- the first attempt, step by step


def test_before_attempt_1_the_pod_is_tried_as_a_dry_run() -> None:
    turn = Case(prepared=False).turn()
    assert turn.acts == ["Prepare(1)"]
    assert turn.decision.again
    assert turn.word == "Starting/Preparing"
    assert turn.status.attempt == 0, "nothing is spent on a pod that would be refused"


def test_the_bump_is_a_turn_of_its_own_and_brings_the_first_anchor() -> None:
    turn = Case().turn()
    assert turn.acts == []
    assert turn.decision.again
    assert turn.status.attempt == 1
    checkpoint = turn.status.checkpoint
    assert checkpoint is not None
    assert (checkpoint.seq, checkpoint.hash) == (0, GENESIS)
    assert turn.decision.status is not None
    assert [o["op"] for o in turn.decision.status.operations] == ["test", "test", "add"]
    assert turn.decision.status.operations[0]["value"] == UID
    assert turn.decision.status.operations[1] == {"op": "test", "path": "/status", "value": None}


def test_then_fence_secret_and_pod_in_one_turn() -> None:
    bumped = Case().turn().decision.status
    assert bumped is not None
    turn = Case(status=dict(bumped.status)).turn()
    assert turn.acts == ["Fence(1)", "EnsureRunSecret", "CreatePod(1)"]
    fence = action(turn.decision, Fence)
    assert isinstance(fence, Fence)
    assert (fence.anchor, fence.expect) == (head_of(0), None)
    assert turn.decision.again


def test_a_later_status_write_tests_the_whole_status_and_nothing_else_that_a_user_may_change() -> None:
    """E24: labels, annotations and spec change a hundred times a second; the bump still lands."""
    held = status(1, anchor=3)
    turn = Case(status=held, pods=(ended(1, 1),), journal=journal(5, anchor=3)).turn()
    assert turn.decision.status is not None
    paths = [(o["op"], o["path"]) for o in turn.decision.status.operations]
    assert paths == [("test", "/metadata/uid"), ("test", "/status"), ("replace", "/status")]
    assert turn.decision.status.operations[1]["value"] == held


def test_a_run_that_is_as_it_should_be_is_left_alone() -> None:
    first = Case(status=status(1), pods=(pod(1),), journal=journal(3, progress=running())).turn()
    assert first.decision.status is not None
    again = Case(
        status=dict(first.decision.status.status),
        pods=(pod(1),),
        journal=journal(3, anchor=3, progress=running()),
    ).turn()
    assert again.decision.status is None
    assert again.acts == []
    assert again.decision.events == ()
    assert again.word == "Running/StepRunning"


# --- what is found after a crash between two steps (E20)


def test_bumped_but_not_fenced() -> None:
    case = Case(
        status=status(
            2, entries=attempts({"endTime": "2026-02-02T02:00:00Z", "class": "Disruption", "proven": True}, {})
        )
    )
    turn = case.but(journal=journal(4, attempt=1)).turn()
    assert turn.acts == ["Fence(2)", "EnsureRunSecret", "CreatePod(2)"]
    fence = action(turn.decision, Fence)
    assert isinstance(fence, Fence)
    assert fence.expect == head_of(4), "whoever writes between this look and the fence ends the turn"


def test_fenced_but_no_pod() -> None:
    entries = attempts({"endTime": "2026-02-02T02:00:00Z", "class": "Disruption", "proven": True}, {})
    turn = Case(status=status(2, entries=entries), journal=journal(4, attempt=2, owner=None)).turn()
    assert turn.acts == ["Fence(2)", "EnsureRunSecret", "CreatePod(2)"], (
        "the fence is asserted again before a pod is made"
    )


def test_the_pod_was_created_and_the_status_does_not_tell() -> None:
    entries = attempts({"endTime": "2026-02-02T02:00:00Z", "class": "Disruption", "proven": True}, {})
    turn = Case(status=status(2, entries=entries), pods=(pod(2),), journal=journal(4, attempt=2, owner=None)).turn()
    assert "CreatePod(2)" not in turn.acts
    assert turn.last_attempt().pod_uid == "pod-2", "adopted"
    assert "AttemptStarted" in turn.told


def test_the_pod_claimed_and_vanished_before_anybody_saw_it() -> None:
    """No second pod under the same number: that process may live on and hold the claim."""
    entries = attempts({"endTime": "2026-02-02T02:00:00Z", "class": "Disruption", "proven": True}, {})
    turn = Case(status=status(2, entries=entries), journal=journal(4, attempt=2, owner="pod-2/x")).turn()
    assert turn.acts == []
    assert turn.status.attempt == 3
    assert turn.status.attempts[1].reason == "PodDeleted"


def test_a_foreign_pod_has_the_name() -> None:
    refusal = Refusal(Asked.CREATE_POD, 409, "ForeignPod", "taken", NOW, 1, attempt=pod(2).attempt)
    entries = attempts({"endTime": "2026-02-02T02:00:00Z", "class": "Disruption", "proven": True}, {})
    turn = Case(
        status=status(2, entries=entries), journal=journal(4, attempt=2, owner=None), refusals=(refusal,)
    ).turn()
    assert turn.status.attempt == 3
    assert turn.last_attempt().cause == "Renumbered"
    assert turn.status.restarts == 0, "nothing was lost"


def test_the_journal_knows_a_higher_attempt() -> None:
    """An old copy of etcd: the number goes on after the journal's."""
    turn = Case(status=status(2), pods=(), journal=journal(4, attempt=7)).turn()
    assert turn.status.attempt == 8
    assert turn.last_attempt().cause == "Renumbered"


def test_the_journal_knows_a_higher_attempt_whose_pod_lives() -> None:
    turn = Case(status=status(2), pods=(pod(7),), journal=journal(4, attempt=7, owner="pod-7/x")).turn()
    assert turn.status.attempt == 7, "a live pod that holds the fence is not replaced"
    after = Case(
        status=turn.decision.status and dict(turn.decision.status.status),
        pods=(pod(7),),
        journal=journal(4, attempt=7, owner="pod-7/x", progress=running(7)),
    ).turn()
    assert after.word == "Running/StepRunning"


def test_a_status_that_was_lost_is_no_reason_to_reuse_a_number() -> None:
    turn = Case(status=None, journal=journal(4, attempt=3)).turn()
    assert turn.status.attempt == 4


# --- losses


@pytest.mark.parametrize(
    "class_and_pod", [("Disruption", ended(1, 143)), ("Application", ended(1, 1)), ("OutOfMemory", ended(1, 137))]
)
def test_the_first_loss_since_progress_is_made_good_at_once(class_and_pod: tuple[str, PodView]) -> None:
    class_, view = class_and_pod
    turn = Case(status=status(1), pods=(view,), journal=journal(5, progressed=5)).turn()
    assert turn.status.attempt == 2
    assert turn.status.attempts[0].class_ == class_
    assert turn.status.restarts == 1
    assert turn.told == ["PodLost"]
    assert turn.decision.again


def test_a_lost_run_that_had_finished_is_a_success() -> None:
    """C27, promise 2: the record counts, not the pod; whichever attempt wrote it."""
    for view in (ended(2, 137), pod(2, gone=True), ended(2, 70)):
        turn = Case(
            status=status(2), pods=(view,), journal=journal(9, attempt=2, last=finished(9, 1, value="done"))
        ).turn()
        assert turn.condition("Succeeded") == ("True", "Succeeded")
        assert turn.condition("Finished") == ("True", "Succeeded")
        assert turn.status.attempt == 2


def test_disruptions_are_never_charged_only_slowed() -> None:
    """C26: ten drains in a row with one application attempt."""
    held = status(1)
    for n in range(1, 11):
        turn = Case(
            spec=spec(restarts={"application": {"max": 0}}),
            status=held,
            pods=(ended(n, 143, uid=f"pod-{n}"),),
            journal=journal(5, attempt=n),
        ).turn()
        assert turn.condition("Finished")[0] == "False"
        pause_s = turn.looks_again_in_s()
        assert pause_s is None or pause_s <= 60
        later = at(120_000)
        patch = turn.decision.status
        assert patch is not None
        held = dict(patch.status)
        if turn.status.attempt == n:
            turn = Case(status=held, journal=journal(5, attempt=n), now=later).turn()
            assert turn.decision.status is not None
            held = dict(turn.decision.status.status)
        assert held["attempt"] == n + 1
    assert held["restarts"] == 10
    assert held["losses"]["disruption"] == 10
    assert held["losses"]["application"] == 0


def test_an_application_budget_runs_out_without_progress() -> None:
    """C25: only the journal's progress resets it, however long the pod had lived."""
    losses = {"disruption": 0, "outOfMemory": 0, "application": 2, "notStarted": 0}
    old_pod = ended(3, 1, agent_started_epoch_ms=at(-11 * 60_000))
    case = Case(
        spec=spec(restarts={"application": {"max": 2}}),
        status=status(3, losses=losses, restarts=2),
        pods=(old_pod,),
        journal=journal(5, attempt=3, progress=running(3)),
    )
    turn = case.turn()
    assert turn.word == "Failed/RestartsExhausted"
    assert turn.condition("Finished") == ("True", "RestartsExhausted")
    assert turn.condition("Stalled") == ("True", "RestartsExhausted")
    assert "classify" in turn.message("Stalled")
    with_progress = case.but(journal=journal(8, attempt=3, progressed=7)).turn()
    assert with_progress.status.attempt == 4
    assert with_progress.status.losses.application == 1


def test_out_of_memory_has_its_own_budget_and_may_raise_the_limit() -> None:
    """E4: memory grows if the spec allows; then Stalled, naming the step."""
    growing = spec(restarts={"outOfMemory": {"max": 2, "memoryFactorPercent": 150}})
    turn = Case(
        spec=growing, status=status(1), pods=(ended(1, 137, agent_reason="OOMKilled"),), journal=journal(5)
    ).turn()
    assert turn.status.memory_limit_bytes == 2**28 * 3 // 2
    assert turn.decision.status is not None
    create = Case(spec=growing, status=dict(turn.decision.status.status), journal=journal(5)).turn()
    assert create_of(create.decision).memory_limit_bytes == 2**28 * 3 // 2
    losses = {"disruption": 0, "outOfMemory": 2, "application": 0, "notStarted": 0}
    worn = Case(
        spec=growing,
        status=status(3, losses=losses),
        pods=(ended(3, 137, agent_reason="OOMKilled"),),
        journal=journal(5, attempt=3, progress=running(3)),
    ).turn()
    assert worn.word == "Failed/OutOfMemory"
    assert "classify" in worn.message("Stalled")
    assert "limits.memory" in worn.message("Stalled")


def test_back_off_doubles_and_shows_when_the_next_attempt_starts() -> None:
    losses = {"disruption": 0, "outOfMemory": 0, "application": 2, "notStarted": 0}
    turn = Case(status=status(3, losses=losses), pods=(ended(3, 1),), journal=journal(5, attempt=3)).turn()
    assert turn.status.attempt == 3
    assert turn.word == "Starting/AgentCrashed"
    assert turn.looks_again_in_s() == 9, "10 s after its end, which was a second ago"
    assert "starts in 9 s" in turn.message("Reconciling")


def test_refused_by_the_kubelet_is_neither_charged_nor_repeated_at_once() -> None:
    """E19: few dead pods."""
    view = pod(1, state=ContainerState.ABSENT, phase="Failed", reason="OutOfcpu")
    turn = Case(status=status(1), pods=(view,), journal=journal(0, owner=None)).turn()
    assert turn.status.restarts == 0
    assert turn.status.losses.not_started == 1
    assert turn.looks_again_in_s() == 5


# --- refusals of the SDK


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (StopReason.BAD_ENTRYPOINT, 64),
        (StopReason.BAD_INPUTS, 64),
        (StopReason.DIVERGED, 65),
        (StopReason.JOURNAL_TAMPERED, 65),
        (StopReason.JOURNAL_LOST, 65),
        (StopReason.JOURNAL_UNREADABLE, 65),
    ],
)
def test_a_refusal_stops_the_run_with_its_own_word(reason: StopReason, code: int) -> None:
    """C7, C8: four things, four words, and no second pod."""
    view = ended(1, code, agent_message=said(reason, "what was wrong, and what to do"))
    turn = Case(status=status(1), pods=(view,), journal=journal(5)).turn()
    assert turn.word == f"Failed/{reason}"
    assert turn.condition("Finished") == ("True", reason)
    assert "what to do" in turn.message("Finished")
    assert turn.acts == [], "its pod stays for the log"
    assert turn.status.attempt == 1
    assert turn.told[0] == "Failed"


def test_the_head_that_the_sdk_last_saw_confirmed_becomes_the_anchor() -> None:
    message = said(StopReason.JOURNAL_LOST, seq=9, hash="9" * 64)
    turn = Case(
        status=status(1, anchor=3), pods=(ended(1, 65, agent_message=message),), journal=journal(5, anchor=3)
    ).turn()
    assert turn.status.checkpoint is not None
    assert (turn.status.checkpoint.seq, turn.status.checkpoint.hash) == (9, "9" * 64)


def test_a_changed_spec_has_a_curable_failure_looked_at_again() -> None:
    view = ended(1, 64, agent_message=said(StopReason.BAD_ENTRYPOINT))
    failed = Case(status=status(1), pods=(view,), journal=journal(0)).turn()
    assert failed.decision.status is not None
    held = dict(failed.decision.status.status)
    same = Case(status=held, pods=(view,), journal=journal(0)).turn()
    assert same.status.attempt == 1, "no change, no new attempt"
    turn = Case(status=held, pods=(view,), journal=journal(0), generation=2).turn()
    assert turn.status.attempt == 2
    assert turn.condition("Finished")[0] == "False"
    assert turn.last_attempt().cause == "SpecChanged"


# --- pods to take away


def test_at_most_two_failed_pods_are_kept() -> None:
    old = tuple(ended(n, 1) for n in (1, 2, 3))
    turn = Case(status=status(4), pods=(*old, pod(4)), journal=journal(9, attempt=4, progress=running(4))).turn()
    assert turn.acts == ["DeletePod(triage-1)"]


def test_a_pod_of_an_earlier_attempt_that_still_lives_is_deleted_once_it_is_fenced() -> None:
    old = pod(1, node_view=NodeView(ready=False, unreachable_since_epoch_ms=at(-100_000)))
    fenced = Case(status=status(2), pods=(old, pod(2)), journal=journal(9, attempt=2, progress=running(2))).turn()
    assert fenced.acts == ["DeletePod(triage-1)"]


def test_pods_that_are_not_ours_are_never_touched() -> None:
    stranger = pod(1, owned=False)
    turn = Case(status=status(2), pods=(stranger, pod(2)), journal=journal(9, attempt=2, last=finished(9, 2))).turn()
    assert turn.acts == ["DeletePod(triage-2)"]


# --- the image


def test_the_digest_of_the_first_attempt_is_kept_until_the_spec_names_another_image() -> None:
    digest = "registry.example/agent@sha256:" + "d" * 64
    seen = Case(status=status(1), pods=(pod(1, agent_image_id=digest),), journal=journal(3, progress=running())).turn()
    assert seen.status.agent_image == digest
    entries = attempts({"endTime": "2026-02-02T02:00:00Z", "class": "OutOfMemory", "proven": True}, {})
    held = status(2, entries=entries, agentImage=digest, agentImageFrom="registry.example/agent:1")
    assert create_of(Case(status=held, journal=journal(4)).turn().decision).image == digest
    other = spec(agent={"entrypoint": "triage:run", "image": "registry.example/agent:2"})
    assert (
        create_of(Case(spec=other, status=held, journal=journal(4)).turn().decision).image == "registry.example/agent:2"
    )


@pytest.mark.parametrize(
    "image_id", ["sha256:" + "d" * 64, "docker.io/library/import-2026-01-01@sha256:" + "d" * 64, ""]
)
def test_a_digest_that_no_other_node_could_pull_is_not_used(image_id: str) -> None:
    entries = attempts({"endTime": "2026-02-02T02:00:00Z", "class": "OutOfMemory", "proven": True}, {})
    held = status(2, entries=entries, agentImage=image_id, agentImageFrom="registry.example/agent:1")
    assert create_of(Case(status=held, journal=journal(4)).turn().decision).image == "registry.example/agent:1"


def test_a_run_without_an_image_keeps_the_pinned_one_when_the_default_moves_on() -> None:
    digest = "registry.example/default@sha256:" + "d" * 64
    entries = attempts({"endTime": "2026-02-02T02:00:00Z", "class": "OutOfMemory", "proven": True}, {})
    held = status(2, entries=entries, agentImage=digest, agentImageFrom="")
    case = Case(spec=spec(agent={"entrypoint": "triage:run"}), status=held, journal=journal(4))
    rules = Rules(default_image="registry.example/default:2")
    assert create_of(case.but(rules=rules).turn().decision).image == digest
    assert create_of(case.but(rules=Rules(default_image="registry.example/other:1")).turn().decision).image == ""


def test_many_losses_without_a_step_done_are_told() -> None:
    losses = {"disruption": 19, "outOfMemory": 0, "application": 0, "notStarted": 0}
    turn = Case(status=status(3, losses=losses), pods=(ended(3, 143),), journal=journal(5, attempt=3)).turn()
    assert "NoProgress" in turn.told
    assert turn.looks_again_in_s() == Rules().disruption_backoff_max_s - 1


def test_a_pod_that_runs_and_has_not_claimed_yet() -> None:
    turn = Case(status=status(1), pods=(pod(1),), journal=journal(0, owner=None)).turn()
    assert turn.word == "Starting/Created"


def test_a_journal_that_vanished_before_its_first_anchor_is_lost_not_begun_anew() -> None:
    """Promise 1: a pod is made only after a fence, so a journal there was."""
    turn = Case(status=status(1), pods=(ended(1, 137),), journal=NO_JOURNAL).turn()
    assert turn.word == "Failed/JournalLost"
