"""The run as the demo sees it: kubectl for the object, the outside world for the counts, one line of output per change."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.status import Status

from tests.e2e.harness import Kube, Run, WorldView, wait_for
from tests.kind.cluster import Cluster
from tests.kind.errors import CommandFailed

SYSTEM = "everstep-system"
NAMESPACE = "everstep-demo"
WORLD_NAMESPACE = "outside"
POLL_S = 0.4


def now_ms() -> int:
    """Wall clock; the nodes are containers of this machine and share it."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class PodRef:
    """A pod and where it runs."""

    name: str
    uid: str
    node: str


@dataclass
class Demo:
    """What is known of the run, refreshed by `look`."""

    cluster: Cluster
    console: Console
    requests: list[dict[str, Any]] = field(default_factory=list)
    """Every request the outside world has seen."""
    status: dict[str, Any] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)
    _shown: tuple[object, ...] = ()
    _answered: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.kube = Kube(self.cluster)
        self.world = WorldView(self.kube, WORLD_NAMESPACE)
        self.run = Run(self.kube, NAMESPACE, "triage", {})

    @property
    def steps(self) -> int:
        """Different steps whose request has reached the world, and the one that read the file."""
        return len({(r["kind"], r["ticket"]) for r in self.requests if r["kind"] != "probe"}) + bool(self.requests)

    @property
    def finished(self) -> bool:
        return any(c["type"] == "Finished" and c["status"] == "True" for c in self.status.get("conditions", []))

    def say(self, text: str) -> None:
        """One line of the story, with the time since the start."""
        self.console.print(f"{time.monotonic() - self._began:6.1f} s  {text}", markup=False, style="bold")

    def look(self) -> str:
        """Refresh; returns one line about the run."""
        self.requests = self.world.counts()["requests"]
        self.status = self.run.status()
        self._answer()
        newest = self.status.get("attempts", [{}])[-1]
        reason = next((c["reason"] for c in self.status.get("conditions", []) if c["type"] == "Reconciling"), "")
        summary = self.status.get("summary", "-")
        step = self.requests[-1] if self.requests else {}
        doing = f"{step.get('kind', '')} {step.get('ticket', '')}".strip()
        line = (
            f"step {self.steps:<3} attempt {self.status.get('attempt', 0):<2} on {newest.get('node') or '-':<18} "
            f"{summary:<10} {doing}"
        )
        changed = (self.status.get("attempt"), newest.get("node"), summary, reason)
        if changed != self._shown or (not self.console.is_terminal and self.steps % 10 == 0):
            self._shown = changed
            self.console.print(f"{time.monotonic() - self._began:6.1f} s    {line}", markup=False)
        return line

    def follow_until(self, what: str, done: Callable[[], bool], timeout_s: float) -> None:
        """Show the run until something holds. Raises RuntimeError when it does not in time."""
        deadline = time.monotonic() + timeout_s
        with Status("", console=self.console) as line:
            while True:
                try:
                    line.update(self.look())
                    if done():
                        return
                except (CommandFailed, ValueError) as e:
                    self.console.print(f"  (asking again: {e})", markup=False)
                if time.monotonic() > deadline:
                    raise RuntimeError(f"not within {timeout_s:.0f} s: {what}; {self.run.summary()}")
                time.sleep(POLL_S)

    def live_pod(self) -> PodRef:
        """The agent's pod."""
        pod = self.run.wait_live_pod(timeout_s=60)
        return PodRef(pod["metadata"]["name"], pod["metadata"]["uid"], pod["spec"]["nodeName"])

    def operator_pod(self) -> PodRef:
        """The operator's pod."""

        def find() -> PodRef | None:
            selector = "app.kubernetes.io/component=operator"
            for pod in self.kube.json("-n", SYSTEM, "get", "pods", "-l", selector)["items"]:
                if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]:
                    return PodRef(pod["metadata"]["name"], pod["metadata"]["uid"], pod["spec"]["nodeName"])
            return None

        return wait_for("the operator's pod", find, timeout_s=60)

    def running_pods(self) -> list[str]:
        """Names of the run's pods that have not ended."""
        return [p["metadata"]["name"] for p in self.run.pods() if p["status"].get("phase") == "Running"]

    def operator_ready(self) -> bool:
        """Whether the operator's pod is ready now."""
        selector = "app.kubernetes.io/component=operator"
        pods = self.kube.json("-n", SYSTEM, "get", "pods", "-l", selector)["items"]
        conditions = [c for pod in pods for c in pod["status"].get("conditions", [])]
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def _answer(self) -> None:
        """If a mail may or may not have gone out, look at the gateway and say so, as a person would."""
        if self.status.get("summary") != "Uncertain":
            return
        question = self.run.request()
        if question is None or question["metadata"]["name"] in self._answered:
            return
        ticket = question["spec"].get("arguments", {}).get("ticket", {}).get("id", "")
        sent = any(r["kind"] == "mail" and r["ticket"] == ticket and r["done"] for r in self.requests)
        decision = "done" if sent else "again"
        self.say(f"  the run asks: {question['spec']['prompt']} The gateway says {'yes' if sent else 'no'}: {decision}")
        self.run.settle(decision, value=None)
        self._answered.add(question["metadata"]["name"])
