"""Restate: a handler of `ctx.run` steps, served here, called through its server.

python -m tests.bench.peers.restate_child SERVICE_PORT INGRESS_PORT ADMIN_PORT CONFIG_FILE
"""

import asyncio
import json
import re
import sys
import threading
import time
import urllib.request
from importlib.metadata import version
from pathlib import Path
from typing import Any

import hypercorn.asyncio
import hypercorn.config
import restate

from tests.bench.peers.child import Body, Engine, serve

_bodies: dict[str, Body] = {}
service = restate.Service("Bench")


@service.handler()
async def run(ctx: restate.Context, given: dict[str, Any]) -> str:
    for n in range(given["steps"]):

        def work(n: int = n) -> str:
            return _bodies[given["run"]](n)

        await ctx.run_typed("work", work)
    return "done"


class Restate(Engine):
    """The service in a thread; runs are started over HTTP."""

    def __init__(self, port: int, ingress: int, admin: int, config: Path) -> None:
        self.port, self.ingress, self.admin, self.config = port, ingress, admin, config
        self.ready = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()
        self.ready.wait()
        self._register()

    def _serve(self) -> None:
        config = hypercorn.config.Config()
        config.bind = [f"127.0.0.1:{self.port}"]
        config.loglevel = "ERROR"

        async def main() -> None:
            self.ready.set()
            app: Any = restate.app([service])
            await hypercorn.asyncio.serve(app, config, shutdown_trigger=asyncio.Future)

        asyncio.run(main())

    def _register(self) -> None:
        for _ in range(200):
            try:
                self._post(self.admin, "/deployments", {"uri": f"http://127.0.0.1:{self.port}"})
                return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError("the service cannot be registered")

    @staticmethod
    def _post(port: int, path: str, data: object, **headers: str) -> bytes:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}",
            json.dumps(data).encode(),
            {"content-type": "application/json", **headers},
        )
        with urllib.request.urlopen(request, timeout=300) as reply:
            body: bytes = reply.read()
            return body

    def settings(self) -> dict[str, object]:
        said = self.config.read_text()
        wal = dict(re.findall(r"^(rocksdb-disable-wal(?:-fsync)?|always-commit-in-background) = (\S+)$", said, re.M))
        return {"restate-sdk": version("restate-sdk"), **wal}

    def run(self, run: str, steps: int, body: Body) -> None:
        _bodies[run] = body
        self._post(self.ingress, "/Bench/run", {"run": run, "steps": steps}, **{"idempotency-key": run})

    def resume(self, run: str, steps: int, body: Body) -> None:
        self.run(run, steps, body)  # the same key: attaches to the invocation that the server retries


if __name__ == "__main__":
    serve(lambda: Restate(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])))
