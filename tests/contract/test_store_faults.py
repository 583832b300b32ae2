"""Servers that stall, die, lose replies, fill up, turn read-only or forget: the writer loses nothing and repeats nothing."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from everstep.clock import SystemClock
from everstep.errors import BadStore, Fenced, JournalConflict, JournalUnavailable
from everstep.ids import Attempt, Seq
from everstep.journal import redis_client
from everstep.journal.keys import JournalKeys
from everstep.journal.open import open_store
from everstep.journal.records import Fired
from everstep.journal.redis_store import RedisStore
from everstep.journal.store import AppendAnswer, AppendReply, FenceAnswer, Store
from everstep.journal.verify import verify
from everstep.journal.writer import JournalWriter, Make
from tests.contract.stores import INSTALLATION, RedisBench, Tale, begin
from tests.support import servers
from tests.support.proxy import Lose, Proxy, proxied
from tests.support.topologies import wait_for

WAIT_S = 20.0
Opener = Callable[[str], Store]


@pytest.fixture(params=servers.NAMES)
def server(request: pytest.FixtureRequest) -> Iterator[servers.Server]:
    with servers.running(request.param) as one:
        yield one


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost reply is noticed after 1.5 s here instead of 5 s."""
    monkeypatch.setattr(redis_client, "REPLY_TIMEOUT_S", 1.5)
    monkeypatch.setattr(redis_client, "CONNECT_TIMEOUT_S", 1.5)


@pytest.fixture
async def opening() -> AsyncIterator[Opener]:
    stores: list[Store] = []

    def open_one(url: str) -> Store:
        stores.append(open_store(url, installation=INSTALLATION))
        return stores[-1]

    yield open_one
    for store in stores:
        await store.aclose()


class Watched:
    """A writer and the answers its appends got."""

    def __init__(self, tale: Tale, *, unreachable_after_s: float = WAIT_S) -> None:
        self.answers: list[AppendAnswer | str] = []
        self.stops: list[BaseException] = []
        self.tale = tale
        real = tale.store.append

        async def append(*args: object, **kwargs: object) -> AppendReply:
            try:
                reply = await real(*args, **kwargs)  # type: ignore[arg-type]  # passed through as they came
            except JournalUnavailable as e:
                self.answers.append(str(e))
                raise
            self.answers.append(reply.answer)
            return reply

        tale.store.append = append  # type: ignore[method-assign]  # watched by the test
        self.writer = JournalWriter(
            tale.store,
            tale.journal,
            tale.attempt,
            tale.owner,
            tale.chain,
            head=tale.head,
            clock=SystemClock(),
            on_stop=self.stops.append,
            unreachable_after_s=unreachable_after_s,
        )

    def put(self, count: int, *, size_bytes: int = 0) -> Seq:
        seqs = [self.writer.put(fired("x" * size_bytes)) for _ in range(count)]
        return seqs[-1]

    async def until_unreachable(self) -> None:
        async with asyncio.timeout(WAIT_S):
            while not self.writer.unreachable:  # noqa: ASYNC110 - a state of the writer, which has no event for it
                await asyncio.sleep(0.01)

    async def require_whole(self, store: Store) -> None:
        """The journal is whole, and has exactly what was put."""
        report = await verify(store, self.tale.chain, self.tale.journal, anchor=self.writer.confirmed)
        report.require_whole()
        assert report.head == self.writer.sealed == self.writer.confirmed


def fired(name: str) -> Make:
    return lambda seq: Fired(seq=seq, key=str(seq), name=name, attempt=1, time=0)


async def test_stalled_server(server: servers.Server, opening: Opener) -> None:
    """E26: SIGSTOP during appends: time-outs, the same append again, DUP is success, no second record, no lost step."""
    watched = Watched(await begin(opening(server.url), "j", records=3))
    watched.put(5)
    await watched.writer.drain()
    server.pause()
    seq = watched.put(5)
    waiting = asyncio.create_task(watched.writer.durable(seq))
    await watched.until_unreachable()
    late = watched.put(2)
    server.resume()
    await waiting
    await watched.writer.durable(late)
    assert AppendAnswer.DUP in watched.answers, f"the stalled server ran the first try later: {watched.answers}"
    assert not watched.writer.unreachable
    await watched.require_whole(opening(server.url))


