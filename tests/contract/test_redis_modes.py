"""Ways to reach a Redis: TLS with a CA, an ACL user, Cluster, Sentinel; and what is refused before a run may use it."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from everstep.clock import SystemClock
from everstep.errors import BadStore, JournalUnavailable
from everstep.ids import JournalId
from everstep.journal import redis_client
from everstep.journal.durability import judge
from everstep.journal.open import open_store
from everstep.journal.records import Fired
from everstep.journal.store import Store
from everstep.journal.verify import verify
from everstep.journal.writer import JournalWriter
from tests.contract.stores import INSTALLATION, begin
from tests.support import servers, topologies

NONE = JournalId("none")
Opener = Callable[..., Store]


@pytest.fixture
async def opening() -> AsyncIterator[Opener]:
    stores: list[Store] = []

    def open_one(url: str, ca_path: str | None = None) -> Store:
        stores.append(open_store(url, installation=INSTALLATION, ca_path=ca_path))
        return stores[-1]

    yield open_one
    for store in stores:
        await store.aclose()


@pytest.fixture(params=servers.NAMES)
def server(request: pytest.FixtureRequest) -> Iterator[servers.Server]:
    with servers.running(request.param, tcp=True) as one:
        yield one


# --- TLS, users ------------------------------------------------------------------------------------------------------


async def test_tls_with_its_ca_and_without(tmp_path: Path, opening: Opener) -> None:
    topologies.make_certificates(tmp_path)
    port = servers.free_port()
    tls = ["--tls-port", str(port), "--tls-auth-clients", "no", "--tls-ca-cert-file", str(tmp_path / "ca.crt")]
    tls += ("--tls-cert-file", str(tmp_path / "server.crt"), "--tls-key-file", str(tmp_path / "server.key"))
    with servers.running("redis-7.0", *tls):
        store = opening(f"rediss://127.0.0.1:{port}", str(tmp_path / "ca.crt"))
        tale = await begin(store, "j", records=3)
        assert (await verify(store, tale.chain, tale.journal)).whole
        for ca in (str(tmp_path / "other.crt"), None):
            with pytest.raises(BadStore, match=r"certificate is not trusted.*give the CA that signed it"):
                await opening(f"rediss://127.0.0.1:{port}", ca).meta(NONE)
        with pytest.raises(JournalUnavailable):
            await opening(f"redis://127.0.0.1:{port}").meta(NONE)


async def test_acl_user_with_what_the_error_message_names(server: servers.Server, opening: Opener) -> None:
    """The rights that the message of a refused call lists are enough for everything."""
    rights = ("~es:*", "+@read", "+@write", "+@scripting", "+@connection", "+info")
    server.cli("ACL", "SETUSER", "journal", "on", ">p@ss/word", *rights)
    server.cli("ACL", "SETUSER", "reader", "on", ">r", "~es:*", "+@read", "+@connection", "+@scripting")
    place = f"127.0.0.1:{server.port}"
    store = opening(f"redis://journal:p%40ss%2Fword@{place}")
    tale = await begin(store, "j", records=3)
    await store.blob_put(tale.journal, "d", b"v")
    assert await store.journals() == ["j"]
    report = await store.durability()
    assert report.level is None, "CONFIG is not among the rights"
    assert "appendfsync cannot be read" in judge(report, None)[0]
    assert judge(report, "EveryWrite") == []
    await store.sweep(tale.journal)
    with pytest.raises(BadStore, match="lacks a right"):
        await begin(opening(f"redis://reader:r@{place}"), "j2")


async def test_wrong_and_missing_passwords(server: servers.Server, opening: Opener) -> None:
    """The message says what to do, and never shows a password."""
    server.cli("CONFIG", "SET", "requirepass", "right")
    place = f"127.0.0.1:{server.port}"
    await opening(f"redis://:right@{place}").meta(NONE)
    for url in (f"redis://:wr0ng@{place}", f"redis://jane:wr0ng@{place}"):
        with pytest.raises(BadStore, match="refused user or password") as refused:
            await opening(url).meta(NONE)
        assert "wr0ng" not in str(refused.value)
    with pytest.raises(BadStore, match="put user and password in its URL"):
        await opening(f"redis://{place}").meta(NONE)


async def test_bad_database_and_wrong_types(server: servers.Server, opening: Opener) -> None:
    with pytest.raises(BadStore, match="database number"):
        await opening(f"redis://127.0.0.1:{server.port}/99").meta(NONE)
    store = opening(f"redis://127.0.0.1:{server.port}/3")
    tale = await begin(store, "j", records=1)
    server.cli("SELECT", "3")
    assert await opening(server.url).meta(tale.journal) is None, "another database"
    key = store.keys(JournalId("k")).meta  # type: ignore[attr-defined]  # a RedisStore
    server.cli("SET", key, "a string")
    with pytest.raises(BadStore, match="something else writes"):
        await opening(server.url).meta(JournalId("k"))


async def test_nobody_listens(opening: Opener) -> None:
    with pytest.raises(JournalUnavailable, match=r"127\.0\.0\.1"):
        await opening(f"redis://127.0.0.1:{servers.free_port()}").meta(NONE)


# --- cluster, sentinel -----------------------------------------------------------------------------------------------


async def test_cluster_and_its_wrong_urls(opening: Opener) -> None:
    """C50. The suite itself also runs on a cluster; here: from every node, durability of all nodes, wrong URLs."""
    with topologies.cluster("valkey-8") as nodes:
        for n, node in enumerate(nodes):
            store = opening(f"redis+cluster://127.0.0.1:{node.port}")
            for m in range(4):
                tale = await begin(store, f"j{n}{m}", records=3)
                assert (await verify(store, tale.chain, tale.journal)).whole
        assert len(await store.journals()) == 12
        report = await store.durability()
        assert (report.level, judge(report, None)) == ("EveryWrite", [])
        nodes[1].cli("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        [problem] = (await store.durability()).problems
        assert str(nodes[1].port) in problem
        with pytest.raises(BadStore, match=r"redis\+cluster://"):
            await _begin_four(opening(f"redis://127.0.0.1:{nodes[0].port}"))
    with (
        servers.running("valkey-8", tcp=True) as single,
        pytest.raises(BadStore, match="no cluster: write redis://"),
    ):
        await opening(f"redis+cluster://127.0.0.1:{single.port}").meta(NONE)


async def _begin_four(store: Store) -> None:
    """Of four journals, some lie on another node."""
    for n in range(4):
        await begin(store, f"k{n}")


async def test_cluster_loses_and_regains_a_node(opening: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends are repeated until the slot's node is back; nothing is lost or written twice."""
    monkeypatch.setattr(redis_client, "REPLY_TIMEOUT_S", 2.0)
    with topologies.cluster("redis-7.0") as nodes:
        store = opening(f"redis+cluster://127.0.0.1:{nodes[0].port}")
        tales = [await begin(store, f"j{n}", records=2) for n in range(6)]
        writers = [
            JournalWriter(store, t.journal, t.attempt, t.owner, t.chain, head=t.head, clock=SystemClock())
            for t in tales
        ]
        nodes[1].kill()
        for writer in writers:
            for _ in range(3):
                writer.put(lambda seq: Fired(seq=seq, attempt=1, time=0))
            writer.flush_soon()
        nodes[1].run()
        for writer, tale in zip(writers, tales, strict=True):
            await writer.drain()
            report = await verify(store, tale.chain, tale.journal)
            assert (report.verdict, report.head) == ("whole", writer.confirmed)
            assert report.head.seq == 5


