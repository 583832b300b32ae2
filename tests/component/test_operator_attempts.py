"""The operator's attempts, seen from outside: one live pod, a new one after each loss, none after the end."""

from collections.abc import AsyncIterator

import pytest

from tests.component.mock_cluster.rig import Rig, rig


@pytest.fixture
async def bench() -> AsyncIterator[Rig]:
    async with rig() as made:
        yield made


async def test_a_run_gets_its_first_attempt_and_succeeds(bench: Rig) -> None:
    await bench.operator().start()
    await bench.apply("hello")
    agent = await bench.agent("hello-1")
    await agent.step("0")
    await agent.finish("the answer")
    await bench.until(lambda: bench.condition("hello", "Finished").startswith("True"), "the run is finished", 20)
    assert bench.condition("hello", "Succeeded").startswith("True")
    assert bench.server.objects.made == ["hello-1"]