async def test_paused_clients(server: servers.Server, opening: Opener) -> None:
    """E26: CLIENT PAUSE … ALL."""
    watched = Watched(await begin(opening(server.url), "j"))
    server.cli("CLIENT", "PAUSE", "3200", "ALL")
    watched.put(4)
    await watched.writer.drain()
    assert any("no answer in time" in a or "imeout" in a for a in watched.answers), watched.answers
    await watched.require_whole(opening(server.url))


@pytest.mark.parametrize("lose", [Lose.REPLY, Lose.REQUEST])
async def test_lost_replies_and_requests(server: servers.Server, opening: Opener, lose: Lose) -> None:
    """A reply that got lost is DUP the second time; a request that got lost is written the second time. Ten of each."""
    async with proxied(server.socket_path) as proxy:
        watched = Watched(await begin(opening(_url(proxy)), "j", records=1))
        for n in range(10):
            watched.put(1 + n % 3)
            proxy.lose = lose
            await watched.writer.drain()
        assert proxy.lost == 10
        wanted = AppendAnswer.DUP if lose is Lose.REPLY else AppendAnswer.OK
        assert watched.answers.count(wanted) == 10, watched.answers
        await watched.require_whole(opening(server.url))
        await watched.tale.store.aclose()  # before the proxy goes


async def test_lost_replies_of_the_other_calls(server: servers.Server, opening: Opener) -> None:
    """Every call may be repeated after a lost reply."""
    async with proxied(server.socket_path) as proxy:
        store = opening(_url(proxy))
        tale = await begin(store, "j", records=2)

        async def twice(call: Callable[[], object]) -> object:
            proxy.lose = Lose.REPLY
            with pytest.raises(JournalUnavailable):
                await call()  # type: ignore[misc]  # each is a coroutine function
            return await call()  # type: ignore[misc]  # likewise

        await twice(lambda: store.fence(tale.journal, Attempt(2), tale.head, {}))
        await twice(lambda: store.claim(tale.journal, Attempt(2), tale.owner))
        reply = await store.claim(tale.journal, Attempt(2), tale.owner)
        assert (reply.answer, reply.head) == ("OK", tale.head)
        await twice(lambda: store.report(tale.journal, Attempt(2), tale.owner, b"p"))
        await twice(lambda: store.blob_put(tale.journal, "d", b"v"))
        assert await twice(lambda: store.meta(tale.journal))
        await store.aclose()  # before the proxy goes


async def test_killed_server_comes_back(server: servers.Server, opening: Opener) -> None:
    """A SIGKILL of the server under load, and its restart on the same volume: nothing confirmed is missing."""
    watched = Watched(await begin(opening(server.url), "j"))
    for _ in range(3):
        watched.put(20, size_bytes=500)
        waiting = asyncio.create_task(watched.writer.drain())
        await asyncio.sleep(0)
        server.kill()
        watched.put(1)  # surely unanswered: the server may have answered the others just before
        after = asyncio.create_task(watched.writer.drain())
        await watched.until_unreachable()
        server.run()
        await waiting
        await after
    await watched.require_whole(opening(server.url))


async def test_killed_connections(server: servers.Server, opening: Opener) -> None:
    """CLIENT KILL between appends: the next one reconnects."""
    watched = Watched(await begin(opening(server.url), "j"))
    for _ in range(5):
        server.cli("CLIENT", "KILL", "TYPE", "normal")
        watched.put(2)
        await watched.writer.drain()
    await watched.require_whole(opening(server.url))


async def test_appends_of_several_runs_go_by_their_pipes_alone(server: servers.Server, opening: Opener) -> None:
    """Eight writers at once, by pipes and nothing else: no append goes the slower way, and each journal is whole."""
    store = opening(server.url)
    watched = [Watched(await begin(store, f"j{n}")) for n in range(8)]
    for one in watched:
        one.put(1)
        await one.writer.drain()  # opens the pipe, and teaches the server the script
    for one in watched:
        one.answers.clear()  # they share a store, so each saw the others' first append
    connections = server.cli("CLIENT", "LIST").count(b" laddr=")

    async def work(one: Watched) -> None:
        for _ in range(20):
            await one.writer.durable(one.put(2))

    await asyncio.gather(*(work(one) for one in watched))
    assert connections == server.cli("CLIENT", "LIST").count(b" laddr=")
    for one in watched:
        assert one.answers == [], "an append went through Store.append"
        await one.require_whole(store)


