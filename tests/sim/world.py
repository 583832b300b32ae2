"""The simulated truth: a clock, an API server with pods and one AgentRun, nodes with kubelets, controllers, a store."""

import copy
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from everstep.ids import Attempt, EpochMs, JournalId, RunName
from everstep.journal.chain import Chain
from everstep.journal.memory import MemoryStore
from everstep.journal.records import Record, decode
from everstep.journal.store import Stored
from everstep_operator.decide.model import ContainerState, ContainerView, NodeView, Observed, PodCondition, PodView

if TYPE_CHECKING:
    from tests.sim.agent import Process

START = 1_770_000_000_000
NAME = RunName("sim")
UID = JournalId("5a5a0000-0000-4000-8000-000000000001")
DETECTION_MS, TOLERATION_MS, GRACE_MS, GC_MS = 50_000, 60_000, 30_000, 60_000

T = TypeVar("T")


def now_of(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits (the memory store's)."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # T, by the coroutine's own type
    raise AssertionError("a memory store waits for nothing")


class Moved(Exception):
    """A guarded write did not fit the object any more."""


@dataclass
class Node:
    """`up`: the machine runs. `connected`: its kubelet reaches the API server. Pods reach the store while it is up."""

    name: str
    up: bool = True
    connected: bool = True
    exists: bool = True
    silent_since: int | None = None

    def mend(self) -> None:
        self.up = self.connected = self.exists = True

    @property
    def reports(self) -> bool:
        return self.up and self.connected and self.exists


@dataclass
class Pod:
    """A pod object, and through `process` what really runs."""

    name: str
    uid: str
    attempt: int
    node: str
    created: int
    predecessor_dead: bool
    process: "Process | None" = None
    phase: str = "Pending"
    state: ContainerState = ContainerState.WAITING
    exit_code: int | None = None
    finished: int | None = None
    reason: str = ""
    container_reason: str = ""
    message: str = ""
    conditions: list[PodCondition] = field(default_factory=list)
    deletion: int | None = None
    started: int | None = None

    def disrupt(self, reason: str) -> None:
        self.conditions.append(PodCondition("DisruptionTarget", "True", reason))


class World:
    """Everything that exists. `rng` is the only source of chance."""

    def __init__(self, seed: int, spec: dict[str, Any]) -> None:
        self.rng = random.Random(seed)
        self.now = self.started = START
        self.quota_full = False
        self.before_create: Callable[[Attempt, Observed], None] = lambda attempt, seen: None
        """Asked just before each pod is made: the checks look at the world there."""
        self.store = MemoryStore()
        self.store_up = True
        self.chain = Chain(UID, b"k" * 32)
        self.nodes = {n: Node(n) for n in ("n1", "n2", "n3")}
        self.pods: dict[str, Pod] = {}
        self.processes: list[Process] = []
        self.run: dict[str, Any] | None = {
            "generation": 1,
            "version": 1,
            "spec": spec,
            "status": None,
            "deletion": None,
        }
        self.requests: dict[str, dict[str, Any]] = {}
        self.deleted_pods: list[PodView] = []
        self.effects: Counter[str] = Counter()
        self.licences: Counter[str] = Counter()
        self.intents_run: Counter[str] = Counter()
        self.log: list[str] = []
        self.writes: Counter[str] = Counter()
        self._uids = 0
        self._decoded: dict[str, Record] = {}

    def note(self, text: str) -> None:
        self.log.append(f"{(self.now - START) / 1000:9.1f} {text}")

    def fresh_uid(self, prefix: str) -> str:
        self._uids += 1
        return f"{prefix}-{self._uids}"

    def decoded(self, stored: Stored) -> Record:
        """A record, decoded once: the same bytes are asked for again and again."""
        found = self._decoded.get(stored.hash)
        if found is None:
            found = self._decoded[stored.hash] = decode(stored.record, stored.seq)
        return found

    # --- the API server

    def patch_status(self, operations: Any) -> None:
        """JSON patch with tests, all or nothing."""
        if self.run is None:
            raise Moved("gone")
        for op in operations:
            have = UID if op["path"] == "/metadata/uid" else self.run["status"]
            if op["op"] == "test" and have != op["value"]:
                raise Moved(op["path"])
            if op["op"] in ("add", "replace"):
                self.run["status"] = copy.deepcopy(op["value"])
        self.run["version"] += 1
        self.writes["status"] += 1

    def create_pod(self, attempt: int, predecessor_dead: bool, avoid: tuple[str, ...]) -> bool:
        """False: the name is taken."""
        from tests.sim.agent import Process

        name = f"{NAME}-{attempt}"
        if self.run is None or name in self.pods:
            return False
        uid = self.fresh_uid("uid")
        ready = [n for n in self.nodes.values() if n.reports and n.silent_since is None]
        wished = [n for n in ready if n.name not in avoid] or ready
        node = self.rng.choice(wished).name if wished else ""
        pod = Pod(name, uid, attempt, node, self.now, predecessor_dead)
        pod.process = Process(self, pod)
        self.pods[name] = pod
        self.writes["pod"] += 1
        self.note(f"pod {name} ({pod.uid}) created on {node or '-'} dead={predecessor_dead}")
        return True

    def delete_pod(self, name: str, uid: str, *, grace_ms: int = GRACE_MS) -> None:
        pod = self.pods.get(name)
        if pod is None or pod.uid != uid or pod.deletion is not None:
            return
        pod.deletion = self.now + grace_ms
        if not pod.node:
            self._remove(pod)

    def force_delete(self, pod: Pod) -> None:
        """The object goes; the process does not know."""
        self._remove(pod)

    def _remove(self, pod: Pod) -> None:
        if self.pods.get(pod.name) is pod:
            del self.pods[pod.name]
            self.deleted_pods.append(self.view(pod))
            self.note(f"pod {pod.name} ({pod.uid}) removed, last seen {pod.state}")

    def set_spec(self, **changes: Any) -> None:
        if self.run is not None:
            self.run["spec"] = {**self.run["spec"], **changes}
            self.run["generation"] += 1
            self.run["version"] += 1

    # --- time: kubelets and controllers

    def advance(self, ms: int) -> None:
        self.now += ms
        for node in self.nodes.values():
            if node.reports:
                node.silent_since = None
            elif node.silent_since is None:
                node.silent_since = self.now
        for pod in list(self.pods.values()):
            self._controllers(pod)
            self._kubelet(pod)

    def unreachable_since(self, node: Node) -> int | None:
        if node.silent_since is None or self.now - node.silent_since < DETECTION_MS:
            return None
        return node.silent_since + DETECTION_MS

    def _controllers(self, pod: Pod) -> None:
        node = self.nodes.get(pod.node)
        if not pod.node:
            ready = [n for n in self.nodes.values() if n.reports]
            if ready and pod.deletion is None:
                pod.node = self.rng.choice(ready).name
            return
        if node is None:
            return
        since = self.unreachable_since(node)
        if since is not None and self.now - since > TOLERATION_MS and pod.deletion is None:
            pod.disrupt("DeletionByTaintManager")
            self.delete_pod(pod.name, pod.uid)
        if not node.exists and node.silent_since is not None and self.now - node.silent_since > GC_MS:
            if pod.phase in ("Pending", "Running"):
                pod.phase = "Failed"
                pod.disrupt("DeletionByPodGC")
            self._remove(pod)

    def _kubelet(self, pod: Pod) -> None:
        """What the node's kubelet does and tells, if it can."""
        node, process = self.nodes.get(pod.node), pod.process
        if node is None or not node.reports or process is None or self.pods.get(pod.name) is not pod:
            return
        if pod.phase == "Pending" and pod.deletion is None and not process.started:
            if self.rng.random() < 0.02:
                pod.phase, pod.reason, pod.state = "Failed", "OutOfcpu", ContainerState.ABSENT
                process.never_ran()
                return
            process.start()
            pod.phase, pod.state, pod.started = "Running", ContainerState.RUNNING, self.now
        if pod.deletion is not None and process.alive and not process.paused:
            process.terminate()
        if pod.deletion is not None and self.now >= pod.deletion and process.alive:
            process.die(137, "killed at the end of its grace time")
        if process.started and not process.alive and pod.state is not ContainerState.TERMINATED:
            pod.state, pod.exit_code, pod.finished = ContainerState.TERMINATED, process.exit_code, process.ended
            pod.message, pod.container_reason = process.message, process.exit_reason
            pod.phase = "Succeeded" if process.exit_code == 0 else "Failed"
        elif pod.deletion is not None and not process.alive:
            self._remove(pod)

    # --- views

    def view(self, pod: Pod) -> PodView:
        node = self.nodes.get(pod.node)
        since = self.unreachable_since(node) if node else None
        return PodView(
            name=pod.name,
            uid=pod.uid,
            owned=True,
            attempt=Attempt(pod.attempt),
            phase=pod.phase,
            created_epoch_ms=EpochMs(pod.created),
            agent=ContainerView(
                state=pod.state,
                reason=pod.container_reason,
                message=pod.message,
                exit_code=pod.exit_code,
                started_epoch_ms=EpochMs(pod.started) if pod.started else None,
                finished_epoch_ms=EpochMs(pod.finished) if pod.finished else None,
                container_id=f"c-{pod.uid}" if pod.started else "",
            ),
            node=pod.node,
            node_view=NodeView(
                exists=bool(node and node.exists),
                ready=bool(node and node.silent_since is None),
                unreachable_since_epoch_ms=EpochMs(since) if since is not None else None,
            )
            if pod.node
            else None,
            reason=pod.reason,
            conditions=tuple(pod.conditions),
            deletion_epoch_ms=EpochMs(pod.deletion) if pod.deletion is not None else None,
        )

    def gone_view(self, view: PodView) -> PodView:
        return replace(view, gone=True)
