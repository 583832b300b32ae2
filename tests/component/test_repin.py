"""`kubectl everstep repin` against the real operator: another image is tried by a replay, and taken back where it diverges."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from everstep import contract
from everstep.cli import repin as module
from everstep.cli.exits import Refusal
from everstep.cli.kube import Kubectl
from everstep.cli.repin import Repin
from everstep.contract import StopReason, Termination
from everstep.journal.records import Pinned
from tests.component.mock_cluster.agent import Agent, now_ms
from tests.component.mock_cluster.objects import merge_patch
from tests.component.mock_cluster.rig import Rig, rig

OLD, NEW = "registry.example/agent:1", "registry.example/agent:2"


class Direct(Kubectl):
    """kubectl without the program: the mock API's objects, from the command's thread."""

    def __init__(self, bench: Rig) -> None:
        super().__init__()
        vars(self)["bench"], vars(self)["loop"] = bench, asyncio.get_running_loop()

    def get(self, kind: str, name: str) -> dict[str, Any]:
        assert kind == "agentruns.everstep.dev"

        async def read() -> Any:
            return json.loads(json.dumps(vars(self)["bench"].run(name)))

        return dict(asyncio.run_coroutine_threadsafe(read(), vars(self)["loop"]).result())

    def patch(self, kind: str, name: str, body: object, how: str = "merge") -> None:
        assert how == "merge"

        async def write() -> None:
            bench = vars(self)["bench"]
            have = bench.run(name)
            new = merge_patch(have, dict(body))  # type: ignore[call-overload]  # a patch is an object
            if new["spec"] != have["spec"]:
                new["metadata"]["generation"] = have["metadata"]["generation"] + 1  # as the API server does
            await bench.server.objects.replace("agentruns", new)

        asyncio.run_coroutine_threadsafe(write(), vars(self)["loop"]).result()


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(module, "POLL_S", 0.05)
    async with rig() as made:
        await made.operator().start()
        yield made


def image_of(agent: Agent) -> tuple[str, str]:
    container = agent.pod["spec"]["containers"][0]
    env = {e["name"]: e.get("value", "") for e in container["env"]}
    assert env[contract.ENV_IMAGE] == container["image"]
    return str(container["image"]), str(env[contract.ENV_IMAGE_NAMED])


def repin(bench: Rig, image: str = NEW) -> "asyncio.Task[None]":
    return asyncio.create_task(asyncio.to_thread(Repin(Direct(bench), "hello", image, 60, as_json=False).go))


async def begun(bench: Rig, *, park: bool = False) -> Agent:
    await bench.apply("hello", agent={"entrypoint": "app:run", "image": OLD})
    first = await bench.agent("hello-1")
    assert image_of(first) == (OLD, OLD)
    await first.step("0")
    if park:
        await first.park_timer(now_ms() + 3_600_000)
        await first.exit(0)
        await bench.until(lambda: bench.condition("hello", "Parked").startswith("True"), "it parks")
    else:
        await bench.until(lambda: bench.status("hello").get("summary") == "Running", "it runs")
    return first


@pytest.mark.parametrize("park", [False, True], ids=["running", "parked"])
async def test_the_next_attempt_has_the_image_and_the_command_ends_when_it_has_replayed(bench: Rig, park: bool) -> None:
    """C62."""
    await begun(bench, park=park)
    command = repin(bench)
    second = await bench.agent("hello-2")
    assert image_of(second) == (NEW, NEW)
    assert not command.done()
    await second.write(Pinned(seq=0, attempt=2, time=now_ms(), image=NEW, named=NEW, python="3.12", by="spec"))
    await asyncio.wait_for(command, 30)
    assert "everstep.dev/repin" not in bench.run("hello")["metadata"].get("annotations", {})
    assert bench.run("hello")["spec"]["agent"]["image"] == NEW
    await second.step("1")
    await second.finish()
    await bench.until(lambda: bench.condition("hello", "Succeeded").startswith("True"), "it succeeds")


@pytest.mark.parametrize("park", [False, True], ids=["running", "parked"])
async def test_a_divergence_is_shown_and_the_run_goes_on_with_the_old_image(bench: Rig, park: bool) -> None:
    await begun(bench, park=park)
    command = repin(bench)
    second = await bench.agent("hello-2")
    assert second.head is not None
    told = "step pay was called with other arguments than the journal tells.\n  amount: changed: a number"
    said = Termination(StopReason.DIVERGED, told, second.attempt, second.head.seq, second.head.hash)
    await second.exit(contract.ExitCode.JOURNAL_REFUSED, message=said.to_json())
    with pytest.raises(Refusal, match="step pay was called with other arguments") as refused:
        await asyncio.wait_for(command, 30)
    assert refused.value.exit_code == 65
    assert "amount: changed: a number" in str(refused.value)
    third = await bench.agent("hello-3")
    assert image_of(third) == (OLD, OLD)
    await third.step("1")
    await third.finish()
    await bench.until(lambda: bench.condition("hello", "Succeeded").startswith("True"), "it succeeds")
    assert bench.run("hello")["spec"]["agent"]["image"] == OLD
