"""The Redis that comes with the chart: its rendered redis.conf and the operator's ACL file on every server version.

Covers C43 (nobody gets more than he needs) and the store's own check: this very configuration keeps every write (E27, E28, C51).
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError

from everstep.clock import SystemClock
from everstep.ids import Attempt, InboxId, JournalId, Owner, Seq
from everstep.journal import durability
from everstep.journal.chain import Chain
from everstep.journal.open import open_store
from everstep.journal.records import Result, encode
from everstep.journal.store import AppendAnswer, ClaimAnswer, FenceAnswer, Head, InboxEntry, Sealed, Store
from everstep_operator.redis_auth import KEY_ACL, KEY_ADMIN_PASSWORD, KEY_AGENT_URL, KEY_URL, Place, secret_data
from tests.chart.rendering import objects, only
from tests.support import servers

INSTALLATION = "acl-test"
JOURNAL = JournalId("6f0e7a52-6c1f-4a43-9d56-0f3f1a3b7c11")
OWNER = Owner("pod:nonce")


@dataclass
class Included:
    """A server as the chart configures it."""

    server: servers.Server
    secret: dict[str, str]

    def url(self, key: str) -> str:
        """Operator's or agents' URL, with the port that is free here."""
        return self.secret[key].replace(":6379/", f":{self.server.port}/")

    def client(self, key: str) -> "Redis":
        """A plain client of that user."""
        return Redis.from_url(self.url(key), protocol=2)


@pytest.fixture(params=servers.NAMES)
def included(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Included]:
    """Started from the chart's redis.conf; only folder, port and path of the ACL file are the test's."""
    secret = secret_data(Place("127.0.0.1", 6379, INSTALLATION), SystemClock())
    acl = tmp_path / "users.acl"
    acl.write_text(secret[KEY_ACL], encoding="utf-8")
    conf = tmp_path / "redis.conf"
    text = only(objects(), "ConfigMap")["data"]["redis.conf"]
    folder = Path(tempfile.mkdtemp(prefix="everstep-acl-"))
    for theirs, ours in (("aclfile /etc/redis-acl/users.acl", f"aclfile {acl}"), ("dir /data", f"dir {folder}")):
        assert theirs in text
        text = text.replace(theirs, ours)
    conf.write_text(text, encoding="utf-8")
    port = servers.free_port()
    words = [*servers.require(request.param), str(conf)]
    server = servers.Server(request.param, folder, port, (), words)
    try:
        server.run()
        yield Included(server, secret)
    finally:
        server.end()


def opened(included: Included, key: str) -> Store:
    return open_store(included.url(key), installation=INSTALLATION)


async def test_the_store_finds_nothing_to_complain_about(included: Included) -> None:
    """The operator's user may read INFO and appendfsync, and what it reads is EveryWrite."""
    store = opened(included, KEY_URL)
    report = await store.durability()
    await store.aclose()
    assert report.level == durability.Level.EVERY_WRITE
    assert durability.judge(report, None) == []


async def test_operator_and_agent_can_do_their_work(included: Included) -> None:
    """Each store call by the user that makes it."""
    operator, agent = opened(included, KEY_URL), opened(included, KEY_AGENT_URL)
    chain = Chain(JOURNAL, b"\x07" * 32)
    genesis = Head(Seq(0), chain.genesis())
    assert (await operator.fence(JOURNAL, Attempt(1), genesis, {"name": "x"})).answer is FenceAnswer.OK
    assert (await agent.claim(JOURNAL, Attempt(1), OWNER)).answer is ClaimAnswer.OK
    raw = encode(Result(seq=1, key="0", name="s", attempt=1, time=1, value=1))
    sealed = Sealed(Seq(1), raw, genesis.hash, chain.link(genesis.hash, raw))
    assert (await agent.append(JOURNAL, Attempt(1), OWNER, genesis, [sealed])).answer is AppendAnswer.OK
    assert [s.record async for s in agent.read(JOURNAL)] == [raw]
    assert (await agent.meta(JOURNAL)) is not None
    await agent.blob_put(JOURNAL, "d" * 64, b"blob")
    assert await agent.blob_get(JOURNAL, "d" * 64) == b"blob"
    await agent.durability()
    entry = InboxEntry(InboxId("cancel-1"), b"{}", "mac")
    await operator.inbox_add(JOURNAL, entry)
    assert [e.id for e in await agent.inbox_read(JOURNAL)] == ["cancel-1"]
    await agent.report(JOURNAL, Attempt(1), OWNER, b"{}")
    assert await operator.journals() == [JOURNAL]
    await operator.set_fields(JOURNAL, {"deletedAt": "now"})
    await operator.sweep(JOURNAL)
    assert await operator.journals() == []
    await operator.aclose()
    await agent.aclose()


