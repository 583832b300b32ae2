"""Bad input: each gives a condition and an Event that tell a user what to fix, and none loops hot. E16-E18, C59-C61."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.conftest import NAMESPACE
from tests.e2e.harness import Kube, Run, wait_for
from tests.kind.errors import CommandFailed

Make = Callable[..., Run]
QUIET_S = 10
"""How long a blocked run is watched for restlessness."""


def condition_texts(run: Run) -> str:
    """All reasons and messages in force."""
    conditions = run.status().get("conditions", [])
    return " | ".join(f"{c['type']}={c['status']} {c['reason']}: {c.get('message', '')}" for c in conditions)


def wait_said(run: Run, *words: str, timeout_s: float = 90) -> None:
    """Wait until conditions and Events both say these words."""

    def said() -> bool:
        events = " | ".join(f"{e['reason']}: {e['message']}" for e in run.events())
        return all(w in condition_texts(run) for w in words) and words[0] in events

    try:
        wait_for(f"{run.name} to say {words}", said, timeout_s=timeout_s)
    except AssertionError as e:
        events = [(x["reason"], x["message"]) for x in run.events()]
        raise AssertionError(f"{e}\nconditions: {condition_texts(run)}\nevents: {events}") from e


def assert_quiet(run: Run) -> None:
    """No hot loop: looked at for QUIET_S, the object is hardly written and burns no attempts."""
    attempt = run.attempt()
    versions = []
    for _ in range(QUIET_S):
        versions.append(run.get()["metadata"]["resourceVersion"])
        time.sleep(1)  # watching nothing happen takes time
    assert run.attempt() <= attempt + 1, f"attempts are burnt: {attempt} → {run.attempt()}"
    assert len(set(versions)) <= 3, f"the object is written all the time: {versions}"


BLOCKED: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("bad-entrypoint", {"entrypoint": "scripted:walk"}, ("BadEntrypoint", "walk")),
    ("bad-module", {"entrypoint": "nowhere:run"}, ("BadEntrypoint", "nowhere")),
    ("bad-image", {"image": "everstep/none:dev"}, ("everstep/none:dev",)),
    ("no-sdk", {"image": "everstep/redis:dev"}, ("NoSDK", "python -m everstep.run")),
    ("no-secret", {"envFrom": [{"secretRef": {"name": "not-there"}}]}, ("not-there",)),
]


@pytest.mark.parametrize(("name", "agent", "words"), BLOCKED, ids=[b[0] for b in BLOCKED])
def test_agent_that_cannot_start(make_run: Make, name: str, agent: dict[str, Any], words: tuple[str, ...]) -> None:
    """The object says what is wrong, in the words a user can act on."""
    run = make_run(name, agent_change=agent)
    wait_said(run, *words)
    assert run.status()["summary"] in {"Blocked", "Failed"}, run.summary()
    assert_quiet(run)


def test_a_missing_secret_heals_without_a_new_attempt(kube: Kube, make_run: Make) -> None:
    """E18: the Secret arrives a little later; the same attempt starts."""
    kube("-n", NAMESPACE, "delete", "secret", "late", "--ignore-not-found")
    run = make_run("late-secret", agent_change={"envFrom": [{"secretRef": {"name": "late"}}]})
    wait_said(run, "late")
    kube.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "late", "namespace": NAMESPACE},
            "stringData": {"A": "b"},
        }
    )
    try:
        status = run.wait_finished()
    finally:
        kube("-n", NAMESPACE, "delete", "secret", "late")
    assert status["summary"] == "Succeeded", run.summary()
    assert status["attempt"] == 1


def test_goal_from_a_missing_config_map(kube: Kube, make_run: Make) -> None:
    """goalFrom names a ConfigMap that is not there: said with its name, and healed when it arrives."""
    kube("-n", NAMESPACE, "delete", "configmap", "goals", "--ignore-not-found")
    run = make_run("no-goal", goal=None, goalFrom={"configMapKeyRef": {"name": "goals", "key": "monday"}})
    wait_said(run, "goals")
    kube.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "goals", "namespace": NAMESPACE},
            "data": {"monday": "no-goal"},
        }
    )
    try:
        assert run.wait_finished()["summary"] == "Succeeded"
    finally:
        kube("-n", NAMESPACE, "delete", "configmap", "goals")


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("wrong field", {"gaol": "x"}, "gaol"),
    ("goal over the limit", {"goal": "x" * 200_000}, "goal"),
    ("no goal at all", {"goal": None}, "goal"),
    ("bad desired state", {"desiredState": "Sleeping"}, "desiredState"),
    ("bad entrypoint", {"agent": {"entrypoint": "no colon", "image": "x"}}, "entrypoint"),
]


@pytest.mark.parametrize(("name", "change", "word"), REFUSED, ids=[r[0] for r in REFUSED])
def test_refused_at_the_door(kube: Kube, scripted: str, name: str, change: dict[str, Any], word: str) -> None:
    """What the schema can tell is refused by the API server, naming the field."""
    spec: dict[str, Any] = {
        "goal": "g",
        "agent": {"entrypoint": "scripted:run", "image": "everstep/agent:dev"},
        **change,
    }
    spec = {key: value for key, value in spec.items() if value is not None}
    run = Run(kube, NAMESPACE, name.replace(" ", "-"), spec)
    with pytest.raises(CommandFailed, match=word):
        run.create()
