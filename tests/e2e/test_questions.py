"""A step that nobody can prove done or not done asks a person, and the answer counts once. C16, C39, C42, E29."""

import json
from collections.abc import Callable

import pytest

from tests.e2e.conftest import NAMESPACE
from tests.e2e.harness import Kube, Run, WorldView, wait_for
from tests.e2e.moments import HIT_CALL, kill_process_1, live_pods
from tests.kind.cluster import Cluster

Make = Callable[..., Run]


def uncertain_run(cluster: Cluster, make_run: Make, name: str) -> Run:
    """A run whose letter (at_most_once, no probe) was in flight when its process was killed: sent, result not written."""
    run = make_run(name, fault=f"after_effect:{HIT_CALL}@1=hold", inputs={"tickets": 3, "letters": True})
    kill_process_1(cluster, run, run.wait_holding(1))
    wait_for(f"{name} to ask", run.request, timeout_s=90)
    wait_for(f"{name} to be Uncertain", lambda: run.status().get("summary") == "Uncertain", timeout_s=60)
    wait_for(f"{name} to have no pod", lambda: not live_pods(run), timeout_s=60)
    return run


@pytest.mark.parametrize(("decision", "letters"), [("done", 1), ("again", 2)], ids=["done", "again"])
def test_answer_moves_the_run(cluster: Cluster, make_run: Make, world: WorldView, decision: str, letters: int) -> None:
    """C16: counter 1, the run asks; `done` goes on with the value, `again` licenses exactly one more."""
    run = uncertain_run(cluster, make_run, f"ask-{decision}")
    assert world.requests(run.name)["mail"][f"{run.name}-1"] == 1
    waiting = run.status()["waiting"]
    assert waiting["kind"] == "uncertain", waiting
    run.settle(decision, value=f"{run.name}-1" if decision == "done" else None)
    status = run.wait_finished()
    assert status["summary"] == "Succeeded", run.summary()
    assert world.requests(run.name)["mail"] == {f"{run.name}-0": 1, f"{run.name}-1": letters, f"{run.name}-2": 1}


def test_fail_is_a_step_failure(cluster: Cluster, make_run: Make, kube: Kube) -> None:
    """`fail` reaches the agent as StepFailed; unhandled, the run ends as Failed and says why."""
    run = uncertain_run(cluster, make_run, "ask-fail")
    run.settle("fail")
    status = run.wait_finished()
    assert status["summary"] == "Failed", run.summary()
    described = kube("-n", NAMESPACE, "describe", "agentrun", run.name)
    assert "send_letter" in described


def test_a_second_answer_is_refused(cluster: Cluster, make_run: Make, kube: Kube) -> None:
    """The response is immutable once set; the refusal comes from the API server."""
    run = uncertain_run(cluster, make_run, "ask-twice")
    found = run.request()
    assert found is not None
    name = found["metadata"]["name"]
    run.settle("again")
    patch = json.dumps({"spec": {"response": {"decision": "fail"}}})
    with pytest.raises(Exception, match=r"immutable|Invalid|cannot"):
        kube("-n", NAMESPACE, "patch", "humanrequest", name, "--type", "merge", "-p", patch)
    assert run.wait_finished()["summary"] == "Succeeded"
