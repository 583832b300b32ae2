"""What keeps a run from starting, and what its messages tell a user to do (failures A2, E14-E19, E26-E28)."""

import pytest
from tests.support.observed import NO_JOURNAL, NOW, TIMER, Case, at, attempts, journal, park, pod, running, spec, status

from everstep_operator.decide.model import Asked, ContainerState, JournalDown, NodeView, Refusal

QUOTA = 'pods "triage-1" is forbidden: exceeded quota: small, requested: pods=1, used: pods=2, limited: pods=2'
PSS = 'pods "triage-1" is forbidden: violates PodSecurity "restricted:latest": privileged (container "x" must not set ...)'
INVALID = 'Pod "triage-1" is invalid: spec.containers[0].volumeMounts[1].name: Not found: "data"'


def refusal(action: Asked, code: int, reason: str, message: str, ago_s: int = 0) -> Refusal:
    return Refusal(action, code, reason, message, at(-ago_s * 1000), 1)


REFUSED = [
    ("E15 quota", 403, "Forbidden", QUOTA, "QuotaExceeded", False, "quota: small"),
    ("E16 pod security", 403, "Forbidden", PSS, "PodSecurity", True, "pod-security labels"),
    ("invalid overlay", 422, "Invalid", INVALID, "PodRefused", True, "volumeMounts[1]"),
    (
        "hostPath and the like",
        0,
        "InvalidTemplate",
        "spec.template.volumes[0]: hostPath",
        "PodRefused",
        True,
        "hostPath",
    ),
    (
        "goal missing",
        404,
        "GoalNotFound",
        "spec.goalFrom: there is no ConfigMap goals",
        "GoalNotFound",
        False,
        "no ConfigMap goals",
    ),
    ("foreign Secret", 409, "SecretConflict", "a Secret named triage-run exists", "SecretConflict", True, "triage-run"),
    (
        "inputs too large",
        0,
        "InvalidInputs",
        "spec.inputs takes 70000 bytes, at most 65536",
        "BadInputs",
        True,
        "65536",
    ),
]


@pytest.mark.parametrize(
    ("name", "code", "kind", "message", "reason", "stalled", "says"), REFUSED, ids=[r[0] for r in REFUSED]
)
@pytest.mark.parametrize("action", [Asked.PREPARE, Asked.CREATE_POD])
def test_a_refusal_is_told_and_not_repeated_at_once(
    name: str, code: int, kind: str, message: str, reason: str, stalled: bool, says: str, action: Asked
) -> None:
    standing = (refusal(action, code, kind, message),)
    before = Case(prepared=False, refusals=standing)
    entries = attempts({"endTime": "2026-02-02T02:00:00Z", "class": "Disruption", "proven": True}, {})
    within = Case(status=status(2, entries=entries), journal=journal(5), refusals=standing)
    case = before if action is Asked.PREPARE else within
    turn = case.turn()
    assert turn.word == f"Blocked/{reason}"
    assert turn.acts == []
    assert not turn.decision.again
    assert turn.condition("Stalled")[0] == str(stalled)
    assert turn.condition("Reconciling")[0] == str(not stalled)
    assert says in turn.message("Stalled" if stalled else "Reconciling")
    assert turn.told == ["Blocked"]
    pause_s = turn.looks_again_in_s()
    assert pause_s == (300 if stalled else 30)
    assert turn.status.attempt == (case.status or {"attempt": 0})["attempt"], "no number is spent"


def test_after_its_pause_it_is_tried_again_under_the_same_number() -> None:
    entries = attempts({"endTime": "2026-02-02T02:00:00Z", "class": "Disruption", "proven": True}, {})
    standing = (refusal(Asked.CREATE_POD, 403, "Forbidden", QUOTA, ago_s=31),)
    turn = Case(status=status(2, entries=entries), journal=journal(5), refusals=standing).turn()
    assert turn.acts == ["Fence(2)", "EnsureRunSecret", "CreatePod(2)"]


def test_a_refusal_of_an_older_spec_does_not_count() -> None:
    turn = Case(prepared=False, generation=2, refusals=(refusal(Asked.PREPARE, 403, "Forbidden", PSS),)).turn()
    assert turn.acts == ["Prepare(1)"]


