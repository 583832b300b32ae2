"""The file of local mode: kills, other processes, locks, full disks, wrong files. Nothing confirmed is lost."""

# ruff: noqa: ASYNC240 - a test may keep its own loop waiting for a file

import asyncio
import os
import resource
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from everstep.clock import SystemClock
from everstep.errors import BadStore, JournalUnavailable, JournalUnreadable
from everstep.ids import Attempt, JournalId
from everstep.journal.chain import Chain
from everstep.journal.records import Fired
from everstep.journal.sqlite_store import FORMAT, SqliteStore
from everstep.journal.store import AppendAnswer
from everstep.journal.verify import verify
from everstep.journal.writer import JournalWriter
from tests.contract.stores import KEY, begin

Open = Callable[[], SqliteStore]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "journal.db"


@pytest.fixture
async def opening(path: Path) -> AsyncIterator[Open]:
    stores: list[SqliteStore] = []

    def open_one() -> SqliteStore:
        stores.append(SqliteStore(path))
        return stores[-1]

    yield open_one
    for store in stores:
        await store.aclose()


def child(path: Path, body: str, *arguments: str) -> "subprocess.Popen[str]":
    """Another process with `store`, `tale` helpers in scope; what it prints is read line by line."""
    head = f"""
        import asyncio, sys
        from everstep.ids import *
        from everstep.journal.sqlite_store import SqliteStore
        from everstep.journal.store import Head
        from everstep.errors import JournalUnavailable
        from tests.contract.stores import *
        async def main():
            store = SqliteStore({str(path)!r})
    """
    code = textwrap.dedent(head) + textwrap.indent(textwrap.dedent(body), "    ") + "\nasyncio.run(main())\n"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}/agent_image:{ROOT}"},
    )


async def test_killed_writer_keeps_what_was_confirmed(path: Path, opening: Open) -> None:
    """SIGKILL at any moment: every record that was said to be confirmed is there, and the journal is whole."""
    confirmed = 0
    for n in range(4):
        writer = child(
            path,
            """
            journal = JournalId("j")
            n = int(sys.argv[1])
            chain = Chain(journal, KEY)
            meta = await store.meta(journal)
            head = meta.head if meta else Head(Seq(0), chain.genesis())
            attempt = Attempt(n + 1)
            await store.fence(journal, attempt, head, {})
            await store.claim(journal, attempt, OWNER)
            tale = Tale(store, journal, chain, head, attempt)
            while True:
                await tale.write(3, size_bytes=3000)
                print(tale.head.seq, flush=True)
            """,
            str(n),
        )
        assert writer.stdout is not None
        for _ in range(5 + 3 * n):
            confirmed = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().split()
        writer.wait()
        writer.stdout.close()
        confirmed = int(rest[-1]) if rest else confirmed
        store = opening()
        report = await verify(store, Chain(JournalId("j"), KEY), JournalId("j"))
        assert report.whole, report
        assert report.head.seq in (confirmed, confirmed + 3), "the append in flight may have landed unsaid"


async def test_several_processes_write_side_by_side(path: Path, opening: Open) -> None:
    """C13: four processes with a journal each in one file; locks are waited for, nothing is lost."""
    await begin(opening(), "first")
    writers = [
        child(
            path,
            """
            async def stubborn(call):
                while True:
                    try:
                        return await call()
                    except JournalUnavailable:
                        await asyncio.sleep(0.05)
            tale = await stubborn(lambda: begin(store, sys.argv[1]))
            for _ in range(25):
                batch = tale.seal(2)
                append = lambda: store.append(tale.journal, tale.attempt, tale.owner, tale.head, batch)
                reply = await stubborn(append)
                assert reply.answer in ("OK", "DUP"), reply
                tale.head = Head(batch[-1].seq, batch[-1].hash)
            """,
            f"j{n}",
        )
        for n in range(4)
    ]
    for writer in writers:
        assert writer.wait(100) == 0
        assert writer.stdout is not None
        writer.stdout.close()
    store = opening()
    for n in range(4):
        report = await verify(store, Chain(JournalId(f"j{n}"), KEY), JournalId(f"j{n}"))
        assert (report.verdict, report.head.seq) == ("whole", 50)


async def test_two_processes_race_for_one_attempt(path: Path, opening: Open) -> None:
    """C19: one claims, the other is told TAKEN, whichever comes first; each round on a new attempt."""
    tale = await begin(opening(), "j", records=2)
    body = """
        import time
        until = float(sys.argv[3])
        while time.time() < until:
            pass
        for _ in range(200):
            try:
                print((await store.claim(JournalId("j"), Attempt(int(sys.argv[1])), Owner(sys.argv[2]))).answer)
                return
            except JournalUnavailable:
                await asyncio.sleep(0.01)
    """
    store = opening()
    for attempt in (2, 3, 4):
        await store.fence(tale.journal, Attempt(attempt), tale.head, {})
        begin_at = str(SystemClock().now_epoch_ms() / 1000 + 1.5)
        racers = [child(path, body, str(attempt), owner, begin_at) for owner in ("A", "B")]
        answers = sorted(r.communicate(timeout=60)[0].strip() for r in racers)
        assert answers == ["OK", "TAKEN"]


