"""The operator when the API server, its watches, or a second operator make trouble: no run fails, no attempt gets two pods."""

import asyncio
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from everstep.errors import Fenced
from tests.component.mock_cluster.agent import Agent
from tests.component.mock_cluster.api_server import Call
from tests.component.mock_cluster.rig import NAMESPACE, Rig, rig


@pytest.fixture
async def bench() -> AsyncIterator[Rig]:
    async with rig() as made:
        yield made


async def finish(bench: Rig, name: str, attempt: int) -> None:
    """Play the rest of a run."""
    agent = await bench.agent(f"{name}-{attempt}")
    await agent.step("0")
    await agent.finish()
    await bench.until(lambda: bench.condition(name, "Succeeded").startswith("True"), f"{name} succeeds", 30)


async def test_stale_lists_fail_no_run(bench: Rig) -> None:
    """C29: no verdict without a live GET."""
    await bench.operator(EVERSTEP_RESYNC_SECONDS="1").start()
    await bench.until(lambda: bench.server.requests["watch agentruns"], "the operator is up", 30)
    bench.server.freeze_lists()  # an empty cluster, for ever
    await bench.apply("hello")
    agent = await bench.agent("hello-1")
    await agent.step("0")
    resyncs = bench.server.requests["list agentruns"]
    await bench.until(lambda: bench.server.requests["list agentruns"] > resyncs + 2, "more resyncs see nothing")
    await agent.step("1")
    await agent.finish()
    await bench.until(lambda: bench.condition("hello", "Succeeded").startswith("True"), "the run succeeds")
    assert bench.server.objects.made == ["hello-1"]


@pytest.mark.parametrize("status", [429, 500, 503, 403, "silence"])
async def test_an_api_server_in_trouble_costs_time_only(bench: Rig, status: int | str) -> None:
    """E23: no exit, no duplicate pod; the agent notices nothing."""
    operator = bench.operator()
    await operator.start()
    await bench.apply("hello")
    agent = await bench.agent("hello-1")
    if status == "silence":
        bench.server.hang = lambda call: True
    else:
        headers = {"Retry-After": "2"} if status == 429 else {}
        bench.server.trouble = lambda call: web.json_response(
            {"kind": "Status", "code": status, "message": "trouble"}, status=int(status), headers=headers
        )
    bench.server.cut_watches(forget=True)
    for key in range(3):
        await agent.step(str(key))
        await asyncio.sleep(1)
    await agent.exit(1)
    await asyncio.sleep(1)
    assert operator.process is not None
    assert operator.process.returncode is None, operator.said()
    bench.server.hang = lambda call: False
    bench.server.trouble = lambda call: None
    second = await bench.agent("hello-2")
    with pytest.raises(Fenced):
        await agent.step("7")
    await second.finish()
    await bench.until(lambda: bench.condition("hello", "Succeeded").startswith("True"), "the run succeeds", 30)
    assert bench.server.objects.made == ["hello-1", "hello-2"]


async def test_retry_after_is_honoured_for_every_write(bench: Rig) -> None:
    """E23: while the server asks for a pause, no write is sent."""
    await bench.operator().start()
    await bench.until(lambda: bench.server.requests["watch agentruns"], "the operator is up", 30)
    refused: list[float] = []

    def trouble(call: Call) -> web.StreamResponse | None:
        if call.verb == "create" and call.plural == "pods" and not call.dry_run and len(refused) < 2:
            refused.append(time.monotonic())
            return web.json_response({"kind": "Status", "code": 429}, status=429, headers={"Retry-After": "3"})
        if call.verb in ("create", "patch", "delete") and refused and len(refused) < 3:
            assert time.monotonic() - refused[-1] >= 2.9, f"{call} although a pause was asked for"
        return None

    bench.server.trouble = trouble
    await bench.apply("hello")
    await finish(bench, "hello", 1)
    assert len(refused) == 2
    assert refused[1] - refused[0] >= 3
    assert bench.server.objects.made == ["hello-1"]


async def test_a_watch_gap_is_healed_by_the_resync(bench: Rig) -> None:
    """E22, C28: a pod goes while nobody is told; the old resource version gets 410."""
    await bench.operator(EVERSTEP_RESYNC_SECONDS="2", EVERSTEP_PROGRESS_SECONDS="600").start()
    await bench.apply("hello")
    first = await bench.agent("hello-1")
    await first.step("0")
    bench.server.mute_watches = True
    await bench.server.objects.delete("pods", NAMESPACE, "hello-1", {})
    bench.server.cut_watches(forget=True)
    second = await bench.agent("hello-2")
    assert second.predecessor == "", "a pod that is merely gone proves nothing about its process"
    with pytest.raises(Fenced):
        await first.step("1")
    await second.finish()
    await bench.until(lambda: bench.condition("hello", "Succeeded").startswith("True"), "the run succeeds", 30)


