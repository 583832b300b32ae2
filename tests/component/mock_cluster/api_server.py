"""A mock API server over HTTP: discovery, get, list, watch, create, patch, delete, and trouble on request.

`trouble` is asked before every request and may answer in the server's place; `stale_lists` freezes what LISTs show; `cut_watches`
ends all streams and lets the history be forgotten (410). Every request is counted in `requests`.
"""

import asyncio
import contextlib
import copy
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from tests.component.mock_cluster.objects import (
    ApiError,
    Change,
    Json,
    Objects,
    check_bytes_of_tests,
    json_patch,
    matches,
    merge_patch,
)

KINDS = {
    "pods": ("", "v1", "Pod"),
    "secrets": ("", "v1", "Secret"),
    "configmaps": ("", "v1", "ConfigMap"),
    "events": ("", "v1", "Event"),
    "nodes": ("", "v1", "Node"),
    "deployments": ("apps", "v1", "Deployment"),
    "namespaces": ("", "v1", "Namespace"),
    "agentruns": ("everstep.dev", "v1alpha1", "AgentRun"),
    "humanrequests": ("everstep.dev", "v1alpha1", "HumanRequest"),
    "customresourcedefinitions": ("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
}
CLUSTER_SCOPED = ("nodes", "namespaces", "customresourcedefinitions")
VERBS = ["get", "list", "watch", "create", "patch", "delete"]


@dataclass(frozen=True)
class Call:
    """One request, as trouble sees it."""

    verb: str
    """get, list, watch, create, patch, delete."""
    plural: str
    namespace: str
    name: str
    subresource: str
    dry_run: bool
    client: str = ""


Trouble = Callable[[Call], web.StreamResponse | None]


class ApiServer:
    """Serves `objects` on a free loopback port."""

    def __init__(self) -> None:
        self.objects = Objects()
        self.requests: Counter[str] = Counter()
        """`verb plural[/subresource]` → count."""
        self.calls: list[tuple[Call, int]] = []
        """Every write with its HTTP status, in order."""
        self.trouble: Trouble = lambda call: None
        self.hang: Callable[[Call], bool] = lambda call: False
        """True: never answer (the client must give up by itself)."""
        self.stale: dict[str, list[Json]] | None = None
        self.stale_version = 0
        self.port = 0
        self._runner: web.AppRunner | None = None
        self._streams: set[asyncio.Task[Any]] = set()
        self.mute_watches = False
        """True: watches stay open and tell nothing."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        app = web.Application(client_max_size=1 << 24)
        app.router.add_get("/version", self._json({"major": "1", "minor": "34"}))
        app.router.add_get("/api", self._json({"versions": ["v1"]}))
        app.router.add_get("/apis", self._json(self._groups()))
        app.router.add_get("/api/v1", self._json(self._resources("", "v1")))
        for group, version in {(g, v) for g, v, _ in KINDS.values() if g}:
            app.router.add_get(f"/apis/{group}/{version}", self._json(self._resources(group, version)))
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        self.cut_watches()
        if self._runner:
            await self._runner.cleanup()

    def cut_watches(self, *, forget: bool = False) -> None:
        """End every open stream; with `forget`, their resource version is too old afterwards."""
        if forget:
            self.objects.forget_history()
        for stream in list(self._streams):
            stream.cancel()

    def freeze_lists(self) -> None:
        """From now on LISTs show the present state, whatever happens."""
        self.stale = {plural: copy.deepcopy(self.objects.find(plural, "", "")) for plural in KINDS}
        self.stale_version = self.objects.version

    # --- requests

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        call = self._parse(request)
        what = f"{call.verb} {call.plural}" + (f"/{call.subresource}" if call.subresource else "")
        self.requests[what + (" (dry run)" if call.dry_run else "")] += 1
        if self.hang(call):
            await asyncio.sleep(3600)
        answer = self.trouble(call)
        if answer is None:
            try:
                answer = await self._answer(call, request)
            except ApiError as e:
                answer = web.json_response(e.body(), status=e.status)
        if call.verb in ("create", "patch", "delete"):
            self.calls.append((call, answer.status))
        return answer

    def _parse(self, request: web.Request) -> Call:
        parts = request.path.strip("/").split("/")
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = ""
        if parts[0] == "namespaces" and len(parts) > 2:
            namespace, parts = parts[1], parts[2:]
        plural, name, subresource = (*parts, "", "")[:3]
        verb = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}.get(request.method, "get")
        if verb == "get" and not name:
            verb = "watch" if request.query.get("watch") == "true" else "list"
        agent = request.headers.get("User-Agent", "")
        return Call(verb, plural, namespace, name, subresource, request.query.get("dryRun") == "All", agent)

    async def _answer(self, call: Call, request: web.Request) -> web.StreamResponse:
        objects = self.objects
        if call.plural not in KINDS:
            raise ApiError(404, "NotFound", f"no resource {call.plural}")
        if call.verb == "get":
            return web.json_response(objects.get(call.plural, call.namespace, call.name))
        if call.verb == "list":
            return web.json_response(self._list(call, request.query))
        if call.verb == "watch":
            return await self._watch(call, request)
        body = await request.json() if request.can_read_body else {}
        if call.verb == "create":
            made = await objects.create(call.plural, call.namespace, body, dry_run=call.dry_run)
            return web.json_response(made, status=201)
        if call.verb == "delete":
            await objects.delete(call.plural, call.namespace, call.name, body.get("preconditions") or {})
            return web.json_response({"kind": "Status", "status": "Success"})
        return web.json_response(await self._patch(call, request.headers["Content-Type"], body, await request.text()))

    async def _patch(self, call: Call, content_type: str, body: Any, raw: str) -> Json:
        have = self.objects.get(call.plural, call.namespace, call.name)
        if content_type == "application/json-patch+json":
            check_bytes_of_tests(body, raw)
            new = json_patch(have, body)
        elif content_type == "application/merge-patch+json":
            uid = (body.get("metadata") or {}).get("uid", have["metadata"]["uid"])
            if uid != have["metadata"]["uid"]:
                raise ApiError(409, "Conflict", "uid differs")
            new = merge_patch(have, body)
        else:
            raise ApiError(415, "UnsupportedMediaType", content_type)
        if call.subresource == "status":
            new = {**copy.deepcopy(have), "status": new.get("status")}
        elif call.plural in ("agentruns", "humanrequests"):
            new["status"] = have.get("status")
            if new.get("spec") != have.get("spec"):
                new["metadata"]["generation"] = have["metadata"]["generation"] + 1
        if new == have:
            return have
        return await self.objects.replace(call.plural, new)

    def _list(self, call: Call, query: Any) -> Json:
        selector = query.get("labelSelector", "")
        if self.stale is not None:
            found = [
                item
                for item in self.stale[call.plural]
                if call.namespace in ("", item["metadata"]["namespace"]) and matches(item, selector)
            ]
        else:
            found = self.objects.find(call.plural, call.namespace, selector)
        limit, start = int(query.get("limit") or 0), int(query.get("continue") or 0)
        page = found[start : start + limit] if limit else found
        version_shown = self.objects.version if self.stale is None else self.stale_version
        meta: Json = {"resourceVersion": str(version_shown)}
        if limit and start + limit < len(found):
            meta["continue"] = str(start + limit)
        group, version, kind = KINDS[call.plural]
        return {
            "kind": f"{kind}List",
            "apiVersion": f"{group}/{version}" if group else version,
            "metadata": meta,
            "items": page,
        }

    async def _watch(self, call: Call, request: web.Request) -> web.StreamResponse:
        if not request.query.get("timeoutSeconds", "1").isdigit():
            raise ApiError(400, "BadRequest", "strconv.ParseInt: parsing timeoutSeconds: invalid syntax")
        since = int(request.query.get("resourceVersion") or self.objects.version)
        selector = request.query.get("labelSelector", "")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        try:
            if since < self.objects.oldest:
                gone = ApiError(410, "Expired", "too old resource version").body()
                await response.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
                return response
            await self._stream(call, response, since, selector)
        except (asyncio.CancelledError, ConnectionResetError):
            with contextlib.suppress(ConnectionError):
                await response.write_eof()
        finally:
            self._streams.discard(task)
        return response

    async def _stream(self, call: Call, response: web.StreamResponse, since: int, selector: str) -> None:
        while True:
            async with self.objects.changed:
                while self.objects.version <= since:
                    await self.objects.changed.wait()
            for change in [c for c in self.objects.history if c.version > since]:
                since = max(since, change.version)
                if not self.mute_watches and self._concerns(change, call, selector):
                    line = json.dumps({"type": change.kind, "object": change.object})
                    await response.write(line.encode() + b"\n")
            since = max(since, self.objects.version)

    def _concerns(self, change: Change, call: Call, selector: str) -> bool:
        return (
            change.plural == call.plural
            and call.namespace in ("", change.object["metadata"]["namespace"])
            and matches(change.object, selector)
        )

    # --- discovery

    @staticmethod
    def _json(body: Json) -> Any:
        async def handler(request: web.Request) -> web.Response:
            return web.json_response(body)

        return handler

    @staticmethod
    def _groups() -> Json:
        groups = [
            {
                "name": group,
                "versions": [{"groupVersion": f"{group}/{version}", "version": version}],
                "preferredVersion": {"groupVersion": f"{group}/{version}", "version": version},
            }
            for group, version in sorted({(g, v) for g, v, _ in KINDS.values() if g})
        ]
        return {"kind": "APIGroupList", "groups": groups}

    @staticmethod
    def _resources(group: str, version: str) -> Json:
        return {
            "kind": "APIResourceList",
            "resources": [
                {
                    "name": plural,
                    "singularName": kind.lower(),
                    "namespaced": plural not in CLUSTER_SCOPED,
                    "kind": kind,
                    "verbs": VERBS,
                }
                for plural, (g, v, kind) in KINDS.items()
                if (g, v) == (group, version)
            ],
        }
