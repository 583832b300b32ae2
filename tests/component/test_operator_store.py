"""The operator when the journal store makes trouble, and what it leaves alone: runs wait, nothing is lost or taken."""

import asyncio
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest

from everstep.errors import Fenced
from everstep.ids import Attempt, JournalId, Seq
from everstep.journal.chain import Chain
from everstep.journal.store import Head
from tests.component.mock_cluster.rig import NAMESPACE, Rig, rig
from tests.support.servers import free_port


@pytest.fixture
async def bench() -> AsyncIterator[Rig]:
    async with rig() as made:
        yield made


async def succeeds(bench: Rig, name: str) -> None:
    await bench.until(lambda: bench.condition(name, "Succeeded").startswith("True"), f"{name} succeeds", 30)


async def test_a_stalled_store_is_waited_for(bench: Rig) -> None:
    """E26: no verdict, no new attempt while the store is silent."""
    await bench.operator(EVERSTEP_STORE_TIMEOUT_SECONDS="1").start()
    await bench.apply("hello")
    agent = await bench.agent("hello-1")
    await agent.step("0")
    bench.redis.pause()
    await agent.exit(1)
    await bench.until(lambda: bench.condition("hello", "JournalHealthy").startswith("False"), "the condition tells")
    assert bench.server.objects.made == ["hello-1"], "without a fence there is no new attempt"
    bench.redis.resume()
    second = await bench.agent("hello-2")
    await bench.until(lambda: bench.condition("hello", "JournalHealthy").startswith("True"), "healthy again")
    await second.finish()
    await succeeds(bench, "hello")


async def test_a_store_that_was_killed_comes_back_with_everything(bench: Rig) -> None:
    """E27a: fsync on every write, the volume kept."""
    await bench.operator(EVERSTEP_STORE_TIMEOUT_SECONDS="1").start()
    await bench.apply("hello")
    agent = await bench.agent("hello-1")
    for key in range(5):
        await agent.step(str(key))
    bench.redis.kill()
    await asyncio.sleep(2)
    bench.redis.run()
    await agent.exit(69, message="")
    second = await bench.agent("hello-2")
    assert second.head is not None
    assert second.head.seq == 11
    await second.finish()
    await succeeds(bench, "hello")
    assert (bench.status("hello").get("losses") or {}).get("application", 0) == 0, "an unreachable store is not charged"


async def test_a_store_that_lost_its_data_stops_the_run(bench: Rig) -> None:
    """E27b: head behind the anchor, no pod until a person acts."""
    operator = bench.operator(EVERSTEP_ANCHOR_SECONDS="1")
    await operator.start()
    await bench.apply("hello")
    agent = await bench.agent("hello-1")
    await agent.step("0")
    await bench.until(lambda: (bench.status("hello").get("checkpoint") or {}).get("seq", 0) >= 3, "it is anchored")
    bench.redis.cli("FLUSHALL")
    await agent.exit(1)
    await bench.until(lambda: "JournalLost" in bench.condition("hello", "JournalVerified"), "the loss is seen", 30)
    await asyncio.sleep(2)
    assert bench.server.objects.made == ["hello-1"]


async def test_a_weak_store_starts_no_run_until_it_is_strong(bench: Rig) -> None:
    """The store is checked, not assumed; the message says which line to change."""
    bench.redis.cli("CONFIG", "SET", "appendfsync", "everysec")
    await bench.operator(EVERSTEP_DURABILITY_CHECK_SECONDS="1").start()
    await bench.apply("hello")

    def told() -> bool:
        healthy = [c for c in bench.status("hello").get("conditions") or [] if c["type"] == "JournalHealthy"]
        return any(c["status"] == "False" and "everysec" in c["message"] for c in healthy)

    await bench.until(told, "the condition tells", 30)
    assert bench.server.objects.made == []