async def test_an_object_edited_without_end_still_moves_on(bench: Rig) -> None:
    """E24: no condition and no user field is lost, the attempt bump gets through."""
    await bench.operator().start()
    await bench.apply("hello")
    edits = 0

    async def edit() -> None:
        nonlocal edits
        while True:
            run = dict(bench.run("hello"))
            run["metadata"] = {**run["metadata"], "annotations": {"n": str(edits)}}
            await bench.server.objects.replace("agentruns", run)
            edits += 1
            await asyncio.sleep(0.01)

    editing = asyncio.create_task(edit())
    try:
        first = await bench.agent("hello-1")
        await first.step("0")
        await first.exit(1)
        await finish(bench, "hello", 2)
    finally:
        editing.cancel()
    assert edits > 50
    assert bench.run("hello")["metadata"]["annotations"]["n"] == str(edits - 1), "the user's edit is there"
    status = bench.status("hello")
    assert status["observedGeneration"] <= bench.run("hello")["metadata"]["generation"]
    kinds = [c["type"] for c in status["conditions"]]
    assert len(kinds) == len(set(kinds)) == 9


async def test_two_operators_make_one_pod_per_attempt(bench: Rig) -> None:
    """E21: no lease, both act on everything. Each time both are through before something happens; the next test is about an
    operator that is late."""
    for operator in (bench.operator(), bench.operator()):
        await operator.start()
    await bench.until(lambda: bench.server.requests["watch agentruns"] >= 2, "both are up", 30)
    names = [f"run{n}" for n in range(6)]
    for name in names:
        await bench.apply(name)
    for name in names:
        await (await bench.agent(f"{name}-1")).step("0")
    await bench.quiet()
    for name in names:
        await bench.evict(f"{name}-1")
    seconds = [await bench.agent(f"{name}-2") for name in names]
    await bench.quiet()
    for second in seconds:
        await second.step("1")
        await second.finish()
    for name in names:
        await bench.until(lambda n=name: bench.condition(n, "Succeeded").startswith("True"), f"{name} succeeds", 30)
    assert sorted(bench.server.objects.made) == sorted(f"{name}-{n}" for name in names for n in (1, 2))
    secrets = [s["metadata"]["name"] for s in bench.server.objects.find("secrets", "everstep-system", "")]
    assert len(secrets) == len(set(secrets)) == 2, "one Secret of chain keys and one that signs exports"


async def test_a_pod_made_again_by_a_late_operator_never_begins(bench: Rig) -> None:
    """E21: one operator is about to create the first pod while the other one's was created, claimed and evicted already. The name
    is free again, so the API server lets it; the attempt is not, so the journal does not."""
    await bench.operator().start()
    await bench.until(lambda: bench.server.requests["watch agentruns"], "the operator is up", 30)
    await bench.apply("hello")
    await (await bench.agent("hello-1")).step("0")
    first = bench.pod("hello-1")
    assert first is not None
    late = {**first, "metadata": {k: v for k, v in first["metadata"].items() if k not in ("uid", "resourceVersion")}}
    del late["status"]
    await bench.server.objects.delete("pods", NAMESPACE, "hello-1", {})
    again = await bench.server.objects.create("pods", NAMESPACE, late)
    assert again["metadata"]["uid"] != first["metadata"]["uid"]
    with pytest.raises(Fenced, match="claim"):
        await Agent(bench.server, bench.store, again).start()
    await Agent(bench.server, bench.store, again).exit(75)
    await finish(bench, "hello", 2)


async def test_two_installations_do_not_share_a_run(bench: Rig) -> None:
    """Both watch everything, each with journals of its own: whoever writes the first status serves the run alone."""
    ours, theirs = bench.operator(), bench.operator(EVERSTEP_INSTALLATION="other", EVERSTEP_KEY_SECRET="other-keys")
    await ours.start()
    await bench.until(lambda: bench.server.requests["watch agentruns"], "the first is up", 30)
    await bench.apply("hello")
    first = await bench.agent("hello-1")
    await theirs.start()
    await bench.until(lambda: "served by another installation" in theirs.said(), "the other sees it", 30)
    await first.step("0")
    await bench.evict("hello-1")
    await finish(bench, "hello", 2)
    assert bench.server.objects.made == ["hello-1", "hello-2"]


async def test_a_stopped_operator_that_comes_back_does_no_harm(bench: Rig) -> None:
    """E21: SIGSTOP of one operator past a replacement, then SIGCONT."""
    old, new = bench.operator(), bench.operator()
    await old.start()
    await bench.apply("hello")
    first = await bench.agent("hello-1")
    await first.step("0")
    old.signal(19)
    await new.start()
    await bench.evict("hello-1")
    second = await bench.agent("hello-2")
    await second.step("1")
    old.signal(18)
    await asyncio.sleep(3)
    await second.step("2")
    await second.finish()
    await bench.until(lambda: bench.condition("hello", "Succeeded").startswith("True"), "the run succeeds", 30)
    assert bench.server.objects.made == ["hello-1", "hello-2"]


