"""How demos and tests talk to the world: start it on loopback, read its counts, hold its requests."""

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError

REPOSITORY = Path(__file__).resolve().parents[3]


class WorldClient:
    """A world at `url`, asked over HTTP with a bound on every call."""

    def __init__(self, url: str, timeout_s: float = 10.0) -> None:
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s

    def call(self, method: str, path: str, body: object = None) -> Any:  # whatever JSON the world answers
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data=data, method=method, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=self._timeout_s) as reply:
            return json.load(reply)

    def counts(self) -> dict[str, Any]:
        """See World.counts."""
        counts: dict[str, Any] = self.call("GET", "/counts")
        return counts

    def reset(self) -> None:
        """Forget everything."""
        self.call("POST", "/reset", {})

    def set_latency(self, **latency_ms: int) -> None:
        """Milliseconds per kind: model, ticket, mail, probe."""
        self.call("PUT", "/latency", latency_ms)

    def hold(self, kind: str, *, ticket: str = "", moment: str = "before", times: int = 1) -> None:
        """Catch the next `times` matching requests before or after their effect."""
        self.call("POST", "/holds", {"kind": kind, "ticket": ticket, "moment": moment, "times": times})

    def waiting(self) -> int:
        """How many requests are held now."""
        return sum(hold["waiting"] for hold in self.call("GET", "/holds"))

    def wait_until_held(self, count: int = 1, timeout_s: float = 30.0) -> None:
        """Return once `count` requests are held. Raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while self.waiting() < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.waiting()} of {count} requests held after {timeout_s} s")
            time.sleep(0.02)

    def release(self) -> int:
        """Let held requests go on."""
        released: int = self.call("POST", "/release", {})["released"]
        return released

    def wait_until_up(self, timeout_s: float = 20.0) -> None:
        """Return once it answers. Raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self.call("GET", "/healthz")
                return
            except (URLError, OSError) as e:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no world at {self.url} after {timeout_s} s: {e}") from e
                time.sleep(0.05)


def free_port() -> int:
    """A TCP port on loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def world_on_loopback(
    *, log_path: Path | None = None, model_latency_ms: int = 0, tool_latency_ms: int = 0
) -> Iterator[WorldClient]:
    """A world in a process of its own, ended at exit."""
    port = free_port()
    command = [sys.executable, "-m", "tests.support.world", "--port", str(port)]
    command += ["--model-latency-ms", str(model_latency_ms), "--tool-latency-ms", str(tool_latency_ms)]
    if log_path is not None:
        command += ["--log", str(log_path)]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
    try:
        client = WorldClient(f"http://127.0.0.1:{port}")
        client.wait_until_up()
        yield client
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
