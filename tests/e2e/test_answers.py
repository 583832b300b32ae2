"""HumanRequests on the real API server: every refusal of a wrong question or answer, with the words a person reads.

C35, C41: an answer names what it answers. C43: it carries the answerer's own name. E29: the first answer stands.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from tests.e2e.harness import Kube
from tests.e2e.refusals import Object, create, merged, patch, refused, scratch_namespace
from tests.tidy.test_house_rules import ROOT

NAMESPACE = "api-answers"
EXAMPLES = ROOT / "crds" / "examples"
QUESTION: Object = yaml.safe_load((EXAMPLES / "humanrequest.yaml").read_text(encoding="utf-8"))
DIGEST = str(QUESTION["spec"]["argumentsDigest"])
ADMIN = "kubernetes-admin"
DRY = "--dry-run=server"


@pytest.fixture(scope="module")
def kube(api_server: Kube) -> Iterator[Kube]:
    """The API server with the CRDs, and a namespace in which jane and joe may answer."""
    with scratch_namespace(api_server, NAMESPACE):
        subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name} for name in ("jane", "joe")]
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "everstep-approver"}
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "roleRef": role,
            "subjects": subjects,
        }
        api_server.apply({**binding, "metadata": {"name": "answers", "namespace": NAMESPACE}})
        yield api_server


def question(name: str, change: Mapping[str, Any] | None = None) -> Object:
    """The example under another name, changed."""
    placed = merged(QUESTION, {"metadata": {"name": name, "namespace": NAMESPACE}})
    found: Object = merged(placed, change or {})
    return found


@pytest.fixture
def asked(kube: Kube, request: pytest.FixtureRequest) -> Object:
    """A fresh question."""
    number = abs(hash(request.node.nodeid)) % 10**8
    return create(kube, question(f"q-{number}"))


def answer(decision: str = "again", by: str = ADMIN, **more: Any) -> Object:
    return {"spec": {"response": {"decision": decision, "by": by, "argumentsDigest": DIGEST, **more}}}


def test_the_examples_are_accepted(kube: Kube) -> None:
    """The question as it is, then the answer as it is."""
    asked = create(kube, question("example"))
    told = yaml.safe_load((EXAMPLES / "humanrequest-answer.yaml").read_text(encoding="utf-8"))
    assert patch(kube, asked, told)["spec"]["response"] == told["spec"]["response"]


def test_nobody_creates_an_answered_question(kube: Kube) -> None:
    """Not even who may answer; by create and by apply alike."""
    words = ("spec.response", "cannot be created with an answer in it")
    with refused(*words):
        create(kube, question("born-answered", answer()))
    with refused(*words):
        kube.apply(question("born-answered", answer()))


@pytest.mark.parametrize("field", ["runRef", "key", "kind", "prompt", "argumentsDigest"])
def test_a_question_is_whole(kube: Kube, field: str) -> None:
    """Each part that an answer or the operator relies on is required."""
    with refused(f"spec.{field}", "Required value"):
        create(kube, question("part", {"spec": {field: None}}), DRY)


BAD_QUESTIONS: list[tuple[Mapping[str, Any], tuple[str, ...]]] = [
    ({"kind": "approval"}, ("spec.kind", 'supported values: "uncertain"')),
    ({"argumentsDigest": "3F" * 32}, ("spec.argumentsDigest", "should match")),
    ({"argumentsDigest": "3f"}, ("spec.argumentsDigest", "should match")),
    ({"key": ""}, ("spec.key", "at least 1 chars")),
    ({"prompt": "x" * 4097}, ("spec.prompt", "4096")),
    ({"runRef": {"uid": None}}, ("spec.runRef.uid", "Required value")),
    ({"runRef": {"name": "x" * 53}}, ("spec.runRef.name", "52")),
    ({"deadline": "tomorrow"}, ("unknown field", "spec.deadline")),
]


@pytest.mark.parametrize(("change", "words"), BAD_QUESTIONS, ids=lambda x: str(x)[:40] if isinstance(x, dict) else "")
def test_a_wrong_question_is_refused(kube: Kube, change: Mapping[str, Any], words: tuple[str, ...]) -> None:
    """Kinds arrive one by one; limits hold; unknown fields are named."""
    with refused(*words):
        create(kube, question("wrong", {"spec": change}), DRY)


CHANGES: dict[str, object] = {
    "runRef": {"uid": "another"},
    "key": "13",
    "step": "another",
    "prompt": "another",
    "reason": "another",
    "arguments": {"to": "mallory@example.org"},
    "argumentsDigest": "0" * 64,
}


@pytest.mark.parametrize("field", CHANGES)
def test_a_question_cannot_be_changed(kube: Kube, asked: Object, field: str) -> None:
    """C41: what was asked is what is answered. Neither changed nor, where it is optional, removed; nor while answering."""
    words = (f"spec.{field}", "a question cannot be changed")
    with refused(*words):
        patch(kube, asked, {"spec": {field: CHANGES[field]}}, DRY)
    if field in ("step", "reason", "arguments"):
        with refused(*words):
            patch(kube, asked, {"spec": {field: None}}, DRY)
    with refused(*words):
        patch(kube, asked, merged(answer(), {"spec": {field: CHANGES[field]}}), DRY)


def test_an_argument_cannot_be_added_to_a_question(kube: Kube) -> None:
    """Masked arguments stay masked."""
    masked = create(kube, question("masked", {"spec": {"arguments": None}}))
    with refused("spec.arguments", "a question cannot be changed"):
        patch(kube, masked, {"spec": {"arguments": {"to": "x"}}}, DRY)


BAD_ANSWERS: list[tuple[Mapping[str, Any], tuple[str, ...]]] = [
    ({"decision": None}, ("spec.response.decision", "Required value")),
    ({"by": None}, ("spec.response.by", "Required value")),
    ({"argumentsDigest": None}, ("spec.response.argumentsDigest", "Required value")),
    ({"decision": "maybe"}, ("spec.response.decision", '"done", "again", "fail"')),
    ({"argumentsDigest": "0" * 64}, ("spec.response.argumentsDigest", "about other arguments than the question")),
    ({"value": 1}, ("spec.response.value", "only with decision done")),
    ({"value": {"a": [1]}}, ("spec.response.value", "only with decision done")),
    ({"decision": "fail", "value": "x"}, ("spec.response.value", "only with decision done")),
    ({"reason": "x" * 1025}, ("spec.response.reason", "1024")),
    ({"by": "jane"}, ('by is "jane"', 'knows you as "kubernetes-admin"', "one's own name")),
]


@pytest.mark.parametrize(("change", "words"), BAD_ANSWERS, ids=lambda x: str(x)[:40] if isinstance(x, dict) else "")
def test_a_wrong_answer_is_refused(
    kube: Kube, asked: Object, change: Mapping[str, Any], words: tuple[str, ...]
) -> None:
    """Each with its reason and its field; the question stays open."""
    with refused(*words):
        patch(kube, asked, merged(answer(), {"spec": {"response": change}}))


def test_an_answer_is_given_in_ones_own_name(kube: Kube, asked: Object) -> None:
    """C43: jane answers as jane, not as joe, and joe not as jane; also when the cluster's admin acts for them."""
    with refused('by is "joe"', 'knows you as "jane"'):
        patch(kube, asked, answer(by="joe"), "--as=jane")
    with refused('by is "jane"', 'knows you as "joe"'):
        patch(kube, asked, answer(by="jane"), "--as=joe")
    with refused('by is "admin"'):
        patch(kube, asked, answer(by="admin"))
    assert patch(kube, asked, answer(by="jane"), "--as=jane")["spec"]["response"]["by"] == "jane"


