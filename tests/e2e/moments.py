"""Five runs at the five moments of the failure table, hit by one loss at once, and what must be true afterwards.

    M1  before the intent        M2  intent confirmed, effect not sent       M3  effect done, result not written
    M4  parked                   M5  during replay

The step that is hit is the mail of the second ticket (at_most_once, with a probe): the one that must never happen twice.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.e2e.harness import Run, WorldView, wait_for
from tests.kind import faults
from tests.kind.cluster import Cluster

TICKETS = 4
HIT_CALL = 6
"""before_intent and its likes are reached for the 6th time by the second ticket's mail."""
HIT_TICKET = 1
RESULT_SECONDS_M4 = 50
"""How long the parked run sleeps: longer than the losses of a pod take, and than the linger time of 30 s."""
M5_FIRST_LOSS = f"after_result:{HIT_CALL}@1=exit75"


def fault_for(moment: str, action: str = "hold") -> str:
    """EVERSTEP_FAULTS that brings a run to a moment and keeps it there."""
    return {
        "M1": f"before_intent:{HIT_CALL}@1={action}",
        "M2": f"after_intent:{HIT_CALL}@1={action}",
        "M3": f"after_effect:{HIT_CALL}@1={action}",
        "M4": "",
        "M5": f"{M5_FIRST_LOSS};in_replay:3@2={action}",
    }[moment]


@dataclass
class Moments:
    """The five runs of one scenario."""

    runs: dict[str, Run]
    held_pods: dict[str, str]
    """Moment → name of the pod that holds there (M4 has none)."""
    attempts_before: dict[str, int]
    hit_at_s: float = 0.0

    def held_runs(self) -> list[Run]:
        """The runs that have a pod."""
        return [self.runs[m] for m in self.held_pods]


def bring_to_moments(
    make_run: Callable[..., Run],
    prefix: str,
    *,
    node: str = "",
    action: str = "hold",
    parked_s: float = RESULT_SECONDS_M4,
) -> Moments:
    """Start five runs and wait until each is at its moment (for `oom`: only until it has started). `parked_s`: how long the one
    at M4 sleeps."""
    runs: dict[str, Run] = {}
    for moment in ("M1", "M2", "M3", "M4", "M5"):
        inputs: dict[str, Any] = {"tickets": TICKETS}
        if moment == "M4":
            inputs |= {"sleep_after": HIT_TICKET, "sleep_s": parked_s}
        name = f"{prefix}-{moment.lower()}"
        runs[moment] = make_run(name, fault=fault_for(moment, action), inputs=inputs, node=node)
    held: dict[str, str] = {}
    if action == "hold":
        for moment, run in runs.items():
            if moment != "M4":
                held[moment] = run.wait_holding(2 if moment == "M5" else 1)
    parked = runs["M4"]
    wait_for(f"{parked.name} to park", lambda: parked.condition("Parked").get("status") == "True", timeout_s=90)
    wait_for(f"{parked.name} to have no pod", lambda: not live_pods(parked), timeout_s=60)
    attempts = {moment: run.attempt() for moment, run in runs.items()}
    return Moments(runs, held, attempts, time.monotonic())


def kill_process_1(cluster: Cluster, run: Run, pod: str) -> None:
    """kill -9 of an agent's process from its node."""
    found: dict[str, Any] = next(p for p in run.pods() if p["metadata"]["name"] == pod)
    faults.kill_container_pid1(cluster, found["spec"]["nodeName"], found["metadata"]["uid"])


def live_pods(run: Run) -> list[str]:
    """Names of the run's pods that have not ended."""
    return [p["metadata"]["name"] for p in run.pods() if p["status"].get("phase") in ("Pending", "Running")]


@dataclass
class Outcome:
    """What became of one run."""

    status: dict[str, Any]
    uncertain: bool
    requests: str
    resumed_after_s: float | None


def finish_and_judge(
    moments: Moments, moment: str, world: WorldView, *, hits: int = 1, timeout_s: float = 180
) -> Outcome:
    """Wait for one run to finish, answering a question if one is asked, and check every promise by the world's count.

    `hits`: how many losses hit the step in flight (0 for a parked run).
    """
    run = moments.runs[moment]
    settled = wait_settled_or_finished(run, world, timeout_s)
    status = run.wait_finished(timeout_s=timeout_s)
    name = run.name
    assert status["summary"] == "Succeeded", run.summary()
    numbers = [a["number"] for a in status["attempts"]]
    assert numbers == sorted(set(numbers)), f"{name}: attempts must strictly grow: {numbers}"
    # At M1 the ticket's result still waited for the mail's intent to ride with: the ticket was the step in flight.
    in_flight = hits if moment == "M1" else 0
    requests = world.requests(name)
    for n in range(TICKETS):
        ticket = f"{name}-{n}"
        assert requests["mail"][ticket] == 1, f"{ticket}: {requests['mail'][ticket]} mails went out"
        for kind in ("model", "ticket"):
            most = 1 + (in_flight if (kind, n) == ("ticket", HIT_TICKET) else 0)
            assert 1 <= requests[kind][ticket] <= most, (
                f"{ticket}: {requests[kind][ticket]} {kind} requests, at most {most}"
            )
    told = " ".join(f"{kind} {sum(requests[kind].values())}/{TICKETS}" for kind in ("model", "ticket", "mail"))
    return Outcome(status, settled, told, resumed_after(run))


def wait_settled_or_finished(run: Run, world: WorldView, timeout_s: float) -> bool:
    """Answer the run's question, if it asks one, by what the world knows: done if the mail went out, else again."""
    found = wait_for(
        f"{run.name} to finish or ask",
        lambda: "finished" if run.condition("Finished").get("status") == "True" else "asks" if run.request() else None,
        timeout_s=timeout_s,
        every_s=1,
    )
    if found == "finished":
        return False
    ticket = f"{run.name}-{HIT_TICKET}"
    sent = world.requests(run.name)["mail"][ticket]
    if sent:
        run.settle("done", value=ticket)
    else:
        run.settle("again")
    return True


def resumed_after(run: Run) -> float | None:
    """Seconds from the loss to the first new step, as the operator's last Resumed event tells."""
    seconds = [
        float(found[1])
        for event in run.events()
        if event["reason"] == "Resumed" and (found := re.search(r"([\d.]+) s after the loss", event["message"]))
    ]
    return seconds[-1] if seconds else None
