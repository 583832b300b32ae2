"""Who may do what, decided by the real API server: people's roles and the operator's, as an access matrix (C43)."""

import json
from collections.abc import Iterator, Sequence

import pytest

from tests.chart.rendering import objects
from tests.e2e.harness import Kube, wait_for
from tests.e2e.refusals import Object, create, patch, refused, scratch_namespace
from tests.e2e.test_answers import answer, question

NAMESPACE, OTHER = "api-access", "api-access-other"
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
READ = {"get", "list", "watch"}
OPERATOR = f"system:serviceaccount:{NAMESPACE}:access"

# user → (ClusterRole bound in NAMESPACE, resource → verbs). What is not listed is refused.
PEOPLE: dict[str, tuple[str, dict[str, set[str]]]] = {
    "nora": ("", {}),
    "jane": ("everstep-approver", {"humanrequests": READ | {"patch"}}),
    "vera": ("view", {"agentruns": READ, "humanrequests": READ}),
    "evan": ("edit", {"agentruns": set(VERBS), "humanrequests": READ}),
    "rita": ("everstep-author", {"agentruns": READ | {"create", "patch", "delete"}}),
    "adam": ("admin", {"agentruns": set(VERBS), "humanrequests": READ}),
}
EVERSTEP = ("agentruns", "agentruns/status", "agentruns/finalizers", "humanrequests", "humanrequests/status")
CORE = ("pods", "secrets", "configmaps", "events", "services", "serviceaccounts", "pods/exec", "pods/eviction")
OPERATOR_MAY: dict[str, set[str]] = {
    "agentruns": READ | {"delete"},
    "agentruns/status": {"patch"},
    "agentruns/finalizers": {"update"},
    "humanrequests": READ | {"create"},
    "humanrequests/status": {"patch"},
    "pods": READ | {"create", "delete"},
    "secrets": {"get", "create"},
    "configmaps": {"get"},
    "events": {"get", "create", "patch"},
}


@pytest.fixture(scope="module")
def kube(api_server: Kube) -> Iterator[Kube]:
    """A namespace with one person per role, and the rights of an operator that serves this namespace alone."""
    with scratch_namespace(api_server, NAMESPACE), scratch_namespace(api_server, OTHER):
        api = "rbac.authorization.k8s.io"
        for user, (role, _) in PEOPLE.items():
            if role:
                binding = {
                    "apiVersion": f"{api}/v1",
                    "kind": "RoleBinding",
                    "metadata": {"name": f"{user}-{role}", "namespace": NAMESPACE},
                    "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": role},
                    "subjects": [{"apiGroup": api, "kind": "User", "name": user}],
                }
                api_server.apply(binding)
        values = {"crds": {"enabled": False}, "watchNamespaces": [NAMESPACE], "fullnameOverride": "access"}
        rendered = objects(values, release="access", namespace=NAMESPACE)
        api_server.apply(*(o for o in rendered if o["kind"] in {"ServiceAccount", "Role", "RoleBinding"}))
        # The controller adds our roles to Kubernetes' own a moment after they were made.
        wait_for(
            "everstep-edit to count towards edit",
            lambda: may(api_server, "evan", NAMESPACE, ["agentruns"])["agentruns"],
            timeout_s=60,
        )
        yield api_server


def may(kube: Kube, user: str, namespace: str, resources: Sequence[str]) -> dict[str, set[str]]:
    """What the API server's authorizer allows the user: resource → verbs."""
    asked = [(resource, verb) for resource in resources for verb in VERBS]
    items = [review(user, namespace, resource, verb) for resource, verb in asked]
    text = kube(
        "create", "-f", "-", "-o", "json", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    )
    found: dict[str, set[str]] = {resource: set() for resource in resources}
    for resource, verb in asked:
        told, end = json.JSONDecoder().raw_decode(text)  # kubectl writes one document after the other
        text = text[end:].lstrip()
        assert (told["spec"]["resourceAttributes"]["verb"], told["spec"]["user"]) == (verb, user)
        if told["status"]["allowed"]:
            found[resource].add(verb)
    assert not text
    return found


def review(user: str, namespace: str, resource: str, verb: str) -> Object:
    """A SubjectAccessReview."""
    kind, _, sub = resource.partition("/")
    group = "everstep.dev" if resource in EVERSTEP else ""
    attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": kind, "subresource": sub}
    spec = {"user": user, "groups": ["system:authenticated"], "resourceAttributes": attributes}
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}


@pytest.mark.parametrize("user", PEOPLE)
def test_people(kube: Kube, user: str) -> None:
    """Each role has its verbs on Everstep's objects and no other; never on a status, never in another namespace."""
    expected = {resource: PEOPLE[user][1].get(resource, set()) for resource in EVERSTEP}
    assert may(kube, user, NAMESPACE, EVERSTEP) == expected
    assert not any(may(kube, user, OTHER, EVERSTEP).values())


@pytest.mark.parametrize("user", ["jane", "rita"])
def test_an_approver_and_an_author_have_nothing_else(kube: Kube, user: str) -> None:
    """No pod, no Secret, no ConfigMap: neither to see nor to touch."""
    assert not any(may(kube, user, NAMESPACE, CORE).values())


def test_the_operator_of_one_namespace(kube: Kube) -> None:
    """Its rights there, none elsewhere, none on the cluster's own objects. It can neither answer a question nor change a spec."""
    expected = {resource: OPERATOR_MAY.get(resource, set()) for resource in (*EVERSTEP, *CORE)}
    assert may(kube, OPERATOR, NAMESPACE, (*EVERSTEP, *CORE)) == expected
    assert not any(may(kube, OPERATOR, OTHER, (*EVERSTEP, *CORE)).values())
    assert not any(may(kube, OPERATOR, "", ("nodes", "namespaces", "persistentvolumes", "agentruns")).values())


def test_the_refusals_are_real(kube: Kube) -> None:
    """The same by doing it: an editor cannot answer, an approver can and cannot start or delete anything."""
    asked = create(kube, {**question("real"), "metadata": {"name": "real", "namespace": NAMESPACE}})
    with refused("Forbidden", 'cannot patch resource "humanrequests"'):
        patch(kube, asked, answer(by="evan"), "--as=evan")
    with refused("Forbidden", 'cannot patch resource "humanrequests"'):
        patch(kube, asked, answer(by=OPERATOR), f"--as={OPERATOR}")
    with refused("Forbidden", 'cannot create resource "humanrequests"'):
        create(kube, {**question("forged"), "metadata": {"name": "forged", "namespace": NAMESPACE}}, "--as=jane")
    with refused("Forbidden", 'cannot delete resource "humanrequests"'):
        kube("-n", NAMESPACE, "delete", "hreq", "real", "--as=jane")
    with refused("Forbidden", "humanrequests/status"):
        patch(kube, asked, {"status": {"state": "Applied"}}, "--subresource=status", "--as=jane")
    assert patch(kube, asked, answer(by="jane"), "--as=jane")["spec"]["response"]["by"] == "jane"
