"""A run from a step of another on, and a run that stops at its cap and goes on when a person raises it. C38, C59."""

import json
from collections.abc import Callable
from typing import Any

from tests.e2e.command import kubectl_everstep
from tests.e2e.conftest import AGENT_ENV
from tests.e2e.harness import KEYS_PER_TICKET, Run, WorldView, wait_for
from tests.kind.cluster import Cluster

Make = Callable[..., Run]
TICKETS = 4
FORK_AT = 2
"""The ticket from which on the fork does everything anew."""


def test_a_fork_repeats_nothing_before_its_step(cluster: Cluster, make_run: Make, world: WorldView) -> None:
    """The fork keeps the goal, so the world sees the same tickets: those before the step once, those after it twice."""
    run = make_run("fork-source", inputs={"tickets": TICKETS})
    assert run.wait_finished(timeout_s=120)["summary"] == "Succeeded", run.summary()
    watched = kubectl_everstep(cluster, "live", run.name, "--follow", "-o", "json")
    assert (watched.returncode, watched.stdout) == (0, ""), f"a run that is over and said nothing: {watched.stderr}"
    step = str(FORK_AT * KEYS_PER_TICKET)
    made = kubectl_everstep(cluster, "fork", run.name, "--from-step", step, "--name", "fork-made")
    assert made.returncode == 0, f"{made.stdout}{made.stderr}"
    fork = Run(run.kube, run.namespace, "fork-made", run.spec)
    try:
        status = fork.wait_finished(timeout_s=120)
        assert status["summary"] == "Succeeded", fork.summary()
        requests = world.requests(run.name)
        wanted = {f"{run.name}-{n}": 1 if n < FORK_AT else 2 for n in range(TICKETS)}
        for kind in ("model", "ticket", "mail"):
            assert dict(requests[kind]) == wanted, f"{kind}: {requests[kind]}"
        proved = kubectl_everstep(cluster, "verify", "fork-made")
        assert proved.returncode == 0, f"{proved.stdout}{proved.stderr}"
        assert "fork" in proved.stdout, proved.stdout
    finally:
        run.kube("-n", run.namespace, "delete", "agentrun", "fork-made", "--wait=false", "--ignore-not-found")


def test_a_run_stops_at_its_cap_and_goes_on_when_it_is_raised(
    cluster: Cluster, make_run: Make, world: WorldView
) -> None:
    """C59: no effect beyond the cap, no pod while it waits, and the rest once a person allows it."""
    cap = 2 * KEYS_PER_TICKET
    budget: dict[str, Any] = {"maxSteps": cap}
    env = [*AGENT_ENV, {"name": "EVERSTEP_BUDGET", "value": json.dumps(budget)}]
    run = make_run("capped", inputs={"tickets": TICKETS}, agent_change={"env": env})
    wait_for("the run to stop at its cap", lambda: run.status().get("reason") == "BudgetExceeded", timeout_s=120)
    wait_for("no pod while it waits", lambda: run.live_pod() is None, timeout_s=60)
    assert sum(sum(kind.values()) for kind in world.requests(run.name).values()) == cap

    raised = kubectl_everstep(cluster, "budget", run.name, "--max-steps", "100", "--reason", "enough left")
    assert raised.returncode == 0, f"{raised.stdout}{raised.stderr}"
    assert run.wait_finished(timeout_s=120)["summary"] == "Succeeded", run.summary()
    requests = world.requests(run.name)
    for kind in ("model", "ticket", "mail"):
        assert dict(requests[kind]) == {f"{run.name}-{n}": 1 for n in range(TICKETS)}, f"{kind}: {requests[kind]}"
