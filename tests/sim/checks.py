"""What must hold after every single event, and in the end."""

from everstep.ids import Attempt
from everstep.journal.records import Finished
from everstep_operator.decide.model import ContainerState, Observed
from tests.sim.agent import STEPS
from tests.sim.world import DETECTION_MS, UID, Pod, World

NODE_LOSS_AFTER_MS = 60_000
AT_MOST_ONCE = tuple(key for key, effect in STEPS if effect == "at_most_once")


class Broken(AssertionError):
    """A promise does not hold."""


class Checks:
    """Watches one world."""

    def __init__(self, world: World, operators: int) -> None:
        self.world, self.operators = world, operators
        self.attempt = self.anchor = 0
        self.finished = ""
        self.made: dict[int, list[Pod]] = {}
        self.known: set[str] = set()
        self._checked = 0
        world.before_create = self.before_create

    def before_create(self, attempt: Attempt, seen: Observed) -> None:
        """A pod is about to be made."""
        world = self.world
        have = world.store.journals_by_id.get(UID)
        self.hold(have is not None and have.attempt >= attempt, f"pod {attempt} before its fence")
        status = (world.run or {}).get("status") or {}
        self.hold(status.get("attempt", 0) >= attempt, f"pod {attempt} before its bump")
        if have is not None and have.attempt == attempt:
            for pod in world.pods.values():
                self.hold(pod.attempt == attempt or self._replaceable(pod), f"{pod.name} replaced while it may live")
            kind = world.decoded(have.records[-1]).kind if have.records else ""
            # A second operator may have made and finished this very attempt since the first one's fence; the claim refuses.
            self.hold(kind != "finished" or self.operators > 1, f"pod {attempt} although the run had finished")

    def _replaceable(self, pod: Pod) -> bool:
        """By the truth: terminal, or out of reach for long enough."""
        world = self.world
        if self.operators > 1 and pod.process is not None and not pod.process.claimed:
            return True  # made late by an operator that was overtaken; the fence is past it, it can never claim
        if pod.state is ContainerState.TERMINATED or pod.phase in ("Failed", "Succeeded"):
            return True
        node = world.nodes.get(pod.node)
        silent = node.silent_since if node is not None else None
        if silent is not None and world.now - silent >= DETECTION_MS + NODE_LOSS_AFTER_MS:
            return True
        return pod.deletion is not None and world.now >= pod.deletion + NODE_LOSS_AFTER_MS

    def every(self) -> None:
        """After each event."""
        self._pods()
        self._journal()
        self._status()
        self._effects()

    def _pods(self) -> None:
        for pod in self.world.pods.values():
            if pod.uid in self.known:
                continue
            self.known.add(pod.uid)
            earlier = self.made.setdefault(pod.attempt, [])
            claimed = [p.name for p in earlier if p.process is not None and p.process.claimed]
            # A second operator may look before the first one's pod came and went, and create after: the claim then refuses it.
            overtaken = self.operators > 1
            self.hold(not claimed or overtaken, f"a second pod for attempt {pod.attempt}, whose first had claimed")
            earlier.append(pod)
        have = self.world.store.journals_by_id.get(UID)
        if have is None:
            return
        pods = [p for made in self.made.values() for p in made]
        writers = [p for p in pods if p.process and p.process.alive and p.process.owner == have.owner]
        self.hold(len(writers) <= 1, "two processes hold the fence")

    def _journal(self) -> None:
        have = self.world.store.journals_by_id.get(UID)
        if have is None:
            return
        if len(have.records) == self._checked:
            return
        self._checked = len(have.records)
        records = [self.world.decoded(r) for r in have.records]
        self.hold([r.seq for r in records] == list(range(1, len(records) + 1)), "a gap in the journal")
        numbers = [r.attempt for r in records]
        self.hold(numbers == sorted(numbers), "an old attempt wrote after a new one")
        results = [
            r.key for r in records if r.kind in ("result", "fired") or (r.kind == "settled" and r.decision != "again")
        ]
        self.hold(len(results) == len(set(results)), f"two outcomes for a step: {results}")
        ends = [r.seq for r in records if r.kind == "finished"]
        self.hold(not ends or ends == [len(records)], "a record after the end")

    def _status(self) -> None:
        status = (self.world.run or {}).get("status") or {}
        attempt, anchor = status.get("attempt", 0), (status.get("checkpoint") or {}).get("seq", 0)
        self.hold(attempt >= self.attempt, f"attempt went back from {self.attempt} to {attempt}")
        self.hold(anchor >= self.anchor, f"the anchor went back from {self.anchor} to {anchor}")
        self.attempt, self.anchor = attempt, anchor
        word = f"{status.get('summary')}/{status.get('reason')}"
        over = any(c["type"] == "Finished" and c["status"] == "True" for c in status.get("conditions") or [])
        if self.finished:
            self.hold(word == self.finished, f"the end changed from {self.finished} to {word}")
        if over:
            self.finished = word

    def _effects(self) -> None:
        for key in AT_MOST_ONCE:
            done, allowed = self.world.effects[key], 1 + self.world.licences[key]
            self.hold(done <= allowed, f"at_most_once step {key} happened {done} times, {allowed} allowed")
        for key, count in self.world.effects.items():
            self.hold(count <= self.world.intents_run[key], f"step {key} happened without an intent")

    def end(self, allowed: frozenset[str]) -> None:
        """After everything has healed and rested."""
        status = (self.world.run or {}).get("status") or {}
        word = f"{status.get('summary')}/{status.get('reason')}"
        self.hold(self.finished in allowed, f"the run ended as {word}: {status}")
        have = self.world.store.journals_by_id.get(UID)
        last = self.world.decoded(have.records[-1]) if have and have.records else None
        outcome = last.outcome if isinstance(last, Finished) else ""
        self.hold(not outcome or word.lower().startswith(outcome), f"the journal says {outcome}, the status {word}")
        self.hold(bool(outcome) or self.finished != "Succeeded/Succeeded", "success without a record")
        left = [p.name for p in self.world.pods.values()]
        self.hold(not left, f"pods left: {left}")
        for key, effect in STEPS:
            if effect != "timer" and word == "Succeeded/Succeeded":
                self.hold(self.world.effects[key] >= 1, f"step {key} never happened")
        for name, request in self.world.requests.items():
            self.hold(request["state"] in ("Applied", "Stale"), f"question {name} left {request['state']}")
        generation = (self.world.run or {}).get("generation")
        stale = [c["type"] for c in status["conditions"] if c["observedGeneration"] != generation]
        self.hold(not stale, f"stale conditions: {stale}")

    def hold(self, holds: bool, what: str) -> None:
        if not holds:
            tail = "\n".join(self.world.log[-60:])
            raise Broken(f"{what}\n{tail}")
