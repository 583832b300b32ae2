"""One bench per kind of store: opens it twice over, and tampers with what it keeps as somebody with full access would."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from redis import Redis, RedisCluster

from everstep.ids import Attempt, JournalId, Owner, RecordHash, Seq
from everstep.journal.chain import Chain
from everstep.journal.keys import JournalKeys
from everstep.journal.memory import MemoryStore
from everstep.journal.open import open_store
from everstep.journal.records import Result, encode
from everstep.journal.store import AppendAnswer, FenceAnswer, Head, Sealed, Store, Stored
from tests.support.servers import Server

INSTALLATION = "conformance"
OWNER = Owner("pod-uid-1:nonce")
KEY = b"\x07" * 32


class Bench(Protocol):
    """One store, and the powers of its administrator."""

    name: str

    def open(self) -> Store:
        """Another client of the same store."""
        ...

    def entries(self, journal: JournalId) -> list[Stored]:
        """All records as they lie there."""
        ...

    def rewrite(self, journal: JournalId, entries: Sequence[Stored]) -> None:
        """Replace all records; meta stays."""
        ...

    def set_head(self, journal: JournalId, head: Head) -> None:
        """Overwrite the head in meta."""
        ...

    def drop_meta(self, journal: JournalId) -> None: ...

    def drop_owner(self, journal: JournalId) -> None: ...

    def dump(self, journal: JournalId) -> object:
        """A backup of one journal."""
        ...

    def restore(self, journal: JournalId, dump: object) -> None:
        """Put the backup back in place."""
        ...


@dataclass
class MemoryBench:
    name: str = "memory"
    store: MemoryStore = field(default_factory=MemoryStore)

    def open(self) -> Store:
        return self.store

    def entries(self, journal: JournalId) -> list[Stored]:
        return list(self.store.journals_by_id[journal].records)

    def rewrite(self, journal: JournalId, entries: Sequence[Stored]) -> None:
        self.store.journals_by_id[journal].records = list(entries)

    def set_head(self, journal: JournalId, head: Head) -> None:
        self.store.journals_by_id[journal].head = head

    def drop_meta(self, journal: JournalId) -> None:
        del self.store.journals_by_id[journal]

    def drop_owner(self, journal: JournalId) -> None:
        self.store.journals_by_id[journal].owner = None

    def dump(self, journal: JournalId) -> object:
        return self.store.copy().journals_by_id[journal]

    def restore(self, journal: JournalId, dump: object) -> None:
        self.store.journals_by_id[journal] = dump  # type: ignore[assignment]  # what dump() returned


@dataclass
class SqliteBench:
    path: Path
    name: str = "sqlite"

    def open(self) -> Store:
        return open_store(f"sqlite://{self.path}", installation=INSTALLATION)

    def entries(self, journal: JournalId) -> list[Stored]:
        base = self._base(journal)
        rows = self._sql(
            "SELECT place - ?, record, prev_hash, hash, attempt FROM records WHERE place / 4294967296 = ? ORDER BY place",
            (base, base >> 32),
        )
        return [Stored(Seq(s), r, RecordHash(p), RecordHash(h), Attempt(a)) for s, r, p, h, a in rows]

    def rewrite(self, journal: JournalId, entries: Sequence[Stored]) -> None:
        base = self._base(journal)
        db = sqlite3.connect(self.path)
        with db:
            db.execute("DELETE FROM records WHERE place / 4294967296 = ?", (base >> 32,))
            rows = [(base + e.seq, e.record, e.prev_hash, e.hash, e.attempt) for e in entries]
            db.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?)", rows)
        db.close()

    def set_head(self, journal: JournalId, head: Head) -> None:
        self._sql("UPDATE journals SET seq = ?, hash = ? WHERE id = ?", (head.seq, head.hash, journal))

    def drop_meta(self, journal: JournalId) -> None:
        self._sql("DELETE FROM journals WHERE id = ?", (journal,))

    def drop_owner(self, journal: JournalId) -> None:
        self._sql("UPDATE journals SET owner = NULL WHERE id = ?", (journal,))

    def dump(self, journal: JournalId) -> object:
        row = self._sql("SELECT attempt, owner, seq, hash FROM journals WHERE id = ?", (journal,))[0]
        return row, self.entries(journal)

    def restore(self, journal: JournalId, dump: object) -> None:
        row, entries = dump  # type: ignore[misc]  # what dump() returned
        self._sql("UPDATE journals SET attempt = ?, owner = ?, seq = ?, hash = ? WHERE id = ?", (*row, journal))  # type: ignore[has-type]  # likewise
        self.rewrite(journal, entries)  # type: ignore[has-type]  # likewise

    def _base(self, journal: JournalId) -> int:
        return int(self._sql("SELECT no FROM journals WHERE id = ?", (journal,))[0][0]) << 32

    def _sql(self, sql: str, arguments: tuple[object, ...]) -> list[tuple[Any, ...]]:
        db = sqlite3.connect(self.path, isolation_level=None)
        try:
            return db.execute(sql, arguments).fetchall()
        finally:
            db.close()


@dataclass
class RedisBench:
    server: Server
    url: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        self.name = self.server.name

    def open(self) -> Store:
        return open_store(self.url or self.server.url, installation=INSTALLATION)

    def client(self) -> "Redis":
        """A plain client, for looking behind the store's back."""
        if self.url.startswith("redis+cluster"):
            return RedisCluster("127.0.0.1", self.server.port, protocol=2)  # type: ignore[return-value]  # the same commands
        return Redis(unix_socket_path=str(self.server.socket_path), protocol=2)

    def keys(self, journal: JournalId) -> JournalKeys:
        return JournalKeys(INSTALLATION, journal)

    def entries(self, journal: JournalId) -> list[Stored]:
        with self.client() as c:
            page = c.execute_command("XRANGE", self.keys(journal).journal, "-", "+")
        return [
            Stored(
                Seq(int(i.split(b"-")[0])),
                f[b"r"],
                RecordHash(f[b"p"].decode()),
                RecordHash(f[b"h"].decode()),
                Attempt(int(f[b"a"])),
            )
            for i, f in page
        ]

    def rewrite(self, journal: JournalId, entries: Sequence[Stored]) -> None:
        key = self.keys(journal).journal
        with self.client() as c, c.pipeline() as together:
            together.delete(key)
            for e in entries:
                together.xadd(key, {"r": e.record, "p": e.prev_hash, "h": e.hash, "a": e.attempt}, id=f"{e.seq}-0")
            together.execute()

    def set_head(self, journal: JournalId, head: Head) -> None:
        with self.client() as c:
            c.hset(self.keys(journal).meta, mapping={"seq": head.seq, "hash": head.hash})

    def drop_meta(self, journal: JournalId) -> None:
        with self.client() as c:
            c.delete(self.keys(journal).meta)

    def drop_owner(self, journal: JournalId) -> None:
        with self.client() as c:
            c.hdel(self.keys(journal).meta, "owner")

    def dump(self, journal: JournalId) -> object:
        keys = self.keys(journal)
        with self.client() as c:
            return {key: c.dump(key) for key in (keys.meta, keys.journal)}

    def restore(self, journal: JournalId, dump: object) -> None:
        assert isinstance(dump, dict)
        with self.client() as c:
            for key, value in dump.items():
                c.restore(key, 0, value, replace=True)


