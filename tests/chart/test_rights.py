"""The operator's rights are exactly the requests its code can make: no verb is missing, none is too many.

What the code can make is seen, not declared: every verb of `everstep_operator.cluster.client` that the operator calls is run
against an API that only writes down the request; kopf's watches are read from the registry of the handlers; the key Secrets and
the Secret of Redis' passwords are made for real by their own code.
"""

import ast
import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from everstep.clock import SystemClock
from everstep.journal.memory import MemoryStore
from everstep_operator import handlers, keyring, redis_auth, signing_keys
from everstep_operator.api.meta import owner_reference
from everstep_operator.cluster.api import KubeApi
from everstep_operator.cluster.client import Cluster
from everstep_operator.cluster.own import OwnSecrets
from everstep_operator.errors import AlreadyExists, NotFound
from everstep_operator.settings import Settings
from everstep_operator.wrapping_keys import Wrapping
from tests.chart.rendering import OWN_REDIS, Object, objects
from tests.chart.sync import ROOT

SOURCES = ROOT / "operator" / "everstep_operator"
Right = tuple[str, str, str]
"""(API group, resource or resource/subresource, verb)."""


@dataclass
class Recorder:
    """Stands in for KubeApi: notes what was asked, and answers 404 or "already there", so that every branch goes on."""

    seen: set[Right] = field(default_factory=set)
    content: Mapping[str, Any] = field(default_factory=dict)
    created: bool = False

    async def read(self, path: str, query: Mapping[str, str] | None = None, *, accept: str = "") -> Object:
        """GET: of one object or of a collection."""
        group, resource, named = split(path)
        self.seen.add((group, resource, "get" if named else "list"))
        if named and not self.created:
            raise NotFound("404", status=404, reason="NotFound")
        return dict(self.content)

    async def write(self, method: str, path: str, body: object, **_: Any) -> Object:
        """POST, PATCH, PUT, DELETE."""
        group, resource, named = split(path)
        verb = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}[method]
        if verb == "delete" and not named:
            verb = "deletecollection"
        self.seen.add((group, resource, verb))
        if verb == "create" and not self.created:
            self.created = True
            raise AlreadyExists("409", status=409, reason="AlreadyExists")
        return dict(self.content)


def split(path: str) -> tuple[str, str, bool]:
    """`/api/v1/namespaces/x/pods/y` → ("", "pods", True)."""
    parts = path.strip("/").split("/")
    group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    if rest[0] == "namespaces" and len(rest) > 2:
        rest = rest[2:]
    return group, "/".join([rest[0], *rest[2:3]]), len(rest) > 1


def operator_modules() -> Iterator[Path]:
    yield from sorted(SOURCES.rglob("*.py"))


def called_names() -> set[str]:
    """Every attribute the operator's code mentions outside the client itself."""
    return {
        node.attr
        for path in operator_modules()
        if path != SOURCES / "cluster" / "client.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
    }


async def call(client: Cluster, name: str) -> None:
    """Call one verb with plausible arguments of the annotated types."""
    method = getattr(client, name)
    arguments = {}
    for parameter in inspect.signature(method).parameters.values():
        if parameter.default is inspect.Parameter.empty:
            sequence = "Sequence" in str(parameter.annotation)
            arguments[parameter.name] = [] if sequence else {} if "Mapping" in str(parameter.annotation) else "x"
    outcome = method(**arguments)
    try:
        if isinstance(outcome, AsyncIterator):
            async for _ in outcome:
                pass
        else:
            await outcome
    except AlreadyExists:
        pass


def verbs_of_the_client() -> set[Right]:
    names = [n for n, f in inspect.getmembers(Cluster, inspect.isfunction) if not n.startswith("_")]
    assert len(names) > 10
    used = called_names()
    seen: set[Right] = set()
    for name in names:
        if name in used:
            recorder = Recorder()
            asyncio.run(call(Cluster(cast(KubeApi, recorder)), name))
            assert recorder.seen, f"Cluster.{name} makes no request"
            seen |= recorder.seen
    return seen


def verbs_of_kopf() -> set[Right]:
    """list and watch of what the handlers watch; scanning of CRDs and namespaces is off, events and patches too."""
    settings = handlers.kopf_settings("x=y", lambda: 0.5)
    assert settings.scanning.disabled
    assert settings.peering.standalone
    assert not settings.posting.enabled
    registry = handlers.make_registry(cast(handlers.Sink, object()))
    selectors = [h.selector for h in registry._watching.get_all_handlers() if h.selector is not None]
    watched = {(s.group or "", str(s.any_name or s.plural)) for s in selectors}
    others: list[Any] = [registry._spawning, registry._changing, registry._indexing, registry._webhooks]
    assert not [h for r in others for h in r.get_all_handlers()], "such a handler needs more rights"
    assert len(watched) == 3, watched
    return {(group, resource, verb) for group, resource in watched for verb in ("list", "watch")}


def indirect() -> set[Right]:
    """blockOwnerDeletion is refused by some clusters without the right to update the owner's finalizers."""
    reference = owner_reference(cast(Any, Stub()))
    return {("everstep.dev", "agentruns/finalizers", "update")} if reference["blockOwnerDeletion"] else set()


class Stub:
    """A run reference; only its existence counts."""

    namespace = name = uid = "x"


