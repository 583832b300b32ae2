"""C55 and C18: a process is killed, or paused and replaced, in the middle of a model's stream, with the live stream watched.

The watcher loses its connection again and again and goes on from the last position it saw. The model is a service on loopback
that counts what it is asked.
"""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.ids import JournalId
from everstep.journal.live import LiveEntry, LiveStore, follow_live, read_live
from everstep.journal.open import open_store
from everstep.journal.records import Finished, encode
from tests.crash.driver import INSTALLATION, Driver
from tests.support.models import ModelServer, Reply

TEXT = "The quick brown fox jumps over the lazy dog again and again."


@pytest.fixture
def model() -> Iterator[ModelServer]:
    # The words of the first answer are others, so that they can be told apart.
    with ModelServer(lambda _b, n: Reply(TEXT if n else TEXT.upper(), pause_s=0.02)) as server:
        yield server


def driver(store_url: str, name: str, home: Path, model: ModelServer, run_key: bytes | None) -> Driver:
    return Driver(
        store_url, JournalId(name), home / name, "tests.crash.agents_streams:reader", {"url": model.url}, run_key
    )


async def watch(store_url: str, journal: JournalId, over: asyncio.Event) -> list[LiveEntry]:
    """As somebody far away would: five entries, then a new connection."""
    seen: list[LiveEntry] = []
    while True:
        ending = over.is_set()
        store = open_store(store_url, installation=INSTALLATION)
        assert isinstance(store, LiveStore)
        after, got = seen[-1].position if seen else 0, 0
        async for entry in follow_live(store, journal, after, until=lambda: True, poll_s=0.01):
            seen.append(entry)
            got += 1
            if got == 5:
                break
        await store.aclose()
        if ending and got < 5:
            return seen
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("spec", ["in_stream:4@1=kill", "after_live:2@1=kill", "in_stream:8@1=kill;in_stream:6@2=kill"])
async def test_killed_in_mid_stream(
    spec: str, store_url: str, run_key: bytes | None, tmp_path: Path, model: ModelServer
) -> None:
    kills = spec.count("=kill")
    async with driver(store_url, "".join(c if c.isalnum() else "-" for c in spec), tmp_path, model, run_key) as run:
        over = asyncio.Event()
        watching = asyncio.create_task(watch(store_url, run.journal, over))
        finished = await run.finish(faults=spec)
        over.set()
        seen = await watching
        assert finished.value == [TEXT]
        assert run.exits.count(-signal.SIGKILL) == kills
        assert len(model.requests) == 1 + kills, "once per process that was lost in the middle, and once more"
        records = await run.records()
        assert len([r for r in records if r.kind == "result" and r.name == "openai.chat.completions"]) == 1
        assert not any(word in encode(r).decode() for r in records for word in ("QUICK", "THE ")), (
            "no word of the cut one"
        )

        assert isinstance(run.store, LiveStore)
        assert seen == [e async for e in read_live(run.store, run.journal)], "nothing lost, nothing twice"
        assert [e.position for e in seen] == list(range(1, len(seen) + 1))
        last = max(e.attempt for e in seen)
        assert last == kills + 1
        assert "".join(e.text for e in seen if e.attempt == last) == TEXT
        for attempt in range(1, last):
            words = "".join(e.text for e in seen if e.attempt == attempt)
            assert TEXT.upper().startswith(words) or TEXT.startswith(words)
            marks = [i for i, e in enumerate(seen) if e.kind == "abandoned" and e.attempt == attempt]
            assert len(marks) == 1, "its words are marked as dead"
            assert all(e.attempt > attempt for e in seen[marks[0] + 1 :])
        for attempt in range(1, last + 1):
            offset = 0
            for entry in (e for e in seen if e.attempt == attempt and e.kind == "text"):
                assert entry.offset == offset
                offset += len(entry.text)


async def test_the_paused_process_says_nothing_once_it_was_replaced(
    store_url: str, run_key: bytes | None, tmp_path: Path, model: ModelServer
) -> None:
    """C18, E7: two live processes, one live stream; the old one's words are refused."""
    async with driver(store_url, "paused", tmp_path, model, run_key) as run:
        await run.fence()
        old = await run.spawn(faults="in_stream:4@1=stop")
        try:
            await old.wait_stopped()
            await run.take_anchor()
            finished = await run.finish()
            assert isinstance(finished, Finished)
            assert finished.value == [TEXT]
            assert isinstance(run.store, LiveStore)
            before = [e async for e in read_live(run.store, run.journal)]
            old.send(signal.SIGCONT)
            assert await old.wait() == 75, old.stderr()
            assert [e async for e in read_live(run.store, run.journal)] == before
        finally:
            if old.process.returncode is None:
                old.send(signal.SIGKILL)
                await old.wait()
        assert "".join(e.text for e in before if e.attempt == 2) == TEXT
        assert len(await run.records()) == finished.seq
