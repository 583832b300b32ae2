"""AgentRuns on the real API server: every refusal of a wrong or changed spec, with the words a user reads.

Refusals of questions and answers are in test_answers.py, who may do what in test_access.py. C45: limits hold at the API already.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from tests.e2e.harness import Kube
from tests.e2e.refusals import Object, create, merged, patch, refused, scratch_namespace
from tests.kind.errors import CommandFailed
from tests.tidy.test_house_rules import ROOT

NAMESPACE = "api-runs"
DRY = "--dry-run=server"
EXAMPLES = sorted((ROOT / "crds" / "examples").glob("*.yaml"))
# Suspended, so that an operator that serves every namespace of this cluster starts nothing.
RUN: Object = {
    "apiVersion": "everstep.dev/v1alpha1",
    "kind": "AgentRun",
    "metadata": {"name": "run", "namespace": NAMESPACE},
    "spec": {
        "goal": "Triage the backlog",
        "inputs": {"backlog": "tickets.json", "depth": {"levels": [1, 2, {"a": 0.5}]}},
        "agent": {"entrypoint": "triage:run", "image": "everstep/agent:dev"},
        "desiredState": "Suspended",
    },
}


@pytest.fixture(scope="module")
def kube(api_server: Kube) -> Iterator[Kube]:
    """The API server with the CRDs, and a namespace for this module."""
    with scratch_namespace(api_server, NAMESPACE):
        yield api_server


def run(change: Mapping[str, Any] | None = None, name: str = "run") -> Object:
    """RUN with a changed spec."""
    found: Object = merged(RUN, {"spec": change or {}, "metadata": {"name": name}})
    return found


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: str(p.name))
def test_every_example_is_accepted(kube: Kube, path: Any) -> None:
    """Each document of crds/examples that stands for itself; strict, so that no field is unknown."""
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        if "kind" not in document:
            assert path.name == "humanrequest-answer.yaml", "only this one is a patch; test_answers.py applies it"
            continue
        document["metadata"]["namespace"] = NAMESPACE
        create(kube, document, DRY, "--validate=strict")


BAD: list[tuple[Mapping[str, Any], tuple[str, ...]]] = [
    ({"goal": None}, ("spec.goal", "exactly one of goal and goalFrom")),
    ({"goalFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}, ("spec.goal", "exactly one of goal and goalFrom")),
    ({"goal": ""}, ("spec.goal", "at least 1 chars")),
    ({"goal": "x" * 65537}, ("spec.goal", "65536")),
    ({"goal": None, "goalFrom": {}}, ("spec.goalFrom", "exactly one of configMapKeyRef and secretKeyRef")),
    ({"goal": None, "goalFrom": {"secretKeyRef": {"name": "a"}}}, ("spec.goalFrom.secretKeyRef.key", "Required value")),
    ({"agent": None}, ("spec.agent", "Required value")),
    ({"agent": {"entrypoint": None}}, ("spec.agent.entrypoint", "Required value")),
    ({"agent": {"entrypoint": "triage.run"}}, ("spec.agent.entrypoint", "should match")),
    ({"agent": {"entrypoint": "triage:run()"}}, ("spec.agent.entrypoint", "should match")),
    ({"agent": {"imagee": "x"}}, ("unknown field", "spec.agent.imagee")),
    ({"agent": {"env": [{"value": "x"}]}}, ("spec.agent.env[0].name", "Required value")),
    ({"agent": {"args": ["x"] * 257}}, ("spec.agent.args", "at most 256 items")),
    ({"inputs": "text"}, ("spec.inputs", "must be of type object")),
    ({"budget": {"maxSteps": 1}}, ("unknown field", "spec.budget")),
    ({"desiredState": "Paused"}, ("spec.desiredState", '"Running", "Suspended", "Cancelled"')),
    ({"nodeLoss": {"policy": "Delete"}}, ("spec.nodeLoss.policy", '"Fence", "Wait"')),
    ({"nodeLoss": {"afterSeconds": -1}}, ("spec.nodeLoss.afterSeconds", "greater than or equal to 0")),
    ({"nodeLoss": {"afterSeconds": 1.5}}, ("spec.nodeLoss.afterSeconds", "must be of type integer")),
    ({"restarts": {"application": {"max": -1}}}, ("spec.restarts.application.max", "greater than or equal to 0")),
    (
        {"restarts": {"outOfMemory": {"memoryFactorPercent": 99}}},
        ("memoryFactorPercent", "greater than or equal to 100"),
    ),
    ({"deadlineSeconds": 0}, ("spec.deadlineSeconds", "greater than or equal to 1")),
    ({"cancelGraceSeconds": "30s"}, ("spec.cancelGraceSeconds", "must be of type integer")),
    ({"ttlSecondsAfterFinished": -1}, ("spec.ttlSecondsAfterFinished", "greater than or equal to 0")),
    ({"template": {"hostNetwork": True}}, ("unknown field", "spec.template.hostNetwork")),
    (
        {"template": {"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}},
        ("spec.template.volumes", "hostPath volumes are not allowed"),
    ),
    (
        {"template": {"volumes": [{"name": "everstep-run", "emptyDir": {}}]}},
        ("spec.template.volumes", "the operator's volume"),
    ),
    (
        {"template": {"sidecars": [{"name": "agent", "image": "x"}]}},
        ("spec.template.sidecars", "the agent's own container"),
    ),
    (
        {"template": {"imagePullPolicy": "Sometimes"}},
        ("spec.template.imagePullPolicy", '"Always", "IfNotPresent", "Never"'),
    ),
    ({"template": {"labels": {"a": "x" * 64}}}, ("spec.template.labels.a", "63")),
    (
        {"template": {"terminationGracePeriodSeconds": -1}},
        ("terminationGracePeriodSeconds", "greater than or equal to 0"),
    ),
]


@pytest.mark.parametrize(("change", "words"), BAD, ids=lambda x: json.dumps(x)[:50] if isinstance(x, dict) else "")
def test_a_wrong_spec_is_refused(kube: Kube, change: Mapping[str, Any], words: tuple[str, ...]) -> None:
    """Naming the field and what would be right, before anything is stored."""
    with refused(*words):
        create(kube, run(change), DRY)


def test_a_name_leaves_room_for_its_pods(kube: Kube) -> None:
    """52 characters and no more: pods and questions add to it, and 63 is the end."""
    create(kube, run(name="a" * 52), DRY)
    with refused("may have at most 52 characters"):
        create(kube, run(name="a" * 53), DRY)


CHANGES: list[tuple[Mapping[str, Any], tuple[str, ...]]] = [
    ({"goal": "Another"}, ("spec.goal", "the goal of a run cannot be changed")),
    (
        {"goal": None, "goalFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}},
        ("the goal of a run cannot be changed",),
    ),
    ({"inputs": {"backlog": "other.json"}}, ("spec.inputs", "the inputs of a run cannot be changed")),
    ({"inputs": {"more": 1}}, ("spec.inputs", "the inputs of a run cannot be changed")),
    ({"inputs": {"depth": {"levels": [1, 2, {"a": 0.25}]}}}, ("spec.inputs", "the inputs of a run cannot be changed")),
    ({"inputs": None}, ("spec.inputs", "the inputs of a run cannot be changed")),
]


@pytest.fixture(scope="module")
def stored(kube: Kube) -> Object:
    """A run that is there."""
    return create(kube, run(name="stored"))


@pytest.mark.parametrize(("change", "words"), CHANGES, ids=lambda x: json.dumps(x)[:50] if isinstance(x, dict) else "")
def test_what_the_journal_begins_with_cannot_be_changed(
    kube: Kube, stored: Object, change: Mapping[str, Any], words: tuple[str, ...]
) -> None:
    """Changed, replaced or removed."""
    with refused(*words):
        patch(kube, stored, {"spec": change}, DRY)


def test_a_goal_reference_cannot_be_changed(kube: Kube) -> None:
    """Nor can inputs be added where there were none."""
    source = {"configMapKeyRef": {"name": "goals", "key": "first"}}
    found = create(kube, run({"goal": None, "goalFrom": source, "inputs": None}, name="referenced"))
    for change in ({"goalFrom": {"configMapKeyRef": {"key": "second"}}}, {"goal": "x", "goalFrom": None}):
        with refused("the goal of a run cannot be changed"):
            patch(kube, found, {"spec": change}, DRY)
    with refused("the inputs of a run cannot be changed"):
        patch(kube, found, {"spec": {"inputs": {"a": 1}}}, DRY)


ALLOWED: list[Mapping[str, Any]] = [
    {"desiredState": "Running"},
    {"desiredState": "Cancelled"},
    {"agent": {"image": "everstep/agent:next"}},
    {"agent": {"resources": {"limits": {"memory": "2Gi"}}}},
    {"deadlineSeconds": 3600},
    {"restarts": {"application": {"max": 9}}},
    {"template": {"nodeSelector": {"disk": "ssd"}}},
]


@pytest.mark.parametrize("change", ALLOWED, ids=lambda x: json.dumps(x)[:50])
def test_the_rest_may_change_under_a_run(kube: Kube, stored: Object, change: Mapping[str, Any]) -> None:
    """C62: image, resources, limits and wishes."""
    patch(kube, stored, {"spec": change}, DRY)


def test_cancelled_is_for_good(kube: Kube) -> None:
    """A wish to cancel cannot be taken back, not by removing the field either."""
    found = create(kube, run({"desiredState": "Cancelled"}, name="cancelled"))
    for state in ("Running", "Suspended", None):
        with refused("spec.desiredState", "a cancelled run cannot be resumed"):
            patch(kube, found, {"spec": {"desiredState": state}}, DRY)


def test_spec_and_status_are_written_apart(kube: Kube, stored: Object) -> None:
    """The status subresource changes no spec, and an update of the object no status."""
    before = patch(kube, stored, {"spec": {"deadlineSeconds": 7200}, "status": {"attempt": 7}})
    assert before.get("status", {}).get("attempt", 0) != 7
    after = patch(
        kube, stored, {"spec": {"deadlineSeconds": 1}, "status": {"summary": "Starting"}}, "--subresource=status", DRY
    )
    assert after["spec"]["deadlineSeconds"] == 7200


def test_two_writers_of_the_status(kube: Kube) -> None:
    """E24, E21: the attempt bump is a JSON patch with tests on uid and old value; the second writer changes nothing."""
    found = create(kube, run(name="bumped"))
    uid = found["metadata"]["uid"]

    def bump(old: int | None, new: int, uid: str = uid) -> int:
        tests = [{"op": "test", "path": "/metadata/uid", "value": uid}]
        path, value = ("/status", {"attempt": new}) if old is None else ("/status/attempt", new)
        writes = [{"op": "test", "path": path, "value": old}, {"op": "add", "path": path, "value": value}]
        words = ["-n", NAMESPACE, "patch", "agentrun", "bumped", "--subresource=status", "--type=json", "-o", "json"]
        return int(json.loads(kube(*words, "-p", json.dumps(tests + writes)))["status"]["attempt"])

    assert bump(None, 1) == 1
    for old, new, other in ((None, 1, uid), (2, 3, uid), (1, 2, "another")):
        with pytest.raises(CommandFailed) as caught:
            bump(old, new, other)
        assert "testing path" in caught.value.output or "the server rejected our request" in caught.value.output
    assert bump(1, 2) == 2


def test_columns_names_and_selectors(kube: Kube, stored: Object) -> None:
    """C60: what `kubectl get` shows, the short name, the category."""
    header, line = kube("-n", NAMESPACE, "get", "arun", "stored").splitlines()
    assert header.split() == ["NAME", "SUMMARY", "REASON", "STEP", "ATTEMPT", "RESTARTS", "WAITING", "AGE"]
    assert line.startswith("stored")
    wide = kube("-n", NAMESPACE, "get", "arun", "stored", "-o", "wide").splitlines()[0]
    assert wide.split()[8:] == ["POD", "NODE", "LAST", "STEP", "TOKENS"]
    assert "agentrun.everstep.dev/stored" in kube("-n", NAMESPACE, "get", "everstep")
    assert "stored" in kube("-n", NAMESPACE, "get", "arun", "--field-selector=spec.desiredState=Suspended")
    assert "stored" not in kube("-n", NAMESPACE, "get", "arun", "--field-selector=spec.desiredState=Running")