VALUES: list[object] = ["text", 7, 0.5, True, [1, {"a": 2}], {"deep": {"er": [1, 2]}}, {}, []]


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_done_takes_any_json(kube: Kube, asked: Object, value: object) -> None:
    """What a step can return, kept as it was written."""
    done = patch(kube, asked, answer("done", value=value, reason="seen in the log"))
    assert done["spec"]["response"]["value"] == value


def test_done_keeps_nulls_in_a_json_patch(kube: Kube, asked: Object) -> None:
    """A merge patch drops every null it holds, which is its nature; a JSON patch does not."""
    response = answer("done", value={"a": None, "b": [None, {"c": None}]})["spec"]["response"]
    change = json.dumps([{"op": "add", "path": "/spec/response", "value": response}])
    name = asked["metadata"]["name"]
    told = json.loads(kube("-n", NAMESPACE, "patch", "hreq", name, "--type=json", "-p", change, "-o", "json"))
    assert told["spec"]["response"]["value"] == {"a": None, "b": [None, {"c": None}]}


@pytest.mark.parametrize("decision", ["done", "again", "fail"])
def test_each_decision_without_a_value(kube: Kube, asked: Object, decision: str) -> None:
    """`done` without a value means null."""
    assert "value" not in patch(kube, asked, answer(decision))["spec"]["response"]


