"""What is done to a run, chosen by the seed; then everything heals and the run must end."""

from collections.abc import Callable
from typing import Any, Literal

from tests.sim.actor import Decide, Operator
from tests.sim.agent import Process
from tests.sim.checks import Broken, Checks
from tests.sim.world import Node, Pod, World

SPEC: dict[str, Any] = {
    "goal": "go",
    "agent": {"entrypoint": "sim:run", "image": "agent:1"},
    "restarts": {"application": {"max": 1000}, "outOfMemory": {"max": 1000}},
}
CHAOS_TICKS, HEAL_MS, TICK_MS = 8000, 4 * 3600 * 1000, 250
Ending = Literal["success", "cancel", "deadline"]
ENDS: dict[Ending, frozenset[str]] = {
    "success": frozenset({"Succeeded/Succeeded"}),
    "cancel": frozenset({"Succeeded/Succeeded", "Cancelled/Cancelled", "Cancelled/CancelForced"}),
    "deadline": frozenset({"Succeeded/Succeeded", "Failed/DeadlineExceeded"}),
}
"""How a run may end: what it had finished before a wish reached it stays a success."""
EVENT_CHANCE, NODE_MENDS = 0.05, 0.12


class Simulation:
    """One run from its creation to its end under one seed."""

    def __init__(
        self, seed: int, *, operators: int = 1, decide: Decide | None = None, ending: Ending = "success"
    ) -> None:
        self.world = World(seed, dict(SPEC))
        self.ending = ending
        self.wish_at_tick = self.world.rng.randrange(20, 400)
        if ending == "deadline":
            self.world.set_spec(deadlineSeconds=self.world.rng.randrange(30, 400))
        self.operators = [Operator(self.world) for _ in range(operators)]
        if decide is not None:
            for operator in self.operators:
                operator.decide = decide
        self.checks = Checks(self.world, operators)
        self.seed = seed
        self.processes: list[Process] = []

    def go(self) -> World:
        """Raises Broken with the seed and the last events."""
        try:
            for tick in range(CHAOS_TICKS):
                if tick == self.wish_at_tick:
                    self._wish()
                self._tick(chaos=True)
                if self._rested():
                    break
            self._heal()
            until = self.world.now + HEAL_MS
            while self.world.now < until and not self._rested():
                self._tick(chaos=False)
            self.checks.end(ENDS[self.ending])
        except Broken as e:
            raise Broken(f"seed {self.seed}: {e}") from None
        return self.world

    def _wish(self) -> None:
        if self.ending == "cancel":
            self.world.set_spec(desiredState="Cancelled", cancelGraceSeconds=self.world.rng.choice((0, 5, 30)))
            self.world.note("cancelled")

    def _rested(self) -> bool:
        done = bool(self.checks.finished) and not self.world.pods
        closed = all(r["state"] in ("Applied", "Stale") for r in self.world.requests.values())
        run = self.world.run
        seen = run is None or (run["status"] or {}).get("observedGeneration") == run["generation"]
        return done and closed and seen

    def _tick(self, *, chaos: bool) -> None:
        world, rng = self.world, self.world.rng
        if chaos and rng.random() < EVENT_CHANCE:
            rng.choice(EVENTS)(self)
            self.checks.every()
        if chaos and rng.random() < EVENT_CHANCE:
            self._mend()
        for pod in list(world.pods.values()):
            if pod.process is not None and pod.process not in self.processes:
                self.processes.append(pod.process)
        for process in self.processes:
            if rng.random() < 0.5:
                process.move()
                self.checks.every()
        for operator in self.operators:
            for _ in range(rng.randrange(0, 6) if chaos else 30):
                if not operator.step():
                    break
                self.checks.every()
                if chaos and rng.random() < 0.01:
                    world.note("operator killed")
                    operator.restart()
        if rng.random() < 0.02:
            self._answer()
        wait = TICK_MS if chaos or any(p.alive for p in self.processes) else TICK_MS * 8
        world.advance(rng.choice((TICK_MS, TICK_MS, TICK_MS * 4)) if chaos else wait)
        self._watch()
        self.checks.every()

    def _watch(self) -> None:
        """What a watch would tell: something changed, look soon. Sometimes it does not tell."""
        world = self.world
        state = (
            tuple((p.uid, p.phase, p.state, p.deletion) for p in world.pods.values()),
            world.run["generation"] if world.run else None,
            tuple(bool(r["response"]) for r in world.requests.values()),
        )
        if state != getattr(self, "_last", None) and world.rng.random() < 0.9:
            for operator in self.operators:
                operator.wake = world.now
        self._last = state

    def _answer(self) -> None:
        """A person looks outside, and answers one open question."""
        world = self.world
        open_ = [r for r in world.requests.values() if r["response"] is None and r["state"] == "Open"]
        if open_:
            request = world.rng.choice(open_)
            decision = "done" if world.effects[request["key"]] else "again"
            request["response"] = {"decision": decision, "by": "jane", "arguments_digest": request["digest"]}
            world.note(f"answered {request['key']}: {decision}")

    def _heal(self) -> None:
        world = self.world
        world.note("everything heals")
        world.store_up, world.quota_full = True, False
        for node in world.nodes.values():
            node.mend()
        for process in self.processes:
            process.paused = False
        if world.run is not None and world.run["spec"].get("desiredState") == "Suspended":
            world.set_spec(desiredState="Running")

    # --- events

    def pod(self) -> Pod | None:
        pods = list(self.world.pods.values())
        return self.world.rng.choice(pods) if pods else None

    def node(self) -> Node:
        return self.world.rng.choice(list(self.world.nodes.values()))

    def busy_node(self) -> Node:
        """Mostly the node of a live process."""
        process = self.live()
        if process is not None and self.world.rng.random() < 0.8:
            return self.world.nodes[process.pod.node]
        return self.node()

    def _mend(self) -> None:
        """One broken thing heals."""
        world = self.world
        mends: list[Callable[[], None]] = []
        for node in world.nodes.values():
            # A node stays away for minutes as often as for seconds: detection, toleration and patience must pass.
            if not (node.up and node.connected and node.exists) and world.rng.random() < NODE_MENDS:
                mends.append(node.mend)
        if not world.store_up:
            mends.append(lambda: setattr(world, "store_up", True))
        if world.quota_full:
            mends.append(lambda: setattr(world, "quota_full", False))
        frozen = [p for p in self.processes if p.paused and p.alive]
        if frozen and world.rng.random() < NODE_MENDS * 2:
            mends.append(lambda: setattr(frozen[0], "paused", False))
        if mends:
            world.rng.choice(mends)()

    def live(self) -> Process | None:
        alive = [p for p in self.processes if p.alive]
        return self.world.rng.choice(alive) if alive else None


