"""The operator's verbs on the cluster. Every read is live, every write is guarded so that an old view cannot do harm.

status    JSON patch; its `test` operations come with it
pods      created by fixed name; deleted with the uid as precondition
Secrets   created, never overwritten
requests  created by fixed name; the answer belongs to people
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from everstep_operator.cluster.api import JSON_PATCH, MERGE_PATCH, METADATA_ONLY, Json, KubeApi
from everstep_operator.errors import Conflict, NotFound, TestFailed

GROUP_PATH: Final = "/apis/everstep.dev/v1alpha1"
PAGE_OBJECTS: Final = 500


@dataclass(frozen=True)
class ListedRun:
    """What a LIST of runs tells: where one is and which one it is. Never a verdict."""

    namespace: str
    name: str
    uid: str


class Cluster:
    """See the module. Raises what `everstep_operator.errors` lists: ClusterUnavailable (observe again) and ClusterRefused."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api

    # --- runs

    async def get_run(self, namespace: str, name: str) -> Json | None:
        """Live GET; None on 404."""
        return await self._get(_runs(namespace, name))

    async def list_runs(self, namespaces: Sequence[str]) -> AsyncIterator[ListedRun]:
        """Every run of these namespaces (empty: of the cluster), in pages, metadata only."""
        for namespace in namespaces or ("",):
            async for item in self._pages(_runs(namespace)):
                meta = item.get("metadata") or {}
                yield ListedRun(meta.get("namespace", namespace), meta["name"], meta["uid"])

    async def patch_status(self, namespace: str, name: str, operations: Sequence[Mapping[str, Any]]) -> Json:
        """Patch the status subresource. TestFailed or Conflict: nothing was written, observe again."""
        path = _runs(namespace, name) + "/status"
        return await self._api.write("PATCH", path, list(operations), content_type=JSON_PATCH)

    async def delete_run(self, namespace: str, name: str, uid: str, resource_version: str) -> bool:
        """Delete exactly this version of this run; False if it moved on. A missing one is done."""
        wanted = {"uid": uid, "resourceVersion": resource_version}
        return await self._delete(_runs(namespace, name), wanted, {"propagationPolicy": "Background"})

    # --- pods and nodes

    async def list_pods(self, namespace: str, selector: str) -> list[Json]:
        """Live LIST by label selector, whole: a run has a handful of pods."""
        answer = await self._api.read(_core(namespace, "pods"), {"labelSelector": selector})
        return list(answer.get("items") or [])

    async def get_pod(self, namespace: str, name: str) -> Json | None:
        """Live GET; None on 404."""
        return await self._get(_core(namespace, "pods", name))

    async def create_pod(self, namespace: str, pod: Mapping[str, Any], *, dry_run: bool = False) -> Json:
        """POST. AlreadyExists: somebody has the name. `dry_run` runs admission, quota excepted, and keeps nothing."""
        query = {"dryRun": "All"} if dry_run else {}
        return await self._api.write("POST", _core(namespace, "pods"), pod, query=query)

    async def delete_pod(self, namespace: str, name: str, uid: str) -> bool:
        """Delete exactly this pod with its own grace period, never by force. False: another uid has the name."""
        return await self._delete(_core(namespace, "pods", name), {"uid": uid}, {})

    async def get_node(self, name: str) -> Json | None:
        """The node; None when there is none. Raises Forbidden where the operator may not look."""
        return await self._get(f"/api/v1/nodes/{name}")

    # --- Secrets and ConfigMaps

    async def get_secret(self, namespace: str, name: str) -> Json | None:
        """None on 404."""
        return await self._get(_core(namespace, "secrets", name))

    async def get_config_map(self, namespace: str, name: str) -> Json | None:
        """None on 404."""
        return await self._get(_core(namespace, "configmaps", name))

    async def create_secret(self, namespace: str, secret: Mapping[str, Any]) -> Json:
        """POST. AlreadyExists: it is there; whose it is must be read. Never an update."""
        return await self._api.write("POST", _core(namespace, "secrets"), secret)

    # --- human requests

    async def list_requests(self, namespace: str, selector: str) -> list[Json]:
        """Live LIST by label selector, whole."""
        answer = await self._api.read(_requests(namespace), {"labelSelector": selector})
        return list(answer.get("items") or [])

    async def get_request(self, namespace: str, name: str) -> Json | None:
        """None on 404."""
        return await self._get(_requests(namespace, name))

    async def create_request(self, namespace: str, request: Mapping[str, Any]) -> Json:
        """POST. AlreadyExists: somebody has the name; whose it is must be read."""
        return await self._api.write("POST", _requests(namespace), request)

    async def patch_request_status(self, namespace: str, name: str, uid: str, status: Mapping[str, Any]) -> Json:
        """Merge into the status of exactly this HumanRequest; Conflict if another uid has the name."""
        path = _requests(namespace, name) + "/status"
        body = {"metadata": {"uid": uid}, "status": dict(status)}
        return await self._api.write("PATCH", path, body, content_type=MERGE_PATCH)

    # --- events

    async def create_event(self, namespace: str, event: Mapping[str, Any]) -> Json:
        """POST. AlreadyExists: the same Event is there, count it up."""
        return await self._api.write("POST", _core(namespace, "events"), event)

    async def get_event(self, namespace: str, name: str) -> Json | None:
        """None on 404."""
        return await self._get(_core(namespace, "events", name))

    async def patch_event(self, namespace: str, name: str, fields: Mapping[str, Any]) -> Json:
        """Merge-patch count and times."""
        path = _core(namespace, "events", name)
        return await self._api.write("PATCH", path, fields, content_type=MERGE_PATCH)

    # --- common

    async def _get(self, path: str) -> Json | None:
        try:
            return await self._api.read(path)
        except NotFound:
            return None

    async def _delete(self, path: str, preconditions: Mapping[str, str], options: Mapping[str, str]) -> bool:
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": dict(preconditions), **options}
        try:
            await self._api.write("DELETE", path, body)
        except NotFound:
            return True
        except Conflict:
            return False
        return True

    async def _pages(self, path: str) -> AsyncIterator[Json]:
        query = {"limit": str(PAGE_OBJECTS)}
        while True:
            answer = await self._api.read(path, query, accept=METADATA_ONLY)
            for item in answer.get("items") or []:
                yield item
            token = (answer.get("metadata") or {}).get("continue")
            if not token:
                return
            query["continue"] = token


def _core(namespace: str, kind: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{namespace}/{kind}" + (f"/{name}" if name else "")


def _runs(namespace: str, name: str = "") -> str:
    return _custom("agentruns", namespace, name)


def _requests(namespace: str, name: str = "") -> str:
    return _custom("humanrequests", namespace, name)


def _custom(kind: str, namespace: str, name: str) -> str:
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{GROUP_PATH}{scope}/{kind}" + (f"/{name}" if name else "")


MOVED_ON: Final = (Conflict, TestFailed)
"""Refusals that only say that our view was old."""