def test_a_full_quota_has_our_own_dead_pods_cleaned_first() -> None:
    """E15: `count/pods` by kept finished pods."""
    dead = pod(1, state=ContainerState.TERMINATED, agent_exit_code=1)
    entries = attempts({"endTime": "2026-02-02T02:00:00Z", "class": "Application", "proven": True}, {})
    turn = Case(
        status=status(2, entries=entries),
        pods=(dead,),
        journal=journal(5),
        refusals=(refusal(Asked.CREATE_POD, 403, "Forbidden", QUOTA),),
    ).turn()
    assert turn.acts == ["DeletePod(triage-1)"]


def test_a_secret_that_cannot_be_made_blocks_later_attempts_too() -> None:
    entries = attempts({"endTime": "2026-02-02T02:00:00Z", "class": "Disruption", "proven": True}, {})
    standing = (refusal(Asked.PREPARE, 409, "SecretConflict", "a Secret named triage-run exists"),)
    turn = Case(status=status(2, entries=entries), journal=journal(5), refusals=standing).turn()
    assert turn.word == "Blocked/SecretConflict"
    assert turn.acts == []


# --- pods that do not start


def waiting(reason: str, message: str = "", **changes: object) -> Case:
    view = pod(1, state=ContainerState.WAITING, agent_reason=reason, agent_message=message, **changes)
    return Case(status=status(1), pods=(view,), journal=journal(0, owner=None))


def test_unschedulable_waits_and_burns_nothing() -> None:
    """E14."""
    no_room = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes are available: 3 Insufficient memory.",
    }
    turn = Case(
        status=status(1),
        pods=(pod(1, state=ContainerState.ABSENT, node="", conditions=(no_room,)),),
        journal=journal(0, owner=None),
    ).turn()
    assert turn.word == "Blocked/Unschedulable"
    assert "Insufficient memory" in turn.message("Reconciling")
    assert turn.status.attempt == 1


def test_a_missing_image_waits_and_keeps_the_first_cause() -> None:
    """E17: the first cause stays visible after back-off hides it."""
    words = 'failed to pull image "x:nope": not found'
    first = waiting("ErrImagePull", words).turn()
    assert first.word == "Blocked/ImagePullBackOff"
    assert words in first.message("Reconciling")
    assert "can be pulled" in first.message("Reconciling")
    assert first.decision.status is not None
    later = (
        waiting("ImagePullBackOff", 'Back-off pulling image "x:nope"')
        .but(status=dict(first.decision.status.status))
        .turn()
    )
    assert words in later.message("Reconciling")
    assert later.told == [], "told once"
    assert later.status.attempt == 1


def test_a_registry_that_refuses_for_now_heals_by_itself() -> None:
    first = waiting("ErrImagePull", "429 Too Many Requests").turn()
    assert first.decision.status is not None
    turn = Case(
        status=dict(first.decision.status.status), pods=(pod(1),), journal=journal(0, progress=running(recorded=0))
    ).turn()
    assert turn.word == "Running/StepRunning"
    assert turn.status.restarts == 0


@pytest.mark.parametrize(
    ("reason", "message"), [("InvalidImageName", "couldn't parse image name"), ("ErrImageNeverPull", "not present")]
)
def test_an_image_that_can_never_be_pulled_is_terminal_at_once(reason: str, message: str) -> None:
    """E17."""
    turn = waiting(reason, message).turn()
    assert turn.word == f"Failed/{reason}"
    assert turn.acts == ["DeletePod(triage-1)"]
    assert "spec.agent.image" in turn.message("Finished")


def test_a_missing_secret_of_the_users_heals_without_a_new_attempt() -> None:
    """E18."""
    turn = waiting("CreateContainerConfigError", 'secret "api-key" not found').turn()
    assert turn.word == "Blocked/CreateContainerConfigError"
    assert "api-key" in turn.message("Reconciling")
    late = waiting("CreateContainerConfigError", 'secret "api-key" not found', created_epoch_ms=at(-86_400_000)).turn()
    assert late.status.attempt == 1, "however late it comes"


def test_what_the_runtime_cannot_start_is_replaced_at_its_deadline() -> None:
    assert waiting("CreateContainerError", "context deadline exceeded").turn().word == "Blocked/CreateContainerError"
    late = waiting("CreateContainerError", "context deadline exceeded", created_epoch_ms=at(-601_000)).turn()
    assert late.status.attempts[0].reason == "PendingTooLong"