def _kill(sim: Simulation) -> None:
    if process := sim.live():
        process.die(137, "kill -9")


def _oom(sim: Simulation) -> None:
    if process := sim.live():
        process.die(137, "oom", container_reason="OOMKilled")


def _crash(sim: Simulation) -> None:
    if process := sim.live():
        process.die(1, "Traceback")


def _pause(sim: Simulation) -> None:
    if process := sim.live():
        process.paused = True
        sim.world.note(f"paused {process.pod.uid}")


def _delete(sim: Simulation) -> None:
    if pod := sim.pod():
        sim.world.note(f"stranger deletes {pod.name}")
        sim.world.delete_pod(pod.name, pod.uid)


def _force_delete(sim: Simulation) -> None:
    if pod := sim.pod():
        sim.world.note(f"stranger force-deletes {pod.name}")
        sim.world.force_delete(pod)


def _evict(sim: Simulation) -> None:
    if (pod := sim.pod()) and pod.deletion is None:
        pod.disrupt("EvictionByEvictionAPI")
        sim.world.delete_pod(pod.name, pod.uid)


def _power_off(sim: Simulation) -> None:
    node = sim.busy_node()
    node.up = False
    sim.world.note(f"node {node.name} has no power")


def _partition(sim: Simulation) -> None:
    node = sim.busy_node()
    node.connected = False
    sim.world.note(f"node {node.name} does not reach the API server")


def _delete_node(sim: Simulation) -> None:
    node = sim.busy_node()
    node.exists = False
    sim.world.note(f"node {node.name} deleted")


def _store(sim: Simulation) -> None:
    sim.world.store_up = False
    sim.world.note("the store is away")


def _freeze_and_take_away(sim: Simulation) -> None:
    """A process paused between intent and effect, its pod gone without a trace: a death that was none."""
    for process in sim.processes:
        if process.alive and process.in_body is not None and not process.effect_done:
            process.paused = True
            sim.world.note(f"froze {process.pod.uid} before its effect")
            sim.world.force_delete(process.pod)
            return


def _hidden_end(sim: Simulation) -> None:
    """The node reaches the store and not the API server while the agent goes on to its end."""
    if process := sim.live():
        sim.world.nodes[process.pod.node].connected = False


def _quota(sim: Simulation) -> None:
    sim.world.quota_full = True


def _suspend(sim: Simulation) -> None:
    if sim.world.run is not None and sim.world.run["spec"].get("desiredState") != "Cancelled":
        now = sim.world.run["spec"].get("desiredState", "Running")
        sim.world.set_spec(desiredState="Suspended" if now == "Running" else "Running")
        sim.world.note(f"desiredState {sim.world.run['spec']['desiredState']}")


def _restart_operator(sim: Simulation) -> None:
    sim.world.rng.choice(sim.operators).restart()


def _delete_request(sim: Simulation) -> None:
    names = list(sim.world.requests)
    if names:
        sim.world.requests.pop(sim.world.rng.choice(names))


EVENTS: tuple[Callable[[Simulation], None], ...] = (
    _kill, _kill, _oom, _crash, _pause, _pause, _delete, _force_delete, _evict, _power_off, _partition, _delete_node,
    _store, _quota, _suspend, _restart_operator, _delete_request, _freeze_and_take_away, _freeze_and_take_away, _hidden_end,
)  # fmt: skip