async def test_sentinel_failover(opening: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer waits out a failover and goes on with the new primary, whose journal is whole up to the anchor."""
    monkeypatch.setattr(redis_client, "REPLY_TIMEOUT_S", 2.0)
    with topologies.sentinels("redis-7.0") as watched:
        store = opening(watched.url)
        tale = await begin(store, "j", records=5)
        topologies.wait_for(
            lambda: b"seq\r\n$1\r\n5" in watched.replica.cli("HGETALL", store.keys(tale.journal).meta),  # type: ignore[attr-defined]  # a RedisStore
            "the replica to have all records",
        )
        report = await store.durability()
        assert report.replicated
        assert judge(report, "Replicated") == []
        before = report.run_id
        watched.primary.kill()
        writer = JournalWriter(
            store, tale.journal, tale.attempt, tale.owner, tale.chain, head=tale.head, clock=SystemClock()
        )
        writer.put(lambda seq: Fired(seq=seq, attempt=1, time=0))
        await writer.drain()
        whole = await verify(store, tale.chain, tale.journal, anchor=tale.head)
        assert (whole.verdict, whole.head) == ("whole", writer.confirmed)
        report = await store.durability()
        assert report.run_id != before, "another server process answers, and was checked again"
        assert not report.replicated
        assert "no replica is connected" in judge(report, "Replicated")[0]


async def test_replica_is_refused(opening: Opener) -> None:
    with topologies.sentinels("redis-7.0", count=1) as watched:
        store = opening(watched.replica.url)
        [problem] = (await store.durability()).problems
        assert "the server is a replica" in problem
        assert judge(await store.durability(), "None") == [problem]
        with pytest.raises(JournalUnavailable, match="replica"):
            await begin(store, "j")


# --- durability ------------------------------------------------------------------------------------------------------


async def test_each_eviction_policy(server: servers.Server, opening: Opener) -> None:
    """C51: a server that evicts is refused whatever was declared; the cure is named. Noticed while the server runs."""
    store = opening(server.url)
    assert judge(await store.durability(), None) == []
    for policy in (
        *("allkeys-lru", "allkeys-lfu", "allkeys-random"),
        *("volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl"),
    ):
        server.cli("CONFIG", "SET", "maxmemory-policy", policy)
        for declared in (None, "EveryWrite", "EverySecond", "Replicated", "None"):
            assert f"maxmemory-policy is {policy}" in judge(await store.durability(), declared)[0]
            assert "Set it to noeviction" in judge(await store.durability(), declared)[0]
    server.cli("CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert judge(await store.durability(), None) == []


@pytest.mark.parametrize(
    ("options", "level", "fine_with"),
    [
        (("--appendonly", "yes", "--appendfsync", "always"), "EveryWrite", {None, "EveryWrite", "EverySecond", "None"}),
        (("--appendonly", "yes", "--appendfsync", "everysec"), "EverySecond", {"EverySecond", "None"}),
        (("--appendonly", "yes", "--appendfsync", "no"), "None", {"None"}),
        (("--appendonly", "no"), "None", {"None"}),
    ],
)
@pytest.mark.parametrize("name", ["redis-7.0", "valkey-9"])
async def test_levels(
    name: str, options: tuple[str, ...], level: str, fine_with: set[str | None], opening: Opener
) -> None:
    """C52: what a confirmed write is worth is read from the server, and less than declared is refused with the line to add."""
    with servers.running(name, *options, durable=False) as one:
        report = await opening(one.url).durability()
        assert report.level == level
        assert report.server.startswith("valkey 9." if name == "valkey-9" else "redis 7.0.")
        for declared in (None, "EveryWrite", "EverySecond", "None"):
            assert (judge(report, declared) == []) is (declared in fine_with), declared
        if level == "EverySecond":
            assert judge(report, None) == [
                "appendfsync is everysec: a power loss can lose the last second. Set it to always, or "
                "journal.durability: EverySecond"
            ]
        if level == "None":
            assert "or journal.durability: None" in judge(report, None)[0]


async def test_blocked_config_must_be_declared(opening: Opener) -> None:
    """As on managed services."""
    with servers.running("redis-7.0", "--rename-command", "CONFIG", "") as one:
        report = await opening(one.url).durability()
        assert report.level is None
        assert "journal.durability: EveryWrite, EverySecond, Replicated or None" in judge(report, None)[0]
        for declared in ("EveryWrite", "EverySecond", "None"):
            assert judge(report, declared) == []
        assert "is unknown" in judge(report, "Always")[0]


async def test_durability_is_asked_again_after_a_restart(opening: Opener) -> None:
    with servers.running("redis-7.0") as one:
        store = opening(one.url)
        first = await store.durability()
        one.cli("CONFIG", "SET", "appendfsync", "everysec")
        assert (await store.durability()).level == "EveryWrite", "CONFIG is not asked each time"
        one.kill()
        one.options = ("--appendonly", "yes", "--appendfsync", "everysec")
        one.run()
        with pytest.raises(JournalUnavailable):
            await store.durability()  # the connection was lost with the server; the next call makes another
        second = await store.durability()
        assert (second.level, second.run_id == first.run_id) == ("EverySecond", False)


async def test_durability_of_a_file(tmp_path: Path) -> None:
    store = open_store(f"sqlite://{tmp_path}/j.db", installation=INSTALLATION)
    report = await store.durability()
    assert (report.level, judge(report, None)) == ("EveryWrite", [])
    assert report.server.startswith("sqlite 3.")
