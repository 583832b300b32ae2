"""`make demo`: the triage agent on a real cluster; its process, its pod, its node and the operator are taken away.

    python -m tests.demo.cluster [--name everstep]

Needs a cluster and images (`make cluster images`; `make demo` does both). Installs the charts, starts the outside world in a
namespace of its own, applies crds/examples/triage.yaml, and ends with what the outside world counted; exit code 1 if a count is
wrong. Can be run again and again, and leaves everything up to look at.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.console import Console

from tests.demo.run_view import NAMESPACE, SYSTEM, Demo, now_ms
from tests.demo.setup import clean_up_after_earlier_runs, install, start_run, start_world
from tests.demo.tally import Loss, Tally, expected
from tests.e2e.harness import wait_for
from tests.kind import api, faults
from tests.kind.cluster import Cluster
from tests.kind.errors import KindToolError
from tests.support.install import HelmFailed

FINISH_TIMEOUT_S = 300.0
RESUME_TIMEOUT_S = 120.0
console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 110)


@dataclass
class Story:
    """The losses, in order, each at a number of steps."""

    cluster: Cluster
    demo: Demo
    losses: list[Loss] = field(default_factory=list)

    def tell(self) -> None:
        """Let the run go on from loss to loss, to its end."""
        self._at(15, self.kill_agent)
        self._at(32, self.delete_pod)
        self._at(49, self.drain_node)
        self._at(66, self.kill_operator)
        self._at(80, self.kill_agent)
        self.demo.follow_until("the end", lambda: self.demo.finished, FINISH_TIMEOUT_S)

    def _at(self, step: int, take_away: Callable[[], None]) -> None:
        self.demo.follow_until(f"step {step}", lambda: self.demo.steps >= step or self.demo.finished, RESUME_TIMEOUT_S)
        if self.demo.finished:
            raise RuntimeError(f"the run ended before step {step}: {self.demo.run.summary()}")
        take_away()

    def _lose(self, what: str, *, needs_resume: bool = True) -> Loss:
        loss = Loss(what, now_ms(), self.demo.steps, needs_resume=needs_resume)
        self.losses.append(loss)
        self.demo.say(f"✂ {what}")
        return loss

    def _resumed(self, loss: Loss) -> None:
        """Wait until another pod makes a request; that is the next new step."""
        known = {r["caller"] for r in self.demo.requests if r["at_epoch_ms"] <= loss.at_epoch_ms}

        def look() -> bool:
            new = [r["at_epoch_ms"] for r in self.demo.requests if r["caller"] not in known and r["kind"] != "probe"]
            loss.resumed_epoch_ms = min(new, default=None)
            return bool(new) or self.demo.finished

        self.demo.follow_until("the next new step", look, RESUME_TIMEOUT_S)
        self.demo.say(f"  next new step {loss.resumed_after_s or 0:.1f} s after the loss")

    def kill_agent(self) -> None:
        """kill -9 of process 1 of the agent's container, from its node."""
        pod = self.demo.live_pod()
        away = "" if self.demo.operator_ready() else ", operator away"
        loss = self._lose(f"kill -9 of the agent's process on {pod.node}{away}")
        faults.kill_container_pid1(self.cluster, pod.node, pod.uid)
        self._resumed(loss)

    def delete_pod(self) -> None:
        """kubectl delete pod."""
        pod = self.demo.live_pod()
        loss = self._lose(f"kubectl delete pod {pod.name}")
        self.demo.kube("-n", NAMESPACE, "delete", "pod", pod.name, "--wait=false")
        self._resumed(loss)

    def drain_node(self) -> None:
        """kubectl drain, and uncordon once the run goes on elsewhere."""
        pod = self.demo.live_pod()
        loss = self._lose(f"kubectl drain {pod.node} --ignore-daemonsets")
        try:
            self.demo.kube("drain", pod.node, "--ignore-daemonsets", "--timeout=90s", timeout_s=100)
            self._resumed(loss)
        finally:
            self.demo.kube("uncordon", pod.node)
        self.demo.say(f"  {pod.node} is uncordoned")

    def kill_operator(self) -> None:
        """kill -9 of the operator; the run must not notice."""
        pod = self.demo.operator_pod()
        self._lose(f"kill -9 of the operator on {pod.node}", needs_resume=False)
        faults.kill_container_pid1(self.cluster, pod.node, pod.uid, container="operator")


def tally(demo: Demo, losses: list[Loss]) -> Tally:
    """The outside world's counts and the run's own status, side by side."""
    status = demo.run.status()
    steps = status.get("steps", {})
    requests = demo.requests
    saved = sum(
        len(
            {
                r["ticket"]
                for r in requests
                if r["kind"] == "model" and r["done"] and r["at_epoch_ms"] < loss.at_epoch_ms
            }
        )
        for loss in losses
        if loss.needs_resume
    )
    done = Tally(
        expected(), demo.world.counts(), losses, int(steps.get("recorded", 0)), int(steps.get("replayed", 0)),
        int(status.get("attempt", 0)), saved,
    ).check()  # fmt: skip
    if demo.run.condition("Succeeded").get("status") != "True":
        done.problems.append(f"the run did not succeed: {demo.run.summary()}")
    numbers = [a["number"] for a in status.get("attempts", [])]
    if numbers != sorted(set(numbers)):
        done.problems.append(f"attempt numbers do not grow strictly: {numbers}")
    try:
        wait_for("the last pod to end", lambda: not demo.running_pods(), timeout_s=30)
    except AssertionError:
        done.problems.append(f"pods still run after the end: {demo.running_pods()}")
    return done


def show(result: Tally, cluster: Cluster) -> None:
    """The tables, and what to type next."""
    console.print()
    console.print(result.effects_table(), result.losses_table())
    console.print(result.summary())
    for problem in result.problems:
        console.print(f"WRONG  {problem}", style="bold red", markup=False)
    if not result.problems:
        console.print("Every effect happened once.", style="bold green")
    console.print("\nThe cluster is left up. Next:", style="bold")
    console.print(f"  {cluster.shell_line()}", markup=False)
    for line in ("get agentruns -o wide", "describe agentrun triage"):
        console.print(f"  kubectl -n {NAMESPACE} {line}")
    console.print(f"  export PATH={Path(sys.executable).parent}:$PATH   # kubectl everstep", markup=False)
    for verb in ("result", "steps", "verify"):
        console.print(f"  kubectl everstep {verb} triage -n {NAMESPACE} --operator-namespace {SYSTEM}", markup=False)
    console.print(f"  make demo            # again\n  make cluster-down    # remove {cluster.name}")


@click.command()
@click.option("--name", default="everstep", show_default=True, help="The kind cluster.")
def main(name: str) -> None:
    """Take an agent's process, pod, node and operator away and count what the outside world saw."""
    began = time.monotonic()
    try:
        cluster = api.ensure_cluster(name)
        demo = Demo(cluster, console)
        clean_up_after_earlier_runs(demo)
        install(demo)
        start_world(demo)
        start_run(demo)
        story = Story(cluster, demo)
        story.tell()
        result = tally(demo, story.losses)
    except (KindToolError, HelmFailed, RuntimeError, AssertionError) as e:
        console.print(f"error: {e}", style="bold red", markup=False)
        sys.exit(1)
    show(result, cluster)
    console.print(f"{time.monotonic() - began:.0f} s in all")
    sys.exit(1 if result.problems else 0)


if __name__ == "__main__":
    main()
