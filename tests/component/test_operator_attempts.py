"""The operator's attempts, seen from outside: one live pod, a new one after each loss, none while parked or after the end."""

from collections.abc import AsyncIterator

import pytest

from everstep.contract import StopReason, Termination
from everstep.errors import Fenced
from everstep.ids import Attempt, JournalId, Seq
from tests.component.mock_cluster.agent import now_ms
from tests.component.mock_cluster.rig import NAMESPACE, Rig, rig


@pytest.fixture
async def bench() -> AsyncIterator[Rig]:
    async with rig() as made:
        yield made


def losses(bench: Rig, name: str) -> dict[str, int]:
    """What the status counts, zeros left out."""
    return {k: v for k, v in (bench.status(name).get("losses") or {}).items() if v}


async def test_a_run_gets_its_first_attempt_and_succeeds(bench: Rig) -> None:
    await bench.operator().start()
    await bench.apply("hello")
    agent = await bench.agent("hello-1")
    await agent.step("0")
    await agent.finish("the answer")
    await bench.until(lambda: bench.condition("hello", "Finished").startswith("True"), "the run is finished")
    assert bench.condition("hello", "Succeeded").startswith("True")
    assert bench.server.objects.made == ["hello-1"]
    status = bench.status("hello")
    assert status["checkpoint"]["seq"] == 4, "the last head is anchored"
    assert "the answer" not in str(status), "a result is never in the status"


async def test_an_evicted_pod_is_replaced_uncharged_and_can_write_no_more(bench: Rig) -> None:
    """E1, E7, C26."""
    await bench.operator().start()
    await bench.apply("hello")
    first = await bench.agent("hello-1")
    await first.step("0")
    await bench.evict("hello-1")
    second = await bench.agent("hello-2")
    with pytest.raises(Fenced):
        await first.step("1")
    await second.step("1")
    await second.finish()
    await bench.until(lambda: bench.condition("hello", "Succeeded").startswith("True"), "the run succeeds")
    assert bench.server.objects.made == ["hello-1", "hello-2"]
    ended = {a["number"]: a["class"] for a in bench.status("hello")["attempts"]}
    assert ended == {1: "Disruption", 2: "Finished"}


async def test_a_crash_is_charged_and_a_new_attempt_follows(bench: Rig) -> None:
    """C24, C32: a Failed pod is a lost pod; the cause is kept."""
    await bench.operator().start()
    await bench.apply("hello", restarts={"application": {"max": 2, "backoffSeconds": 1, "backoffMaxSeconds": 1}})
    first = await bench.agent("hello-1")
    await first.exit(1)
    second = await bench.agent("hello-2")
    assert second.predecessor == "dead", "a terminal status by the kubelet proves the old process dead"
    assert losses(bench, "hello")["application"] == 1
    await second.exit(1)
    await (await bench.agent("hello-3")).exit(1)
    await bench.until(lambda: bench.condition("hello", "Finished").startswith("True"), "the budget is used up")
    assert bench.condition("hello", "Succeeded") == "False/RestartsExhausted"
    assert bench.server.objects.made == ["hello-1", "hello-2", "hello-3"]


async def test_what_a_person_changes_counts_whatever_characters_the_status_holds(bench: Rig) -> None:
    """The status is written only over the one that was read, compared as the server's bytes: `<`, `&` and "…" are no others."""
    await bench.operator().start()
    await bench.apply("hello")
    first = await bench.agent("hello-1")
    await first.step("0")
    said = Termination(StopReason.DIVERGED, "the code calls <step a & b> … at \u2028 'é'", Attempt(1), Seq(0), "")
    await first.exit(65, message=said.to_json())
    await bench.until(lambda: bench.condition("hello", "Succeeded") == "False/Diverged", "the run is refused")
    assert "<step a & b> …" in str(bench.status("hello"))
    run = dict(bench.run("hello"))
    run["spec"] = {**run["spec"], "agent": {**run["spec"]["agent"], "image": "other:1"}}
    run["metadata"] = {**run["metadata"], "generation": run["metadata"]["generation"] + 1}
    await bench.server.objects.replace("agentruns", run)
    await (await bench.agent("hello-2")).finish()
    await bench.until(lambda: bench.condition("hello", "Succeeded").startswith("True"), "the run goes on")