async def test_a_goal_that_is_not_there_yet_is_waited_for(bench: Rig) -> None:
    await bench.operator().start()
    await bench.apply("hello", goal=None, goalFrom={"configMapKeyRef": {"name": "goals", "key": "first"}})
    await bench.until(lambda: bench.status("hello").get("reason") == "GoalNotFound", "the status names it", 30)
    await bench.server.objects.create(
        "configmaps", NAMESPACE, {"metadata": {"name": "goals"}, "data": {"first": "do the other thing"}}
    )
    run = dict(bench.run("hello"))
    run["metadata"] = {**run["metadata"], "annotations": {"nudge": "1"}}
    await bench.server.objects.replace("agentruns", run)
    pod = await bench.until(lambda: bench.pod("hello-1"), "the run starts", 45)
    assert "do the other thing" not in str(pod), "a goal travels in the Secret"
    await (await bench.agent("hello-1")).finish()
    await succeeds(bench, "hello")


async def test_another_clusters_journal_is_neither_fenced_nor_swept(bench: Rig) -> None:
    """Two clusters may share a Redis and even the installation's name; the key tells whose a journal is."""
    foreign = JournalId("11111111-2222-3333-4444-555555555555")
    genesis = Head(Seq(0), Chain(foreign, b"\x09" * 32).genesis())
    await bench.store.fence(foreign, Attempt(1), genesis, {"namespace": NAMESPACE, "name": "theirs", "keyId": "k1"})
    await bench.operator(
        EVERSTEP_SWEEP_EVERY_SECONDS="1", EVERSTEP_SWEEP_AFTER_SECONDS="1", EVERSTEP_RESYNC_SECONDS="1"
    ).start()
    await bench.apply("ours")
    ours = await bench.agent("ours-1")
    await bench.server.objects.delete("agentruns", NAMESPACE, "ours", {})

    async def swept() -> bool:
        return ours.journal not in await bench.store.journals()

    await bench.until(swept, "our own journal is swept", 30)
    meta = await bench.store.meta(foreign)
    assert meta is not None
    assert meta.attempt == 1
    assert "deletedAt" not in meta.fields


async def test_a_deleted_run_is_not_swept_before_its_time(bench: Rig) -> None:
    """Time to notice a mistaken deletion."""
    await bench.operator(EVERSTEP_SWEEP_EVERY_SECONDS="1", EVERSTEP_SWEEP_AFTER_SECONDS="3600").start()
    await bench.apply("hello")
    agent = await bench.agent("hello-1")
    await agent.step("0")
    await bench.server.objects.delete("agentruns", NAMESPACE, "hello", {})

    async def marked() -> bool:
        meta = await bench.store.meta(agent.journal)
        assert meta is not None
        return "deletedAt" in meta.fields

    await bench.until(marked, "deletedAt is recorded")
    with pytest.raises(Fenced):
        await agent.step("1")
    await asyncio.sleep(3)
    assert agent.journal in await bench.store.journals()


async def test_a_thousand_runs_are_seen_quickly_and_cheaply(bench: Rig) -> None:
    """E30 in small: a restart with a thousand resting runs; the bound is a tenth of the one for ten thousand on real machines."""
    count, port = 1000, free_port()
    operator = bench.operator(
        EVERSTEP_METRICS_PORT=str(port),
        EVERSTEP_API_QPS="500",
        EVERSTEP_API_BURST="1000",
        EVERSTEP_RESYNC_SECONDS="300",
    )
    for n in range(count):
        await bench.apply(f"run{n}", desiredState="Suspended")
    await operator.start()

    def resting() -> bool:
        return all(bench.status(f"run{n}").get("summary") == "Suspended" for n in range(count))

    await bench.until(resting, "all are at rest", 60)
    await operator.kill()
    bench.server.calls.clear()
    began = time.monotonic()
    await operator.start()

    async def seen() -> bool:
        try:
            async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                text = await answer.text()
        except aiohttp.ClientError:
            return False
        return f'everstep_runs{{summary="Suspended"}} {count}.0' in text

    await bench.until(seen, "all were looked at", 60)
    print(f"{count} runs seen {time.monotonic() - began:.1f} s after the start of the process")
    assert not bench.server.calls, "runs at rest cost no write"
