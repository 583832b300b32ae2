"""Who is measured: how each one's process is started, with which server, and which floor it is compared with."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench import installed, peer_servers
from tests.support import servers

REPOSITORY = Path(__file__).resolve().parents[2]
ANSWER_TIMEOUT_S = 300.0
REDIS = ("redis-7.0", "redis-8", "valkey-8")
TITLES = {"redis-7.0": "Redis 7.0", "redis-8": "Redis 8", "valkey-8": "Valkey 8"}


class CommandFailed(Exception):
    """One command failed inside a process that goes on."""


class Child:
    """A process that answers `tests.bench.peers.child`'s commands."""

    def __init__(self, argv: list[str], log: Path) -> None:
        self.begun_s = time.perf_counter()
        parts = (REPOSITORY / "agent_image", REPOSITORY)
        with log.open("ab") as err:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, parts)), "PYTHONDONTWRITEBYTECODE": ""},
            )
        self.log = log

    def tell(self, **command: object) -> None:
        """Send a command; its answers come by `hear`."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:  # JSON
        """The next answer. Raises NotInstalled, with the end of its log, if it has died."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            said = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:] or [
                "it said nothing"
            ]
            raise installed.NotInstalled(f"its process ended: {said[0][:300]}")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise CommandFailed(str(answer["failed"])[:300])
        return answer

    def ask(self, **command: object) -> dict[str, Any]:  # JSON
        self.tell(**command)
        return self.hear()

    def kill(self) -> None:
        """SIGKILL, and wait for it."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@dataclass
class Contestant:
    """One row of the table."""

    key: str
    """In the names of figures, e.g. `everstep_sqlite`."""
    title: str
    argv: list[str]
    folder: Path
    """What it keeps on disk; of its server where it has one."""
    floor: str = ""
    """Key of the bare write it is compared with."""
    server_pid: int | None = None
    settings: dict[str, object] = field(default_factory=dict)
    runs: int = 0

    def spawn(self) -> Child:
        return Child(self.argv, self.folder.parent / f"{self.key}.err")

    def name(self) -> str:
        """A fresh run's name."""
        self.runs += 1
        return f"{self.key.replace('_', '-')}-{self.runs}"


def _own(module: str, *words: str) -> list[str]:
    return [sys.executable, "-m", f"tests.bench.peers.{module}", *words]


def _peer(module: str, *words: str) -> list[str]:
    return [str(installed.python()), "-m", f"tests.bench.peers.{module}", *words]


def gather(work: Path, stack: ExitStack, note: Callable[[str, str], None]) -> list[Contestant]:
    """Start every server and name every contestant. `note(title, why)` is told of what cannot be measured."""

    def folder(key: str) -> Path:
        path = work / key
        path.mkdir()
        return path

    def on_file(key: str, title: str, argv: Callable[[str], list[str]], floor: str = "bare_sqlite") -> Contestant:
        home = folder(key)
        return Contestant(key, title, argv(str(home / "db")), home, floor)

    found = [
        on_file("bare_sqlite", "bare write: SQLite INSERT", lambda p: _own("bare_child", "sqlite", p), ""),
        on_file("sketch", "sketch of 30 lines, SQLite", lambda p: _own("bare_child", "sketch", p)),
        on_file("tuned_sketch", "the same sketch in WAL mode", lambda p: _own("bare_child", "tuned_sketch", p)),
        on_file("everstep_sqlite", "Everstep, SQLite", lambda p: _own("everstep_child", f"sqlite://{p}")),
    ]
    for server in REDIS:
        found += _on_redis(server, stack, note)
    for title, make in _peers(on_file, folder, stack).items():
        try:
            found.append(make())
        except installed.NotInstalled as e:
            note(title, str(e))
    return found


def _on_redis(name: str, stack: ExitStack, note: Callable[[str, str], None]) -> list[Contestant]:
    try:
        servers.command(name)
    except servers.ServerMissing as e:
        note(TITLES[name], str(e))
        return []
    server = stack.enter_context(servers.running(name, "--auto-aof-rewrite-percentage", "0", tcp=True))
    assert server.process is not None
    key, pid = name.replace(".", "").replace("-", ""), server.process.pid
    bare = _own("bare_child", "redis", str(server.port))
    return [
        Contestant(f"bare_{key}", f"bare write: {TITLES[name]} XADD", bare, server.folder, "", pid),
        Contestant(
            f"everstep_{key}",
            f"Everstep, {TITLES[name]}",
            _own("everstep_child", server.url),
            server.folder,
            f"bare_{key}",
            pid,
        ),
    ]


def _peers(
    on_file: Callable[..., Contestant], folder: Callable[[str], Path], stack: ExitStack
) -> dict[str, Callable[[], Contestant]]:
    def langgraph() -> Contestant:
        installed.require("langgraph")
        return on_file("langgraph_sqlite", "LangGraph, SqliteSaver", lambda p: _peer("langgraph_child", p))

    def dbos_sqlite() -> Contestant:
        installed.require("dbos")
        return on_file("dbos_sqlite", "DBOS, SQLite", lambda p: _peer("dbos_child", f"sqlite:///{p}"))

    def served(
        key: str, title: str, start: Callable[[Path, ExitStack], peer_servers.PeerServer], module: str
    ) -> Contestant:
        home = folder(key)
        server = start(home, stack)
        return Contestant(key, title, _peer(module, *server.address), home, "", server.process.pid)

    def dbos_postgres() -> Contestant:
        installed.require("dbos")
        return served("dbos_postgres", "DBOS, Postgres", peer_servers.postgres, "dbos_child")

    return {
        "LangGraph": langgraph,
        "DBOS, SQLite": dbos_sqlite,
        "DBOS, Postgres": dbos_postgres,
        "Restate": lambda: served("restate", "Restate, one node", peer_servers.restate, "restate_child"),
        "Temporal": lambda: served("temporal", "Temporal, dev server", peer_servers.temporal, "temporal_child"),
    }