AFTERTHOUGHTS: list[Mapping[str, Any]] = [
    {"decision": "fail"},
    {"value": {"messageId": "other"}},
    {"value": None},
    {"reason": "other"},
    {"reason": None},
    {"by": "jane"},
]


def test_the_first_answer_stands(kube: Kube, asked: Object) -> None:
    """E29: it cannot be changed, withdrawn or replaced, by its author or another; the same again is no change."""
    first = answer("done", value={"messageId": "1"}, reason="seen")
    patch(kube, asked, first)
    for change in AFTERTHOUGHTS:
        with refused("answered already"):
            patch(kube, asked, {"spec": {"response": change}}, DRY)
    with refused("answered already"):
        patch(kube, asked, {"spec": {"response": None}}, DRY)
    with refused("answered already"):
        patch(kube, asked, answer(by="jane"), DRY, "--as=jane")
    patch(kube, asked, first)
    patch(kube, asked, first, DRY, "--as=jane")
    patch(kube, asked, {"metadata": {"labels": {"seen": "yes"}}})


def test_a_stale_question_takes_no_answer(kube: Kube, asked: Object) -> None:
    """C41: the message says where to look instead."""
    patch(kube, asked, {"status": {"state": "Stale", "message": "the run ended"}}, "--subresource=status")
    with refused("spec.response", "not open any more", "newer HumanRequest"):
        patch(kube, asked, answer(), DRY)


def test_an_answered_question_may_become_stale(kube: Kube, asked: Object) -> None:
    """The operator's own way: Open, Answered, Applied or Stale, and nothing else."""
    patch(kube, asked, answer())
    for state in ("Open", "Answered", "Applied", "Stale"):
        patch(kube, asked, {"status": {"state": state}}, "--subresource=status")
    with refused("status.state", "supported values"):
        patch(kube, asked, {"status": {"state": "Done"}}, "--subresource=status")


def test_an_answer_cannot_come_in_through_the_status(kube: Kube, asked: Object) -> None:
    """The status subresource changes the status alone, and the answer changes no status."""
    sent = merged(answer(), {"status": {"state": "Open"}})
    assert "response" not in patch(kube, asked, sent, "--subresource=status")["spec"]
    sent = merged(answer(), {"status": {"state": "Applied"}})
    assert patch(kube, asked, sent)["status"]["state"] == "Open"


def test_columns_and_selectors(kube: Kube, asked: Object) -> None:
    """C60: what `kubectl get hreq` shows, its short name and category, and how to find the questions of a run."""
    patch(kube, asked, answer())
    name = asked["metadata"]["name"]
    header, line = kube("-n", NAMESPACE, "get", "hreq", name).splitlines()
    assert header.split() == ["NAME", "RUN", "KIND", "STEP", "ANSWERED", "BY", "AGE"]
    assert line.split()[:-1] == [name, "triage", "uncertain", "send_mail", "again", ADMIN]
    wide = kube("-n", NAMESPACE, "get", "hreq", name, "-o", "wide").splitlines()[0].split()
    assert wide[-3:] == ["STATE", "KEY", "QUESTION"]
    assert name in kube("-n", NAMESPACE, "get", "hreq", "--field-selector=spec.runRef.name=triage")
    assert name not in kube("-n", NAMESPACE, "get", "hreq", "--field-selector=spec.runRef.name=other")
    assert name in kube("-n", NAMESPACE, "get", "everstep")


def test_every_field_is_described(kube: Kube) -> None:
    """`kubectl explain` has a sentence for each."""
    told = kube("explain", "humanrequests", "--recursive", "--output=plaintext-openapiv2", timeout_s=30)
    for field in ("runRef", "argumentsDigest", "response", "decision", "value"):
        assert field in told
    for path in ("spec.runRef.uid", "spec.response.by", "spec.response.value", "status.state"):
        assert "<empty>" not in kube("explain", f"humanrequests.{path}")