async def test_exit_zero_without_a_finished_record_is_no_success(bench: Rig) -> None:
    """C27."""
    await bench.operator().start()
    await bench.apply("hello", restarts={"application": {"max": 3, "backoffSeconds": 1, "backoffMaxSeconds": 1}})
    first = await bench.agent("hello-1")
    await first.step("0")
    await first.exit(0)
    second = await bench.agent("hello-2")
    await second.finish()
    await bench.until(lambda: bench.condition("hello", "Succeeded").startswith("True"), "the second one finishes it")


async def test_finished_wins_although_its_pod_was_lost_right_after(bench: Rig) -> None:
    """The record is the success, whatever the pod's end looks like."""
    operator = bench.operator()
    await operator.start()
    await bench.apply("hello")
    first = await bench.agent("hello-1")
    await operator.kill()
    await first.finish()
    await bench.evict("hello-1")
    await operator.start()
    await bench.until(lambda: bench.condition("hello", "Succeeded").startswith("True"), "the run succeeds")
    assert bench.server.objects.made == ["hello-1"]


async def test_parked_costs_nothing_and_wakes_by_itself(bench: Rig) -> None:
    """Promise 6; C31."""
    await bench.operator().start()
    await bench.apply("hello")
    first = await bench.agent("hello-1")
    due = now_ms() + 4000
    await first.park_timer(due)
    await first.exit(0)
    await bench.until(lambda: bench.condition("hello", "Parked").startswith("True"), "the run is parked")
    await bench.until(lambda: bench.pod("hello-1") is None, "no pod while it waits")
    second = await bench.agent("hello-2")
    assert now_ms() >= due
    await second.finish()
    await bench.until(lambda: bench.condition("hello", "Succeeded").startswith("True"), "the run succeeds")


async def test_a_persons_answer_reaches_the_run_once(bench: Rig) -> None:
    """E29, C42: asked, answered, applied."""
    operator = bench.operator()
    await operator.start()
    run = await bench.apply("hello")
    first = await bench.agent("hello-1")
    await first.park_uncertain("3")
    await first.exit(0)
    questions = bench.server.objects
    found = await bench.until(lambda: questions.find("humanrequests", NAMESPACE, ""), "a question is asked")
    question = found[0]
    assert question["spec"]["runRef"] == {"name": "hello", "uid": run["metadata"]["uid"]}
    await bench.until(lambda: bench.condition("hello", "Parked").startswith("True"), "the run is parked")
    await operator.kill()
    question["spec"]["response"] = {
        "decision": "again", "by": "jane", "argumentsDigest": question["spec"]["argumentsDigest"],
    }  # fmt: skip
    await questions.replace("humanrequests", question)
    await operator.start()
    second = await bench.agent("hello-2")
    inbox = await bench.store.inbox_read(JournalId(run["metadata"]["uid"]))
    assert [b'"again"' in entry.body for entry in inbox] == [True]
    await second.finish()
    await bench.until(lambda: bench.condition("hello", "Succeeded").startswith("True"), "the run succeeds")
    assert bench.server.objects.made == ["hello-1", "hello-2"]


@pytest.mark.parametrize("operator_up", [True, False])
async def test_a_deleted_run_is_fenced_and_swept_and_its_name_starts_anew(bench: Rig, operator_up: bool) -> None:
    """E25: the operator up, and down while it happens."""
    operator = bench.operator(
        EVERSTEP_SWEEP_EVERY_SECONDS="1", EVERSTEP_SWEEP_AFTER_SECONDS="2", EVERSTEP_RESYNC_SECONDS="1"
    )
    await operator.start()
    old = JournalId((await bench.apply("hello"))["metadata"]["uid"])
    first = await bench.agent("hello-1")
    await first.step("0")
    if not operator_up:
        await operator.kill()
    await bench.server.objects.delete("agentruns", NAMESPACE, "hello", {})
    new = JournalId((await bench.apply("hello"))["metadata"]["uid"])
    if not operator_up:
        await operator.start()

    async def fenced() -> bool:
        meta = await bench.store.meta(old)
        return meta is None or meta.attempt > 1

    await bench.until(fenced, "the old journal is fenced")
    with pytest.raises((Fenced, AssertionError)):
        await first.step("1")

    async def swept() -> bool:
        return old not in await bench.store.journals()

    await bench.until(swept, "the old journal is swept")
    second = await bench.agent("hello-1")
    assert second.journal == new
    assert second.head is not None
    assert second.head.seq == 1, "the new run's journal began empty"
    await second.finish()
    await bench.until(lambda: bench.condition("hello", "Succeeded").startswith("True"), "the new run succeeds")
