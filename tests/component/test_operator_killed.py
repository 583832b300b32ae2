"""E20: the operator is killed at each of its fault points; whoever starts next finishes what was begun, nothing is done twice."""

from collections.abc import AsyncIterator

import pytest

from everstep.ids import JournalId
from everstep_operator import faults
from tests.component.mock_cluster.agent import now_ms
from tests.component.mock_cluster.rig import NAMESPACE, Rig, rig

ATTEMPT_POINTS = (
    "before_observe",
    "after_observe",
    "before_bump",
    "after_bump",
    "before_fence",
    "after_fence",
    "before_create_secret",
    "after_create_secret",
    "before_create_pod",
    "after_create_pod",
    "before_status",
    "after_status",
    "before_event",
)
LOSS_POINTS = (
    "after_pod_gone",
    "before_bump:2",
    "after_bump:2",
    "before_fence:2",
    "after_fence:2",
    "before_create_pod:2",
)
PARK_POINTS = (
    "before_delete_pod",
    "after_delete_pod",
    "before_create_request",
    "after_create_request",
    "before_inbox",
    "after_inbox",
)
DELETE_POINTS = ("before_fence_deleted", "after_fence_deleted", "before_sweep")


@pytest.fixture
async def bench() -> AsyncIterator[Rig]:
    async with rig() as made:
        yield made


class Mortal:
    """An operator that dies at a point once, and is started again as the kubelet would."""

    def __init__(self, bench: Rig, point: str) -> None:
        self.bench, self.deaths = bench, 0
        self.operator = bench.operator(
            EVERSTEP_OPERATOR_FAULTS=f"{point}=kill",
            EVERSTEP_OPERATOR_FAULTS_DIR=str(bench.folder / "faults"),
            EVERSTEP_RESYNC_SECONDS="2",
            EVERSTEP_SWEEP_EVERY_SECONDS="1",
            EVERSTEP_SWEEP_AFTER_SECONDS="1",
        )

    async def revive(self) -> bool:
        """Start it if it is dead. True once it has died."""
        process = self.operator.process
        if process is not None and process.returncode is not None:
            assert process.returncode == -9, self.operator.said()
            self.deaths += 1
            await self.operator.start()
        return self.deaths > 0


async def pod_of(bench: Rig, mortal: Mortal, name: str) -> None:
    async def there() -> bool:
        await mortal.revive()
        return bench.pod(name) is not None

    await bench.until(there, f"pod {name}", 40)


async def condition(bench: Rig, mortal: Mortal, kind: str) -> None:
    async def holds() -> bool:
        await mortal.revive()
        return bench.condition("hello", kind).startswith("True")

    await bench.until(holds, kind, 40)


def test_every_point_is_exercised_here() -> None:
    exercised = {p.split(":")[0] for p in (*ATTEMPT_POINTS, *LOSS_POINTS, *PARK_POINTS, *DELETE_POINTS)}
    assert exercised == set(faults.POINTS)


@pytest.mark.parametrize("point", [*ATTEMPT_POINTS, *LOSS_POINTS])
async def test_killed_while_making_attempts(bench: Rig, point: str) -> None:
    """Exactly one live attempt, no orphan pod, no number skipped or used twice."""
    mortal = Mortal(bench, point)
    await mortal.operator.start()
    await bench.apply("hello")
    await pod_of(bench, mortal, "hello-1")
    first = await bench.agent("hello-1")
    await first.step("0")
    await bench.evict("hello-1")
    await pod_of(bench, mortal, "hello-2")
    second = await bench.agent("hello-2")
    await second.step("1")
    await second.finish()
    await condition(bench, mortal, "Succeeded")
    await bench.until(mortal.revive, "the point was reached", 20)
    assert bench.server.objects.made == ["hello-1", "hello-2"]
    assert [a["number"] for a in bench.status("hello")["attempts"]] == [1, 2]


@pytest.mark.parametrize("point", PARK_POINTS)
async def test_killed_while_parking_and_answering(bench: Rig, point: str) -> None:
    """One question, one answer applied, no pod while parked."""
    mortal = Mortal(bench, point)
    await mortal.operator.start()
    run = await bench.apply("hello")
    await pod_of(bench, mortal, "hello-1")
    first = await bench.agent("hello-1")
    await first.park_uncertain("3")
    await first.exit(0)
    await condition(bench, mortal, "Parked")

    async def asked() -> bool:
        await mortal.revive()
        return len(bench.server.objects.find("humanrequests", NAMESPACE, "")) == 1 and bench.pod("hello-1") is None

    await bench.until(asked, "one question, no pod", 40)
    question = bench.server.objects.find("humanrequests", NAMESPACE, "")[0]
    digest = question["spec"]["argumentsDigest"]
    question["spec"]["response"] = {"decision": "again", "by": "jane", "argumentsDigest": digest}
    await bench.server.objects.replace("humanrequests", question)
    await pod_of(bench, mortal, "hello-2")
    second = await bench.agent("hello-2")
    inbox = await bench.store.inbox_read(JournalId(run["metadata"]["uid"]))
    assert len(inbox) == 1
    await second.finish()
    await condition(bench, mortal, "Succeeded")
    assert mortal.deaths == 1, "the point was reached"
    assert bench.server.objects.made == ["hello-1", "hello-2"]


@pytest.mark.parametrize("point", DELETE_POINTS)
async def test_killed_while_cleaning_up(bench: Rig, point: str) -> None:
    """E25: fenced, then swept."""
    mortal = Mortal(bench, point)
    await mortal.operator.start()
    journal = JournalId((await bench.apply("hello"))["metadata"]["uid"])
    await pod_of(bench, mortal, "hello-1")
    await (await bench.agent("hello-1")).step("0")
    began = now_ms()
    await bench.server.objects.delete("agentruns", NAMESPACE, "hello", {})

    async def swept() -> bool:
        await mortal.revive()
        return journal not in await bench.store.journals()

    await bench.until(swept, "the journal is swept", 60)
    assert now_ms() - began >= 1000
    assert mortal.deaths == 1, "the point was reached"