async def test_many_writers_of_one_loop_do_not_wait_for_a_lock_one_after_the_other(path: Path, opening: Open) -> None:
    """Each would keep the loop for a second, and bodies' time-outs would go on meanwhile."""
    tales = [await begin(opening(), f"j{n}") for n in range(12)]
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    writers = [
        JournalWriter(t.store, t.journal, t.attempt, t.owner, t.chain, head=t.head, clock=SystemClock()) for t in tales
    ]
    for writer in writers:
        writer.put(lambda seq: Fired(seq=seq, attempt=1, time=0))
    begun = SystemClock().monotonic_s()
    waiting = [asyncio.create_task(writer.drain()) for writer in writers]
    while not all(writer.unreachable for writer in writers):  # noqa: ASYNC110 - a state of writers, without an event
        await asyncio.sleep(0.01)
    assert SystemClock().monotonic_s() - begun < 6, "twelve seconds if each waits"
    other.execute("COMMIT")
    other.close()
    await asyncio.gather(*waiting)


async def test_lock_held_by_another_process_is_unavailable_then_goes_on(path: Path, opening: Open) -> None:
    tale = await begin(opening(), "j", records=1)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    begun = SystemClock().monotonic_s()
    with pytest.raises(JournalUnavailable, match="locked"):
        await tale.write(1)
    assert SystemClock().monotonic_s() - begun < 5, "the loop must not stand still for long"
    assert [r.seq async for r in tale.store.read(tale.journal)] == [1], "reading needs no lock"
    writer = JournalWriter(
        tale.store, tale.journal, tale.attempt, tale.owner, tale.chain, head=tale.head, clock=SystemClock()
    )
    writer.put(lambda seq: Fired(seq=seq, attempt=1, time=0))
    waiting = asyncio.create_task(writer.drain())
    await asyncio.sleep(0.3)
    assert writer.unreachable
    other.execute("COMMIT")
    other.close()
    await waiting
    assert (await verify(tale.store, tale.chain, tale.journal)).head == writer.confirmed


async def test_full_disk_refuses_whole_and_goes_on(path: Path, opening: Open) -> None:
    """E28 on a laptop: the file may not grow (RLIMIT_FSIZE stands in for a full disk); nothing is half-written."""
    tale = await begin(opening(), "j", records=3)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    size = max(f.stat().st_size for f in path.parent.iterdir())
    batch = tale.seal(4, size_bytes=100_000)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        with pytest.raises(JournalUnavailable):
            await tale.store.append(tale.journal, tale.attempt, tale.owner, tale.head, batch)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert [r.seq async for r in tale.store.read(tale.journal)] == [1, 2, 3]
    reply = await tale.store.append(tale.journal, tale.attempt, tale.owner, tale.head, batch)
    assert reply.answer is AppendAnswer.OK
    assert (await verify(tale.store, tale.chain, tale.journal)).whole


async def test_reading_makes_no_file(path: Path, opening: Open) -> None:
    store = opening()
    assert await store.journals() == []
    assert await store.meta(JournalId("j")) is None
    assert await store.last(JournalId("j")) is None
    assert await store.inbox_read(JournalId("j")) == []
    assert await store.blob_get(JournalId("j"), "d") is None
    assert [r async for r in store.read(JournalId("j"))] == []
    assert not path.parent.exists()
    await begin(store, "j")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600, "goals and answers are nobody else's business"


@pytest.mark.parametrize(
    "content", [b"this is a text file, not a database at all\n" * 100, b"SQLite format 3\x00" + b"\xff" * 4096]
)
async def test_another_file_is_refused_and_left_alone(path: Path, opening: Open, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(JournalUnreadable, match=r"cannot be read as a journal: .*; restore it from a copy"):
        await begin(opening(), "j")
    assert path.read_bytes() == content


async def test_newer_format_is_refused(path: Path, opening: Open) -> None:
    await begin(opening(), "j")
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {FORMAT + 1}")
    db.close()
    with pytest.raises(BadStore, match=f"journal format {FORMAT + 1}; this everstep knows {FORMAT}"):
        await opening().meta(JournalId("j"))


async def test_a_place_that_cannot_hold_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadStore, match="cannot make the journal"):
        await begin(SqliteStore(tmp_path / "file" / "journal.db"), "j")


async def test_numbers_of_swept_journals_do_not_leak_into_new_ones(path: Path, opening: Open) -> None:
    store = opening()
    for n in range(5):
        tale = await begin(store, f"j{n}", records=3)
        if n % 2:
            await store.sweep(tale.journal)
    for n in (1, 3):
        again = await begin(store, f"j{n}", records=1)
        assert [r.seq async for r in store.read(again.journal)] == [1]
    for n in (0, 2, 4):
        assert (await verify(store, Chain(JournalId(f"j{n}"), KEY), JournalId(f"j{n}"))).head.seq == 3
