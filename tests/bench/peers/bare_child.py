"""Floors: one bare durable write per step, and the 30 lines of SQLite that people write instead of an engine: with SQLite's
settings as they come, and tuned.

python -m tests.bench.peers.bare_child sqlite PATH | redis PORT | sketch PATH | tuned_sketch PATH
"""

import json
import socket
import sqlite3
import sys

from tests.bench.peers.child import Body, Engine, serve


class BareSqlite(Engine):
    """An INSERT per step."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.db = self.open()

    def open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, isolation_level=None, timeout=60)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("CREATE TABLE IF NOT EXISTS t (n INTEGER PRIMARY KEY, record BLOB)")
        return db

    def settings(self) -> dict[str, object]:
        return sqlite_settings(self.db)

    def run(self, run: str, steps: int, body: Body) -> None:
        db = self.open()  # threads cannot share one
        for n in range(steps):
            db.execute("INSERT INTO t (record) VALUES (?)", (body(n).encode(),))
        db.close()

    def close(self) -> None:
        self.db.close()


class BareRedis(Engine):
    """An XADD per step over a blocking socket: no client library is faster."""

    def __init__(self, port: int) -> None:
        self.port = port

    def open(self) -> socket.socket:
        s = socket.create_connection(("127.0.0.1", self.port))
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return s

    def settings(self) -> dict[str, object]:
        with self.open() as s:
            return {name: self._config(s, name) for name in ("appendonly", "appendfsync")}

    @staticmethod
    def _config(s: socket.socket, name: str) -> str:
        s.sendall(pack(b"CONFIG", b"GET", name.encode()))
        return s.recv(4096).split(b"\r\n")[-2].decode()

    def run(self, run: str, steps: int, body: Body) -> None:
        with self.open() as s:
            for n in range(steps):
                self.write(s, b"bare:" + run.encode(), body(n).encode())

    @staticmethod
    def write(s: socket.socket, key: bytes, record: bytes) -> None:
        """One durable write."""
        s.sendall(pack(b"XADD", key, b"*", b"r", record))
        reply = s.recv(4096)
        assert reply[:1] == b"$", reply


def pack(*words: bytes) -> bytes:
    """A RESP command."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)


class Sketch(Engine):
    """What people write instead: a table of results, a commit per step. A rollback journal and `synchronous = FULL` are
    SQLite's own choices."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.db = self.open()

    def open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=60)
        db.execute("CREATE TABLE IF NOT EXISTS steps (run TEXT, seq INTEGER, result TEXT, PRIMARY KEY (run, seq))")
        return db

    def settings(self) -> dict[str, object]:
        return sqlite_settings(self.db)

    def run(self, run: str, steps: int, body: Body) -> None:
        db = self.open()
        for n in range(steps):
            found = db.execute("SELECT result FROM steps WHERE run = ? AND seq = ?", (run, n)).fetchone()
            if found is not None:
                json.loads(found[0])
                continue
            result = json.dumps(body(n))
            db.execute("INSERT INTO steps VALUES (?, ?, ?)", (run, n, result))
            db.commit()
        db.close()

    def close(self) -> None:
        self.db.close()


class TunedSketch(Sketch):
    """The same by who knows SQLite: one sync per commit instead of several."""

    def open(self) -> sqlite3.Connection:
        db = super().open()
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        return db


def sqlite_settings(db: sqlite3.Connection) -> dict[str, object]:
    """What SQLite says of itself; synchronous 2 is FULL."""
    return {
        "sqlite": sqlite3.sqlite_version,
        "journal_mode": db.execute("PRAGMA journal_mode").fetchone()[0],
        "synchronous": db.execute("PRAGMA synchronous").fetchone()[0],
    }


if __name__ == "__main__":
    kind, where = sys.argv[1:]
    makes = {
        "sqlite": lambda: BareSqlite(where),
        "redis": lambda: BareRedis(int(where)),
        "sketch": lambda: Sketch(where),
        "tuned_sketch": lambda: TunedSketch(where),
    }
    serve(makes[kind])
