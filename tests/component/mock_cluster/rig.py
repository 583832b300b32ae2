"""The bench of a component test: mock API server, private Redis, and operator processes that can be killed and started again."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from everstep.journal.open import open_store
from everstep.journal.store import Store
from tests.component.mock_cluster.agent import Agent
from tests.component.mock_cluster.api_server import ApiServer
from tests.component.mock_cluster.objects import ApiError, Json
from tests.support import servers

ROOT = Path(__file__).resolve().parents[3]
NAMESPACE = "work"
START_WITHIN_S = 30.0
REACT_WITHIN_S = 15.0


class OperatorProcess:
    """One `python -m everstep_operator`."""

    def __init__(self, env: dict[str, str], log: Path) -> None:
        self.env, self.log = env, log
        self.process: asyncio.subprocess.Process | None = None

    async def start(self, **more: str) -> None:
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "everstep_operator", env={**self.env, **more}, stdout=log, stderr=log, cwd=ROOT
            )

    async def ended(self, within_s: float = REACT_WITHIN_S) -> int:
        """Its exit code; negative for a signal."""
        assert self.process is not None
        async with asyncio.timeout(within_s):
            return await self.process.wait()

    async def kill(self) -> None:
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGCONT)
                self.process.kill()
            await self.process.wait()

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


class Rig:
    """See the module."""

    def __init__(self, server: ApiServer, redis: servers.Server, folder: Path) -> None:
        self.server, self.redis, self.folder = server, redis, folder
        self.store: Store = open_store(redis.url, installation="test")
        self.operators: list[OperatorProcess] = []

    def operator(self, **settings: str) -> OperatorProcess:
        """A new operator process, not yet started."""
        kubeconfig = self.folder / "kubeconfig"
        kubeconfig.write_text(json.dumps(kubeconfig_for(self.server.url)))
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "PYTHONPATH": f"{ROOT / 'agent_image'}:{ROOT / 'operator'}",
            "KUBECONFIG": str(kubeconfig),
            "EVERSTEP_OPERATOR_NAMESPACE": "everstep-system",
            "EVERSTEP_INSTALLATION": "test",
            "EVERSTEP_STORE_URL": self.redis.url,
            "EVERSTEP_HEALTH_PORT": "0",
            "EVERSTEP_METRICS_PORT": "0",
            "EVERSTEP_RESYNC_SECONDS": "60",
            "EVERSTEP_PROGRESS_SECONDS": "1",
            "EVERSTEP_API_TIMEOUT_SECONDS": "3",
            "EVERSTEP_BACKOFF_MAX_SECONDS": "2",
            "EVERSTEP_DEFAULT_IMAGE": "agent:1",
            **settings,
        }
        made = OperatorProcess(env, self.folder / f"operator-{len(self.operators)}.log")
        self.operators.append(made)
        return made

    # --- runs and pods

    async def apply(self, name: str, **spec: Any) -> Json:
        """Create an AgentRun."""
        run = {
            "apiVersion": "everstep.dev/v1alpha1",
            "kind": "AgentRun",
            "metadata": {"name": name},
            "spec": {"goal": "do it", "agent": {"entrypoint": "app:run"}, **spec},
        }
        return await self.server.objects.create("agentruns", NAMESPACE, run)

    def run(self, name: str) -> Json:
        return self.server.objects.get("agentruns", NAMESPACE, name)

    def status(self, name: str) -> Json:
        return self.run(name).get("status") or {}

    def condition(self, name: str, kind: str) -> str:
        """`True/Reason`, or "" where it is not set."""
        for condition in self.status(name).get("conditions") or []:
            if condition["type"] == kind:
                return f"{condition['status']}/{condition['reason']}"
        return ""

    def pod(self, name: str) -> Json | None:
        try:
            return self.server.objects.get("pods", NAMESPACE, name)
        except ApiError:
            return None

    async def agent(self, pod_name: str) -> Agent:
        """Wait for a pod and play its process."""
        pod = await self.until(lambda: self.pod(pod_name), f"pod {pod_name}")
        return await Agent(self.server, self.store, pod).start()

    async def evict(self, pod_name: str) -> None:
        """What a drain does: DisruptionTarget, a terminal status, and the object goes."""
        pod = self.pod(pod_name)
        assert pod is not None, self.logs()
        await Agent(self.server, self.store, pod).exit(143, pod_reason="EvictionByEvictionAPI")
        with contextlib.suppress(ApiError):
            await self.server.objects.delete("pods", NAMESPACE, pod_name, {})

    # --- waiting

    async def until(
        self, what: Callable[[], Any] | Callable[[], Awaitable[Any]], said: str, within_s: float = REACT_WITHIN_S
    ) -> Any:
        """The first true value of `what`, or a failure that shows the operator's log."""
        deadline = time.monotonic() + within_s
        while True:
            value = what()
            if asyncio.iscoroutine(value):
                value = await value
            if value:
                return value
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {within_s:g} s: {said}\n{self.logs()}")
            await asyncio.sleep(0.02)

    async def quiet(self) -> None:
        """The operators have done what they had to do: half a second without a request to the API server."""
        asked, since = -1, time.monotonic()

        def still() -> bool:
            nonlocal asked, since
            if asked != (asked := self.server.requests.total()):
                since = time.monotonic()
            return time.monotonic() - since > 0.5

        await self.until(still, "the operators are quiet", 30)

    def logs(self) -> str:
        return "\n".join(f"--- {op.log.name}\n{op.said()[-6000:]}" for op in self.operators)

    async def close(self) -> None:
        for operator in self.operators:
            await operator.kill()
        await self.store.aclose()


@asynccontextmanager
async def rig() -> AsyncIterator[Rig]:
    """A fresh bench; everything it started is ended."""
    with tempfile.TemporaryDirectory(prefix="everstep-rig-") as folder, servers.running("redis-7.0") as redis:
        server = ApiServer()
        await server.start()
        bench = Rig(server, redis, Path(folder))
        try:
            yield bench
        finally:
            await bench.close()
            await server.stop()


def kubeconfig_for(url: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "mock", "cluster": {"server": url}}],
        "users": [{"name": "mock", "user": {"token": "mock"}}],
        "contexts": [{"name": "mock", "context": {"cluster": "mock", "user": "mock"}}],
        "current-context": "mock",
    }