REFUSED_TO_AGENTS = [
    ("SCAN", "0"),
    ("KEYS", "*"),
    ("RANDOMKEY",),
    ("DBSIZE",),
    ("DEL", f"es:{INSTALLATION}:x"),
    ("UNLINK", f"es:{INSTALLATION}:x"),
    ("EXPIRE", f"es:{INSTALLATION}:x", "1"),
    ("RENAME", f"es:{INSTALLATION}:x", f"es:{INSTALLATION}:y"),
    ("GET", "es:another:x"),
    ("EVAL", "return redis.call('GET', 'es:another:x')", "0"),
    ("FLUSHALL",),
    ("FLUSHDB",),
    ("CONFIG", "GET", "*"),
    ("CONFIG", "SET", "maxmemory", "1"),
    ("SHUTDOWN",),
    ("CLIENT", "PAUSE", "1"),
    ("CLIENT", "KILL", "ID", "1"),
    ("ACL", "LIST"),
    ("MONITOR",),
    ("REPLICAOF", "127.0.0.1", "1"),
    ("BGREWRITEAOF",),
    ("PUBLISH", "x", "y"),
]


def test_agents_cannot_look_for_or_harm_other_runs(included: Included) -> None:
    """No listing, no deletion, no foreign keys, no administration."""
    with included.client(KEY_AGENT_URL) as client:
        for command in REFUSED_TO_AGENTS:
            # Refused inside a script, the error is a general one.
            with pytest.raises(ResponseError, match=r"permission|can't access"):
                client.execute_command(*command)


def test_the_operator_cannot_administer_the_server(included: Included) -> None:
    """It reads what the durability check needs; another installation's keys are not its own."""
    with included.client(KEY_URL) as client:
        assert durability.appendfsync_of(client.config_get("appendfsync")) == "always"
        for command in [
            ("CONFIG", "SET", "maxmemory", "1"),
            ("FLUSHALL",),
            ("SHUTDOWN",),
            ("GET", "es:another:x"),
            ("ACL", "LIST"),
        ]:
            with pytest.raises(NoPermissionError):
                client.execute_command(*command)


async def test_a_killed_server_comes_back_with_every_step(included: Included) -> None:
    """E27: loading the append-only file, a server acts as user `default`; without rights it would drop every transaction."""
    chain = Chain(JOURNAL, b"k" * 32)
    head = Head(Seq(0), chain.genesis())
    store = opened(included, KEY_URL)
    assert (await store.fence(JOURNAL, Attempt(1), head, {})).answer is FenceAnswer.OK
    assert (await store.claim(JOURNAL, Attempt(1), OWNER)).answer is ClaimAnswer.OK
    for seq in range(1, 31):
        record = encode(Result(seq=seq, key=str(seq), name="s", attempt=1, time=0, value="x"))
        sealed = Sealed(Seq(seq), record, head.hash, chain.link(head.hash, record))
        assert (await store.append(JOURNAL, Attempt(1), OWNER, head, [sealed])).answer is AppendAnswer.OK
        head = Head(sealed.seq, sealed.hash)
    await store.aclose()
    included.server.kill()
    included.server.run()
    store = opened(included, KEY_URL)
    meta = await store.meta(JOURNAL)
    assert meta is not None
    assert meta.head == head
    assert [stored.seq async for stored in store.read(JOURNAL)] == list(range(1, 31))
    await store.aclose()


async def test_a_default_user_without_rights_is_refused(included: Included) -> None:
    """The usual `user default off` of a hand-written ACL file: the check says what a restart would do, and the line to write."""
    with Redis(
        port=included.server.port, username="admin", password=included.secret[KEY_ADMIN_PASSWORD], protocol=2
    ) as admin:
        admin.execute_command("ACL", "SETUSER", "default", "reset")
    store = opened(included, KEY_URL)
    problems = durability.judge(await store.durability(), None)
    await store.aclose()
    if included.server.name == "valkey-9":
        assert problems == [], "Valkey 9 checks no rights while it loads"
    else:
        assert any("user default off resetpass ~* &* +@all" in problem for problem in problems)


def test_nobody_is_the_default_user(included: Included) -> None:
    """It has every right, for the server's own sake, and no way in."""
    with Redis(port=included.server.port, protocol=2) as client, pytest.raises(AuthenticationError):
        client.execute_command("PING")
    client = Redis(port=included.server.port, username="default", password="", protocol=2)
    with client, pytest.raises((AuthenticationError, ResponseError)):
        client.execute_command("PING")


def test_the_probe_may_only_ping(included: Included) -> None:
    """No password, and nothing to see."""
    with Redis(port=included.server.port, username="probe", password="none", protocol=2) as client:
        assert client.execute_command("PING") in (b"PONG", True)
        for command in [("INFO",), ("GET", "x"), ("SCAN", "0"), ("CONFIG", "GET", "*"), ("ACL", "WHOAMI")]:
            with pytest.raises(NoPermissionError):
                client.execute_command(*command)


def test_people_have_an_administrator(included: Included) -> None:
    """User `admin`, whose password no pod gets."""
    with Redis(
        port=included.server.port, username="admin", password=included.secret[KEY_ADMIN_PASSWORD], protocol=2
    ) as client:
        assert client.config_set("maxmemory", "100mb")
        assert client.dbsize() == 0