def own_secret_verbs(with_redis: bool) -> set[Right]:
    """What making the operator's own Secrets asks for."""
    recorder = Recorder(content={"data": {"k1": "A" * 43 + "="}})
    asyncio.run(keyring.load_or_create(OwnSecrets(cast(KubeApi, recorder), "x"), "keys", SystemClock()))
    seen = set(recorder.seen)
    recorder = Recorder()
    asyncio.run(signing_keys.make_if_absent(OwnSecrets(cast(KubeApi, recorder), "x"), "keys"))
    seen |= recorder.seen | wrapping_secret_verbs()
    if with_redis:
        fresh = redis_auth.secret_data(redis_auth.Place("h", 1, "i"), SystemClock())
        recorder = Recorder(content={"data": dict.fromkeys(fresh, "eA==")})
        asyncio.run(redis_auth.ensure_secret(cast(KubeApi, recorder), "x", "auth", fresh))
        seen |= recorder.seen
    return seen


def wrapping_secret_verbs() -> set[Right]:
    """What making, reading and rotating the keys that wrap data keys asks for."""
    recorder = Recorder(content={"metadata": {"resourceVersion": "7"}, "data": {"w1": "A" * 43 + "="}})
    settings = Settings(operator_namespace="x", store_url="redis://x", key_secret="everstep-keys")
    wrapping = Wrapping(OwnSecrets(cast(KubeApi, recorder), "x"), settings, SystemClock())

    async def all_of_it() -> None:
        await wrapping.check()
        async with wrapping.held(MemoryStore()):
            pass
        await wrapping.rotate(MemoryStore())

    asyncio.run(all_of_it())
    return recorder.seen


def granted(rules: list[Object]) -> set[Right]:
    """The rights a list of RBAC rules gives; each right is given once."""
    rights = [(g, r, v) for rule in rules for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]]
    assert len(rights) == len(set(rights)), "a right is given twice"
    assert not {"*"} & {part for right in rights for part in right}
    return set(rights)


def rules(found: list[Object], kind: str, suffix: str) -> list[Object]:
    hits = [
        o for o in found if o["kind"] == kind and o["metadata"]["name"].endswith(suffix) and "runs" in suffix + "runs"
    ]
    assert hits, f"no {kind} …{suffix}"
    assert all(hit["rules"] == hits[0]["rules"] for hit in hits)
    return list(hits[0]["rules"])


NODES: Right = ("", "nodes", "get")


def needed() -> set[Right]:
    return verbs_of_the_client() | verbs_of_kopf() | indirect()


def test_cluster_wide_rights_are_exactly_the_calls() -> None:
    """One ClusterRole for all namespaces, nodes included."""
    given = granted(rules(objects(), "ClusterRole", "-runs"))
    assert given == needed(), f"missing {sorted(needed() - given)}, too many {sorted(given - needed())}"
    assert NODES in given


def test_rights_in_watched_namespaces_are_exactly_the_calls() -> None:
    """C43: Roles in the named namespaces; no ClusterRole of ours is bound, so nodes cannot be read."""
    found = objects({"watchNamespaces": ["team-a", "team-b"]})
    given = granted(rules(found, "Role", "-runs"))
    assert given == needed() - {NODES}, (
        f"missing {sorted(needed() - {NODES} - given)}, too many {sorted(given - needed())}"
    )
    assert {o["metadata"]["namespace"] for o in found if o["kind"] == "Role"} == {"team-a", "team-b", "everstep-system"}
    assert not [o for o in found if o["kind"] == "ClusterRoleBinding"]


@pytest.mark.parametrize("values", [{}, OWN_REDIS], ids=["included-redis", "own-redis"])
def test_rights_in_its_own_namespace_are_its_secrets_by_name(values: Mapping[str, Any]) -> None:
    """get by name; create, which RBAC cannot limit to a name; patch of the keys that are rotated alone."""
    own = rules(objects(values), "Role", "-own")
    with_redis = values is not OWN_REDIS
    assert granted(own) == own_secret_verbs(with_redis) == {("", "secrets", v) for v in ("get", "create", "patch")}
    assert [rule["resourceNames"] for rule in own if "patch" in rule["verbs"]] == [["everstep-keys-wrapping"]]
    by_name = [rule["resourceNames"] for rule in own if "get" in rule["verbs"]]
    keys = ["everstep-keys", "everstep-keys-signing", "everstep-keys-wrapping"]
    assert by_name == [[*keys, "everstep-redis-auth"] if with_redis else keys]


def test_every_binding_is_the_operators() -> None:
    """All rights go to the one service account, wherever the binding is."""
    cases: list[tuple[Mapping[str, Any], str]] = [
        ({}, "everstep"),
        ({"watchNamespaces": ["team-a"]}, "everstep"),
        ({"serviceAccount": {"create": False, "name": "mine"}}, "mine"),
    ]
    for values, name in cases:
        found = objects(values)
        for binding in [o for o in found if o["kind"].endswith("Binding") and "roleRef" in o]:
            assert binding["subjects"] == [{"kind": "ServiceAccount", "name": name, "namespace": "everstep-system"}]
            kind = binding["roleRef"]["kind"]
            assert [o for o in found if (o["kind"], o["metadata"]["name"]) == (kind, binding["roleRef"]["name"])]


def test_nothing_else_talks_to_the_api_server() -> None:
    """Requests that this file would not see: another client than kubernetes.aio in cluster/api.py, other users of KubeApi's two
    methods than cluster/client.py and cluster/own.py."""
    importers, askers = set(), set()
    for path in operator_modules():
        name = str(path.relative_to(SOURCES))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
                if [m for m in modules if m.split(".")[0] in {"kubernetes", "pykube", "requests", "httpx", "urllib3"}]:
                    importers.add(name)
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
                ("api.read", "api.write", "api._request")
            ):
                askers.add(name)
    assert importers == {"cluster/api.py"}
    assert askers == {"cluster/client.py", "cluster/own.py"}
