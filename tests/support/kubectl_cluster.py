"""A mock cluster for the real kubectl: objects as of tests.component.mock_cluster, and `kubectl exec` into the operator's pod.

The pod is a program of the test's: it is handed the words of the command and a way to write its standard output. Only the newer
protocol of exec is spoken (a WebSocket, kubectl >= 1.31); the older is refused. Every request is noted as the right it needs.
"""

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web

from tests.component.mock_cluster.api_server import KINDS, ApiServer
from tests.support.tools import find_kubectl

Right = tuple[str, str, str]
"""(API group, resource or resource/subresource, verb)."""
Write = Callable[[bytes], Awaitable[None]]
Program = Callable[[list[str], Write], Awaitable[None]]
STDOUT, STATUS = b"\x01", b"\x03"
OPERATOR = {
    "app.kubernetes.io/part-of": "everstep",
    "app.kubernetes.io/component": "operator",
    "app.kubernetes.io/instance": "everstep",
}


# All that kubectl asks of it before a create: that the server itself checks the fields.
_GROUP_PATH = "/openapi/v3/apis/everstep.dev/v1alpha1"
_OPENAPI_INDEX = {"apis/everstep.dev/v1alpha1": {"serverRelativeURL": _GROUP_PATH}}
_PATCH = {
    "x-kubernetes-group-version-kind": {"group": "everstep.dev", "version": "v1alpha1", "kind": "AgentRun"},
    "x-kubernetes-action": "patch",
    "parameters": [{"name": "fieldValidation", "in": "query"}],
    "responses": {},
}
_OPENAPI = {
    "openapi": "3.0.0",
    "info": {"title": "mock", "version": "1"},
    "paths": {"/apis/everstep.dev/v1alpha1/namespaces/{namespace}/agentruns/{name}": {"patch": _PATCH}},
}


class KubectlCluster(ApiServer):
    """With one operator, Deployment `everstep` in the namespace `ops`, and its pod."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program
        self.commands: list[list[str]] = []
        self.rights: set[tuple[str, Right]] = set()
        """Namespace and right of every request but discovery; namespace "" = in all of them."""
        self.left: list[str] = []
        """How each exec ended: `ended`, or `client gone`."""

    async def fill(self, installation: str) -> None:
        """Make the operator's own objects."""
        labels = {**OPERATOR}
        env = [{"name": "EVERSTEP_INSTALLATION", "value": installation}]
        container = {"name": "operator", "image": "x", "env": env}
        pod = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
        spec = {"selector": {"matchLabels": labels}, "template": pod}
        meta = {"name": "everstep", "namespace": "ops", "labels": labels}
        deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}
        await self.objects.create("deployments", "ops", deployment)
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {**meta, "name": "everstep-0"}, "spec": pod["spec"]}
        made = await self.objects.create("pods", "ops", body)
        ready = [{"type": "Ready", "status": "True"}]
        await self.objects.replace("pods", {**made, "status": {"phase": "Running", "conditions": ready}})

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/selfsubjectreviews"):
            who = {"userInfo": {"username": "jane@example.org"}}
            return web.json_response(
                {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "status": who}, status=201
            )
        if request.path.startswith("/openapi/v3"):
            return web.json_response(_OPENAPI if request.path == _GROUP_PATH else {"paths": _OPENAPI_INDEX})
        if not request.path.startswith(("/api/v1/", "/apis/apps/v1/", "/apis/everstep.dev/v1alpha1/")):
            raise web.HTTPNotFound  # openapi, version …
        call = self._parse(request)
        if call.plural in KINDS:
            resource = call.plural + (f"/{call.subresource}" if call.subresource else "")
            self.rights.add((call.namespace, (KINDS[call.plural][0], resource, call.verb)))
        return await (self._exec(request) if call.subresource == "exec" else super()._serve(request))

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Upgrade", "").lower() != "websocket":
            raise web.HTTPForbidden(text="only the newer protocol is spoken here")
        command = request.query.getall("command")
        self.commands.append(command)
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
        await socket.prepare(request)

        async def write(raw: bytes) -> None:
            await socket.send_bytes(STDOUT + raw)

        async def client_gone() -> None:
            while (await socket.receive()).type not in (
                WSMsgType.CLOSE,
                WSMsgType.CLOSING,
                WSMsgType.CLOSED,
                WSMsgType.ERROR,
            ):
                pass

        program, gone = asyncio.ensure_future(self.program(command, write)), asyncio.ensure_future(client_gone())
        await asyncio.wait((program, gone), return_when=asyncio.FIRST_COMPLETED)
        ended = program.done()
        self.left.append("ended" if ended else "client gone")
        for task in (program, gone):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            await program
        if ended:
            await socket.send_bytes(STATUS + json.dumps({"metadata": {}, "status": "Success"}).encode())
            await socket.close()
        return socket


@contextmanager
def serving(cluster: KubectlCluster, home: Path, installation: str) -> Iterator[dict[str, str]]:
    """Serve it from a thread of its own; gives the environment in which kubectl finds it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def do(what: Any) -> Any:  # a coroutine and its result
        return asyncio.run_coroutine_threadsafe(what, loop).result(30)

    try:
        do(cluster.start())
        do(cluster.fill(installation))
        kubeconfig = home / "kubeconfig"
        named = {"cluster": "mock", "user": "jane", "namespace": "team"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "mock", "cluster": {"server": cluster.url}}],
            "users": [{"name": "jane", "user": {}}],
            "contexts": [{"name": "mock", "context": named}],
            "current-context": "mock",
        }
        kubeconfig.write_text(json.dumps(config), encoding="utf-8")
        yield {**os.environ, "KUBECONFIG": str(kubeconfig), "KUBECTL": str(find_kubectl()), "HOME": str(home)}
        do(cluster.stop())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