async def test_a_sick_journal_does_not_disturb_others_on_its_pipe(server: servers.Server, opening: Opener) -> None:
    """Its appends are refused again and again, and each time another pipe is opened; what others sent is answered first."""
    store = opening(server.url)
    sick = await begin(store, "sick", records=1)
    healthy = [await begin(store, f"j{n}", records=1) for n in range(3)]
    key = cast(RedisStore, store).keys(sick.journal).journal
    server.cli("DEL", key)
    server.cli("SET", key, "no stream")
    over = asyncio.Event()

    async def trouble() -> int:
        refused = 0
        while not over.is_set():
            with pytest.raises((BadStore, JournalUnavailable)):
                await sick.write(1)
            refused += 1
            await asyncio.sleep(0.001)
        return refused

    async def work(tale: Tale) -> None:
        for _ in range(100):
            await tale.write(1)  # raises JournalUnavailable if its pipe is closed before its reply

    troubling = asyncio.create_task(trouble())
    await asyncio.gather(*map(work, healthy))
    over.set()
    assert await troubling > 10


async def test_full_memory(server: servers.Server, opening: Opener) -> None:
    """E28: an append is refused whole, fence, deletion mark and sweep still work, and it goes on once there is memory."""
    bench = RedisBench(server)
    store = opening(server.url)
    old = await begin(store, "old", records=200)
    watched = Watched(await begin(store, "j", records=3))
    with bench.client() as c:
        c.config_set("maxmemory", c.info("memory")["used_memory"] - 1)
    seq = watched.put(30, size_bytes=10_000)
    waiting = asyncio.create_task(watched.writer.durable(seq))
    await watched.until_unreachable()
    assert "memory is full" in str(watched.answers[0])
    assert [r.seq async for r in store.read(watched.tale.journal)] == [1, 2, 3], "nothing is half-written"
    assert (await store.fence(old.journal, Attempt(2), old.head, {"keyId": "k"})).answer is FenceAnswer.OK
    await store.set_fields(old.journal, {"deletedAt": "1"})
    await store.sweep(old.journal)
    assert await store.journals() == ["j"]
    with bench.client() as c:
        c.config_set("maxmemory", 0)
    await waiting
    await watched.require_whole(store)


async def test_full_memory_for_too_long(server: servers.Server, opening: Opener) -> None:
    """E28: after the bounded time every waiter learns it, `on_stop` once, and nothing more is accepted."""
    watched = Watched(await begin(opening(server.url), "j", records=3), unreachable_after_s=0.5)
    server.cli("CONFIG", "SET", "maxmemory", "1")
    seq = watched.put(3)
    outcomes = await asyncio.gather(
        watched.writer.durable(seq), watched.writer.drain(), watched.writer.durable(Seq(4)), return_exceptions=True
    )
    assert [type(o) for o in outcomes] == [JournalUnavailable] * 3
    assert "records 4 to 6" in str(outcomes[0])
    assert watched.stops == [outcomes[0]]
    with pytest.raises(JournalUnavailable):
        watched.put(1)
    assert watched.writer.confirmed == watched.tale.head


async def test_read_only_server(server: servers.Server, opening: Opener) -> None:
    """A failover turned our primary into a replica: wait, then go on when it is primary again."""
    store = opening(server.url)
    watched = Watched(await begin(store, "j", records=2))
    server.cli("REPLICAOF", "127.0.0.1", "1")
    watched.put(1)
    waiting = asyncio.create_task(watched.writer.drain())
    await watched.until_unreachable()
    assert "replica" in str(watched.answers[0])
    assert any("replica" in p for p in (await store.durability()).problems)
    server.cli("REPLICAOF", "NO", "ONE")
    await waiting
    await watched.require_whole(opening(server.url))