@dataclass
class Tale:
    """One journal and its head, as its writer sees them."""

    store: Store
    journal: JournalId
    chain: Chain
    head: Head
    attempt: Attempt = Attempt(1)
    owner: Owner = OWNER

    @property
    def genesis(self) -> Head:
        return Head(Seq(0), self.chain.genesis())

    def seal(self, count: int, *, size_bytes: int = 20) -> list[Sealed]:
        """The next records, sealed but not written."""
        sealed: list[Sealed] = []
        head = self.head
        for _ in range(count):
            seq = Seq(head.seq + 1)
            raw = encode(
                Result(seq=seq, key=str(seq), name="step", attempt=self.attempt, time=0, value="x" * size_bytes)
            )
            link = self.chain.link(head.hash, raw)
            sealed.append(Sealed(seq, raw, head.hash, link))
            head = Head(seq, link)
        return sealed

    async def write(self, count: int, *, size_bytes: int = 20) -> list[Sealed]:
        """Append the next records in appends of at most 64."""
        written: list[Sealed] = []
        while len(written) < count:
            batch = self.seal(min(64, count - len(written)), size_bytes=size_bytes)
            reply = await self.store.append(self.journal, self.attempt, self.owner, self.head, batch)
            assert reply.answer is AppendAnswer.OK
            self.head = Head(batch[-1].seq, batch[-1].hash)
            assert reply.head == self.head
            written += batch
        return written

    def on(self, store: Store) -> "Tale":
        """The same journal through another client."""
        return replace(self, store=store)


async def begin(store: Store, journal: str, *, key: bytes | None = KEY, records: int = 0) -> Tale:
    """Fence and claim a new journal, and write some records."""
    chain = Chain(JournalId(journal), key)
    tale = Tale(store, JournalId(journal), chain, Head(Seq(0), chain.genesis()))
    fenced = await store.fence(tale.journal, tale.attempt, tale.head, {"name": "tale"})
    assert fenced.answer is FenceAnswer.OK
    await store.claim(tale.journal, tale.attempt, tale.owner)
    await tale.write(records)
    return tale