def test_an_init_container_that_waits_is_told() -> None:
    view = pod(
        1, state=ContainerState.WAITING, agent_reason="PodInitializing", init_waiting="ImagePullBackOff: no such image"
    )
    turn = Case(status=status(1), pods=(view,), journal=journal(0, owner=None)).turn()
    assert turn.word == "Blocked/ImagePullBackOff"
    assert "no such image" in turn.message("Reconciling")


def test_a_node_out_of_reach_under_policy_wait_says_so() -> None:
    view = pod(1, node_view=NodeView(ready=False, unreachable_since_epoch_ms=at(-5000)))
    turn = Case(
        spec=spec(nodeLoss={"policy": "Wait"}), status=status(1), pods=(view,), journal=journal(5, progress=running())
    ).turn()
    assert turn.word == "Blocked/NodeUnreachable"


# --- the journal's store


def test_a_store_that_keeps_too_little_takes_no_new_runs() -> None:
    problem = "appendfsync is everysec: set it to always, or journal.durability: EverySecond"
    turn = Case(problems=(problem,), prepared=False).turn()
    assert turn.word == "Blocked/JournalUnhealthy"
    assert problem in turn.message("JournalHealthy")
    assert problem in turn.message("Reconciling")
    assert turn.condition("JournalHealthy") == ("False", "JournalUnhealthy")
    assert turn.status.attempt == 0
    assert turn.acts == []


def test_runs_that_are_under_way_go_on_and_show_it() -> None:
    turn = Case(problems=("evicts",), status=status(1), pods=(pod(1),), journal=journal(5, progress=running())).turn()
    assert turn.word == "Running/StepRunning"
    assert turn.condition("JournalHealthy")[0] == "False"
    assert "JournalUnhealthy" in turn.told


def test_an_unreachable_store_is_no_verdict() -> None:
    """C7, C29: nothing fails, nothing is started, and it goes on by itself."""
    down = JournalDown("redis:6379: connection refused", NOW)
    waiting_run = Case(status=status(1), pods=(pod(1, gone=True),), journal=down).turn()
    assert waiting_run.word == "Blocked/JournalUnreachable"
    assert "connection refused" in waiting_run.message("JournalHealthy")
    assert waiting_run.acts == []
    assert waiting_run.looks_again_in_s() == 5
    live = Case(status=status(1), pods=(pod(1),), journal=down).turn()
    assert live.word == "Running/StepRunning", "a live attempt is left alone"
    assert live.condition("JournalHealthy") == ("False", "JournalUnreachable")
    new = Case(journal=down).turn()
    assert new.word == "Blocked/JournalUnreachable"


def test_a_store_that_is_away_makes_no_noise_about_parked_runs() -> None:
    """C61, E30: ten thousand parked runs, and not one write."""
    down = JournalDown("refused", NOW)
    parked = Case(status=status(1), journal=journal(5, last=park(5, 1, TIMER, wake=NOW + 60_000))).turn()
    assert parked.decision.status is not None
    held = dict(parked.decision.status.status)
    turn = Case(status=held, journal=down).turn()
    assert turn.decision.status is None
    assert turn.decision.events == ()
    assert turn.looks_again_in_s() == 60
    due = Case(status=held, journal=down, now=at(60_000)).turn()
    assert due.word == "Blocked/JournalUnreachable"
    assert due.looks_again_in_s() == 5


def test_suspending_needs_no_journal() -> None:
    down = JournalDown("refused", NOW)
    turn = Case(spec=spec(desiredState="Suspended"), status=status(1), pods=(pod(1),), journal=down).turn()
    assert turn.acts == ["DeletePod(triage-1)"]


def test_a_spec_that_cannot_be_read_is_told_not_guessed() -> None:
    import dataclasses

    from everstep_operator.decide import decide
    from everstep_operator.decide.model import Rules

    seen = Case(status=status(1), pods=(pod(1),), journal=NO_JOURNAL).observed()
    assert seen.run is not None
    broken = dataclasses.replace(seen.run, spec=None, spec_error="spec.agent.entrypoint: Field required")
    decision = decide(dataclasses.replace(seen, run=broken), rules=Rules(), now_epoch_ms=NOW)
    assert decision.reason == "SpecInvalid"
    assert decision.actions == ()