async def test_store_that_lost_everything(server: servers.Server, opening: Opener) -> None:
    """E27 (b): an empty store under a live writer: the writer stops and names the last confirmed head; the fence says lost."""
    watched = Watched(await begin(opening(server.url), "j", records=4))
    server.cli("FLUSHALL")
    watched.put(1)
    with pytest.raises(JournalConflict) as stopped:
        await watched.writer.drain()
    assert (stopped.value.confirmed_seq, stopped.value.confirmed_hash) == (4, watched.tale.head.hash)
    reply = await watched.tale.store.fence(watched.tale.journal, Attempt(2), watched.tale.head, {})
    assert reply.answer is FenceAnswer.LOST


async def test_store_that_went_back_in_time(server: servers.Server, opening: Opener, tmp_path: Path) -> None:
    """E27 (c), C52: confirmed records are gone after a restart: behind the anchor it is lost, the live writer stops."""
    tale = await begin(opening(server.url), "j", records=5)
    server.kill()
    shutil.copytree(server.folder / "appendonlydir", tmp_path / "old")
    server.run()
    watched = Watched(tale)
    watched.put(4)
    await watched.writer.drain()
    newest = watched.writer.confirmed
    server.kill()
    shutil.rmtree(server.folder / "appendonlydir")
    shutil.copytree(tmp_path / "old", server.folder / "appendonlydir")
    server.run()
    watched.put(1)
    with pytest.raises(JournalConflict) as stopped:
        await watched.writer.drain()
    assert stopped.value.confirmed_seq == newest.seq == 9
    store = opening(server.url)
    assert (await store.fence(tale.journal, Attempt(2), newest, {})).answer is FenceAnswer.LOST
    reply = await store.fence(tale.journal, Attempt(2), tale.head, {})
    assert reply.answer is FenceAnswer.OK, "a tail newer than the anchor was lost: nothing outside the store can tell"


@pytest.mark.parametrize("name", servers.NAMES)
async def test_promoted_replica_that_was_held_back(name: str, opening: Opener) -> None:
    """E27 (d), C52: a failover to a replica that lacks the last records: lost behind the anchor, the live writer stops."""
    with servers.running(name, tcp=True) as primary:
        follow = ("--replicaof", f"127.0.0.1 {primary.port}")
        with servers.running(name, *follow, tcp=True) as replica:
            wait_for(
                lambda: b"master_link_status:up" in replica.cli("INFO", "replication"), "the replica to be in sync"
            )
            tale = await begin(opening(primary.url), "j", records=5)
            meta = JournalKeys(INSTALLATION, tale.journal).meta
            wait_for(lambda: replica.cli("HGET", meta, "seq") == b"$1\r\n5\r\n", "five records on the replica")
            replica.cli("REPLICAOF", "NO", "ONE")
            await tale.write(4)
            primary.kill()
            store = opening(replica.url)
            assert (await store.fence(tale.journal, Attempt(2), tale.head, {})).answer is FenceAnswer.LOST
            watched = Watched(tale.on(store))
            watched.put(1)
            with pytest.raises(JournalConflict) as stopped:
                await watched.writer.drain()
            assert stopped.value.confirmed_seq == 9


async def test_fenced_while_the_store_was_away(server: servers.Server, opening: Opener) -> None:
    """E7: a replaced process that comes back learns it at its next append and writes nothing."""
    watched = Watched(await begin(opening(server.url), "j", records=2))
    server.pause()
    watched.put(2)
    waiting = asyncio.create_task(watched.writer.drain())
    await watched.until_unreachable()
    watched.writer.freeze()
    with pytest.raises(BaseException, match="frozen"):
        await waiting
    server.resume()
    store = opening(server.url)
    head = (await store.meta(watched.tale.journal)).head  # type: ignore[union-attr]  # begin() made it
    await store.fence(watched.tale.journal, Attempt(2), head, {})
    again = Watched(Tale(store, watched.tale.journal, watched.tale.chain, head))
    again.put(1)
    with pytest.raises(Fenced) as fenced:
        await again.writer.drain()
    assert fenced.value.attempt == 2
    assert isinstance(again.stops[0], Fenced)


def _url(proxy: Proxy) -> str:
    return f"redis://127.0.0.1:{proxy.port}"
