"""What the scenarios share: a bounded kubectl, runs as objects, the outside world's counts."""

import json
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.kind.cluster import Cluster
from tests.kind.errors import CommandFailed

T = TypeVar("T")
GROUP = "everstep.dev"
KEYS_PER_TICKET = 3
"""Steps per ticket of the scripted agent: think, file_ticket, send_mail."""


def wait_for(what: str, look: Callable[[], T | None], *, timeout_s: float, every_s: float = 0.5) -> T:
    """Ask until the answer is truthy. Raises AssertionError naming what was waited for and the last answer."""
    deadline = time.monotonic() + timeout_s
    last: object = None
    while time.monotonic() < deadline:
        try:
            last = look()
            if last:
                return last
        except (CommandFailed, KeyError, ValueError) as e:
            last = e
        time.sleep(every_s)
    raise AssertionError(f"waited {timeout_s:.0f} s in vain for {what}; last seen: {last!r}")


@dataclass(frozen=True)
class Kube:
    """kubectl with a bound on every call."""

    cluster: Cluster

    def __call__(self, *arguments: str, timeout_s: float = 60.0, stdin: str | None = None) -> str:
        return self.cluster.kubectl(*arguments, timeout_s=timeout_s, stdin=stdin)

    def json(self, *arguments: str) -> Any:  # whatever the API server answers
        return json.loads(self(*arguments, "-o", "json"))

    def apply(self, *objects: dict[str, Any]) -> None:
        """Server-side apply of plain objects."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)


@dataclass
class Run:
    """One AgentRun under test."""

    kube: Kube
    namespace: str
    name: str
    spec: dict[str, Any]
    losses: int = 0
    """How many losses the scenario caused so far."""

    def create(self) -> "Run":
        """Apply it."""
        self.kube.apply(
            {
                "apiVersion": f"{GROUP}/v1alpha1",
                "kind": "AgentRun",
                "metadata": {"name": self.name, "namespace": self.namespace},
                "spec": self.spec,
            }
        )
        return self

    def get(self) -> dict[str, Any]:
        """The object as it is now."""
        found: dict[str, Any] = self.kube.json("-n", self.namespace, "get", "agentrun", self.name)
        return found

    def status(self) -> dict[str, Any]:
        """Its status, {} before the first write."""
        status: dict[str, Any] = self.get().get("status", {})
        return status

    def attempt(self) -> int:
        """The attempt number in force."""
        return int(self.status().get("attempt", 0))

    def condition(self, type_: str) -> dict[str, Any]:
        """One condition, {} while absent."""
        found = [c for c in self.status().get("conditions", []) if c["type"] == type_]
        return found[0] if found else {}

    def pods(self) -> list[dict[str, Any]]:
        """Its pods, oldest attempt first."""
        items: list[dict[str, Any]] = self.kube.json(
            "-n", self.namespace, "get", "pods", "-l", f"{GROUP}/run={self.name}"
        )["items"]
        return sorted(items, key=lambda pod: int(pod["metadata"]["name"].rsplit("-", 1)[1]))

    def live_pod(self) -> dict[str, Any] | None:
        """The newest pod that runs and is not being deleted."""
        alive = [
            pod
            for pod in self.pods()
            if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        ]
        return alive[-1] if alive else None

    def wait_live_pod(self, *, timeout_s: float = 60) -> dict[str, Any]:
        """Wait until a pod runs."""
        found: dict[str, Any] = wait_for(f"a running pod of {self.name}", self.live_pod, timeout_s=timeout_s)
        return found

    def log(self, pod: str) -> str:
        """A pod's log."""
        return self.kube("-n", self.namespace, "logs", pod, "-c", "agent")

    def wait_holding(self, attempt: int, *, timeout_s: float = 90) -> str:
        """Wait until the attempt's pod says that it holds at a fault point; returns the pod's name."""
        pod = f"{self.name}-{attempt}"
        wait_for(f"{pod} to hold", lambda: "everstep-fault: holding" in self.log(pod), timeout_s=timeout_s)
        return pod

    def wait_finished(self, *, timeout_s: float = 150) -> dict[str, Any]:
        """Wait for the condition Finished and return the status. Answers nothing on the way."""
        wait_for(
            f"{self.name} to finish ({self.summary()})",
            lambda: self.condition("Finished").get("status") == "True",
            timeout_s=timeout_s,
            every_s=1,
        )
        return self.status()

    def summary(self) -> str:
        """Summary and reasons, for messages."""
        status = self.status()
        reasons = {c["type"]: c["reason"] for c in status.get("conditions", []) if c["status"] == "True"}
        return f"{status.get('summary')} attempt {status.get('attempt')} {reasons}"

    def request(self) -> dict[str, Any] | None:
        """Its unanswered HumanRequest, if there is one."""
        items = self.kube.json("-n", self.namespace, "get", "humanrequests")["items"]
        for item in items:
            if item["spec"]["runRef"]["name"] == self.name and "response" not in item["spec"]:
                return dict(item)
        return None

    def settle(self, decision: str, *, value: object = None, timeout_s: float = 120) -> None:
        """Answer the run's open question as the cluster's admin."""
        found = wait_for(f"a question of {self.name}", self.request, timeout_s=timeout_s)
        response: dict[str, object] = {
            "decision": decision,
            "by": "kubernetes-admin",
            "reason": "scenario",
            "argumentsDigest": found["spec"]["argumentsDigest"],
        }
        if decision == "done":
            response["value"] = value
        patch = json.dumps({"spec": {"response": response}})
        name = found["metadata"]["name"]
        self.kube("-n", self.namespace, "patch", "humanrequest", name, "--type", "merge", "-p", patch)

    def events(self) -> list[dict[str, Any]]:
        """Events about the run, oldest first."""
        field_selector = f"involvedObject.name={self.name},involvedObject.kind=AgentRun"
        items: list[dict[str, Any]] = self.kube.json(
            "-n", self.namespace, "get", "events", "--field-selector", field_selector
        )["items"]
        return items


@dataclass(frozen=True)
class WorldView:
    """The outside world's counts, read through the API server's proxy."""

    kube: Kube
    namespace: str = "world"

    def _path(self, what: str) -> str:
        return f"/api/v1/namespaces/{self.namespace}/services/world:80/proxy/{what}"

    def counts(self) -> dict[str, Any]:
        """See tests.support.world.state.World.counts."""
        found: dict[str, Any] = json.loads(self.kube("get", "--raw", self._path("counts")))
        return found

    def reset(self) -> None:
        """Forget what earlier sessions did: scenarios use the same names again."""
        self.kube("create", "--raw", self._path("reset"), "-f", "-", stdin="{}")

    def requests(self, prefix: str) -> dict[str, Counter[str]]:
        """Per kind (model, ticket, mail): number of requests per ticket whose id begins with `prefix`-."""
        found: dict[str, Counter[str]] = {"model": Counter(), "ticket": Counter(), "mail": Counter()}
        for request in self.counts()["requests"]:
            if request["kind"] in found and re.fullmatch(re.escape(prefix) + r"-\d+", request["ticket"]):
                found[request["kind"]][request["ticket"]] += 1
        return found


@dataclass
class Row:
    """One line of the table loss × moment × outcome."""

    loss: str
    moment: str
    outcome: str
    attempts: int
    requests: str
    resumed_after_s: float | None = None


@dataclass
class Table:
    """Collects rows over a session; printed at its end."""

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
