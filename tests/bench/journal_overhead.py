"""What one durable step costs, next to one bare durable write of the same bytes on the same disk.

    python -m tests.bench.journal_overhead [--steps 1500] [--size-bytes 4000] [--server redis-7.0]

Per round, interleaved, so that both see the same disk and the same neighbours:
  bare   the server's XADD (appendfsync always) by redis-py, or SQLite's INSERT (WAL, synchronous FULL), of one record's bytes
  raw    the same XADD over a blocking socket, which no client library reaches (Redis only)
  step   a result is put, the next intent is put, and `durable(intent)` returns: both records are sealed (canonical JSON,
         HMAC chain), fenced and written together
Prints p50 and p99 of each and their ratio.
"""

import argparse
import asyncio
import json
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis

from everstep.clock import SystemClock
from everstep.ids import Attempt, JournalId, Owner, Seq
from everstep.journal.chain import Chain
from everstep.journal.open import open_store
from everstep.journal.records import Intent, Result
from everstep.journal.store import Head, Store
from everstep.journal.writer import JournalWriter
from tests.bench.peers.bare_child import BareRedis
from tests.support import servers

WARM_UP = 100


@dataclass(frozen=True)
class Overhead:
    """Milliseconds per durable write."""

    name: str
    bare_p50_ms: float
    bare_p99_ms: float
    step_p50_ms: float
    step_p99_ms: float
    raw_p50_ms: float | None = None

    @property
    def ratio(self) -> float:
        """Step over bare, at p50."""
        return self.step_p50_ms / self.bare_p50_ms

    @property
    def raw_ratio(self) -> float | None:
        """Step over the blocking socket's write, at p50."""
        return None if self.raw_p50_ms is None else self.step_p50_ms / self.raw_p50_ms

    def __str__(self) -> str:
        raw = (
            "" if self.raw_p50_ms is None else f" · over a raw socket p50 {self.raw_p50_ms:.3f} ms {self.raw_ratio:.2f}"
        )
        return (
            f"{self.name:10} bare p50 {self.bare_p50_ms:.3f} p99 {self.bare_p99_ms:.3f} ms · "
            f"step p50 {self.step_p50_ms:.3f} p99 {self.step_p99_ms:.3f} ms · ratio {self.ratio:.2f}{raw}"
        )


async def measure(
    name: str,
    store: Store,
    bare: Callable[[bytes], Awaitable[object]],
    steps: int,
    size_bytes: int,
    raw: Callable[[bytes], object] | None = None,
) -> Overhead:
    """Interleave bare writes and steps; the first WARM_UP rounds do not count."""
    writer = await _writer(store)
    text = "x" * size_bytes
    bare_ms: list[float] = []
    step_ms: list[float] = []
    raw_ms: list[float] = []
    for n in range(WARM_UP + steps):
        if raw is not None:
            begin = time.perf_counter()
            raw(text.encode())
            raw_ms.append((time.perf_counter() - begin) * 1000)
        begin = time.perf_counter()
        await bare(text.encode())
        middle = time.perf_counter()
        await _step(writer, str(n), text)
        end = time.perf_counter()
        if n >= WARM_UP:
            bare_ms.append((middle - begin) * 1000)
            step_ms.append((end - middle) * 1000)
    raw_p50_ms = statistics.median(raw_ms[WARM_UP:]) if raw_ms else None
    return Overhead(name, *_quantiles(bare_ms), *_quantiles(step_ms), raw_p50_ms)


async def _step(writer: JournalWriter, key: str, text: str) -> None:
    """What one step of a sequential run gives the journal to do."""
    writer.put(lambda seq: Result(seq=seq, key=key, name="s", attempt=1, time=0, value=text, took_ms=1))
    intent = writer.put(
        lambda seq: Intent(
            seq=seq, key=key, name="s", attempt=1, time=0, effect="idempotent", input="0" * 64, idem="1" * 64
        )
    )
    await writer.durable(intent)


async def _writer(store: Store, name: str = "bench") -> JournalWriter:
    journal, attempt, owner = JournalId(name), Attempt(1), Owner("bench")
    chain = Chain(journal, b"k" * 32)
    head = Head(Seq(0), chain.genesis())
    await store.fence(journal, attempt, head, {})
    await store.claim(journal, attempt, owner)
    return JournalWriter(store, journal, attempt, owner, chain, head=head, clock=SystemClock())


def _quantiles(values_ms: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(values_ms, n=100)
    return cuts[49], cuts[98]


async def sqlite_overhead(steps: int, size_bytes: int) -> Overhead:
    """A step on the SQLite journal next to a bare INSERT into a file beside it."""
    with tempfile.TemporaryDirectory(prefix="everstep-bench-", dir=Path.cwd()) as folder:
        db = sqlite3.connect(f"{folder}/bare.db", isolation_level=None)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, record BLOB)")

        async def bare(record: bytes) -> None:
            db.execute("INSERT INTO t (record) VALUES (?)", (record,))

        store = open_store(f"sqlite://{folder}/journal.db", installation="bench")
        try:
            return await measure("sqlite", store, bare, steps, size_bytes)
        finally:
            await store.aclose()
            db.close()


async def redis_overhead(name: str, steps: int, size_bytes: int) -> Overhead:
    """A step on a private server next to a bare XADD on the same one."""
    with servers.running(name, tcp=True) as server:
        store = open_store(server.url, installation="bench")
        client: Redis = Redis(port=server.port)
        floor = BareRedis(server.port)
        raw = floor.open()
        try:
            return await measure(
                name,
                store,
                lambda r: client.xadd("bare", {"r": r}),
                steps,
                size_bytes,
                lambda r: floor.write(raw, b"raw", r),
            )
        finally:
            raw.close()
            await store.aclose()
            await client.aclose()


async def redis_throughput(name: str, writers: int, seconds: float, size_bytes: int) -> float:
    """Steps per second of several runs' writers in one loop on one store."""
    with servers.running(name, tcp=True) as server:
        store = open_store(server.url, installation="bench")
        done = 0
        text = "x" * size_bytes

        async def work(writer: JournalWriter, until_s: float) -> None:
            nonlocal done
            while time.perf_counter() < until_s:
                await _step(writer, "0", text)
                done += 1

        try:
            made = [await _writer(store, f"bench-{n}") for n in range(writers)]
            await asyncio.gather(*(work(writer, time.perf_counter() + 0.2) for writer in made))
            done, begin = 0, time.perf_counter()
            await asyncio.gather(*(work(writer, begin + seconds) for writer in made))
            return done / (time.perf_counter() - begin)
        finally:
            await store.aclose()


def main() -> None:
    """Print one line per store, and the figures as JSON at the end."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--size-bytes", type=int, default=4000)
    parser.add_argument("--server", default="redis-7.0", choices=servers.NAMES)
    given = parser.parse_args()
    found = [
        asyncio.run(sqlite_overhead(given.steps, given.size_bytes)),
        asyncio.run(redis_overhead(given.server, given.steps, given.size_bytes)),
    ]
    for one in found:
        print(one)
    print(json.dumps([{**vars(one), "ratio": round(one.ratio, 3)} for one in found]))


if __name__ == "__main__":
    main()