async def test_api_writes_are_bounded(bench: Rig) -> None:
    """C61: one status write per transition; an idle or parked run costs no write at all."""
    await bench.operator(EVERSTEP_PROGRESS_SECONDS="600").start()
    await bench.apply("hello")
    agent = await bench.agent("hello-1")
    for key in range(20):
        await agent.step(str(key))
    await bench.until(lambda: bench.condition("hello", "Reconciling").startswith("False"), "the run is seen running")
    await bench.quiet()  # the Event comes after the status
    before = len(bench.server.calls)
    await asyncio.sleep(3)
    idle = bench.server.calls[before:]
    assert not idle, f"writes for a run to which nothing happened: {idle}"
    await agent.finish()
    await bench.until(lambda: bench.condition("hello", "Finished").startswith("True"), "the run is finished")
    await bench.quiet()
    patches = [c for c, status in bench.server.calls if c.plural == "agentruns" and status == 200]
    assert len(patches) <= 6, f"{len(patches)} status writes in one short life"
    assert len(bench.server.calls) <= 25, bench.server.calls


async def test_the_key_secret_is_never_overwritten(bench: Rig) -> None:
    operator = bench.operator()
    await operator.start()
    await bench.until(lambda: bench.server.objects.find("secrets", "everstep-system", ""), "the key Secret is made", 30)
    made = bench.server.objects.get("secrets", "everstep-system", "everstep-keys")["data"]
    await bench.until(
        lambda: len(bench.server.objects.find("secrets", "everstep-system", "")) == 2, "both are made", 30
    )
    signing = bench.server.objects.get("secrets", "everstep-system", "everstep-keys-signing")["data"]
    assert list(signing) == ["s1"]
    await operator.kill()
    await operator.start()
    await bench.apply("hello")
    await finish(bench, "hello", 1)
    assert bench.server.objects.get("secrets", "everstep-system", "everstep-keys")["data"] == made
    assert bench.server.objects.get("secrets", "everstep-system", "everstep-keys-signing")["data"] == signing


async def test_without_the_crd_it_says_what_to_install(bench: Rig) -> None:
    operator = bench.operator()
    bench.server.trouble = lambda call: (
        web.json_response({"kind": "Status", "code": 404, "reason": "NotFound"}, status=404)
        if call.plural == "agentruns"
        else None
    )
    await operator.start()
    assert await operator.ended(30) == 64
    assert "everstep-crds" in operator.said()


async def test_a_watcher_that_cannot_go_on_ends_the_process(bench: Rig) -> None:
    """An operator without watches must not look alive: it ends, and the kubelet starts it anew."""
    operator = bench.operator()
    await operator.start()
    await bench.until(lambda: bench.server.requests["watch humanrequests"], "the operator is up", 30)
    bench.server.trouble = lambda call: (
        web.json_response({"kind": "Status", "code": 400, "message": "no"}, status=400)
        if call.verb == "watch" and call.plural == "humanrequests"
        else None
    )
    bench.server.cut_watches()
    assert await operator.ended() == 1
    assert "watchers ended" in operator.said()


async def test_sigterm_ends_it_well_and_health_speaks(bench: Rig) -> None:
    from tests.support.servers import free_port

    health, metrics = free_port(), free_port()
    operator = bench.operator(EVERSTEP_HEALTH_PORT=str(health), EVERSTEP_METRICS_PORT=str(metrics))
    await operator.start()
    await bench.apply("hello")
    await finish(bench, "hello", 1)
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{health}/healthz") as answer:
            assert answer.status == 200, await answer.text()
        async with session.get(f"http://127.0.0.1:{health}/readyz") as answer:
            assert answer.status == 200, await answer.text()
        async with session.get(f"http://127.0.0.1:{metrics}/metrics") as answer:
            text = await answer.text()
    assert 'everstep_runs{summary="Succeeded"} 1.0' in text
    assert "everstep_attempts_total 1.0" in text
    operator.signal(15)
    assert await operator.ended() == 0, operator.said()


async def test_a_fenced_journal_is_not_forged_by_whoever_can_write_the_store(bench: Rig) -> None:
    """A `finished` record without the run's key is not believed."""
    await bench.operator().start()
    await bench.apply("hello")
    agent = await bench.agent("hello-1")
    await agent.step("0")
    forger = Agent(bench.server, bench.store, agent.pod)
    forger.head, forger.chain = agent.head, type(agent.chain)(agent.journal, b"\0" * 32)  # type: ignore[misc]  # set by start()
    await forger.finish("forged")
    await bench.until(lambda: bench.condition("hello", "JournalVerified").startswith("False"), "the forgery is seen")
    assert not bench.condition("hello", "Succeeded").startswith("True")
    assert bench.server.objects.made == ["hello-1"], "no second pod on a record that was altered"
