"""What the operator remembers of runs between two reconciles. All of it may be lost at any time: it spares work and explains,
and the next look at the cluster and the journal replaces it.

One entry per run that was seen and not yet seen to be gone; a parked run costs about a kilobyte.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from everstep.ids import JournalId
from everstep_operator.decide.model import Asked, PodView, Refusal


@dataclass(frozen=True)
class RunKey:
    """Queue key: look at the run of this name, whichever one that is."""

    namespace: str
    name: str


@dataclass(frozen=True)
class GoneKey:
    """Queue key: this very run is said to be gone; if a live GET agrees, its journal is fenced."""

    namespace: str
    name: str
    uid: JournalId


Key = RunKey | GoneKey


@dataclass
class RunMemory:
    """One run, by uid."""

    namespace: str
    name: str
    uid: JournalId
    generation: int = 0
    prepared_generation: int | None = None
    """Generation for which Prepare went through."""
    refusals: dict[Asked, Refusal] = field(default_factory=dict)
    """The last refusal per action, until it succeeds or the generation changes."""
    pods: dict[str, PodView] = field(default_factory=dict)
    """Last sight of each pod by uid, kept after the pod is gone until a later attempt has one."""
    written_version: str = ""
    """resourceVersion that our last status write made: the watch's echo of it brings nothing new."""
    resumed_attempt: int = 0
    """Newest attempt whose resume time went into the metrics."""
    summary: str = ""

    def see_generation(self, generation: int) -> None:
        """A changed spec deserves a new try of whatever was refused."""
        if generation != self.generation:
            self.generation = generation
            self.refusals.clear()

    def see_pods(self, live: Iterable[PodView]) -> tuple[PodView, ...]:
        """Merge a live LIST: returns the live pods, then those that were seen before and are not there any more."""
        now = {pod.uid: pod for pod in live}
        newest = max((pod.attempt or 0 for pod in now.values()), default=0)
        gone = {
            uid: pod if pod.gone else replace(pod, gone=True)
            for uid, pod in self.pods.items()
            if uid not in now and (pod.attempt or 0) >= newest
        }
        self.pods = now | gone
        return (*now.values(), *gone.values())

    def see_deleted_pod(self, pod: PodView) -> None:
        """The watch told of a deletion; the event carries the pod's last state, often the only proof of how it ended."""
        self.pods[pod.uid] = replace(pod, gone=True)


class Memories:
    """All runs that are known."""

    def __init__(self) -> None:
        self._by_uid: dict[JournalId, RunMemory] = {}
        self._uids: dict[RunKey, set[JournalId]] = {}

    def of(self, namespace: str, name: str, uid: JournalId) -> RunMemory:
        """The memory of this run, made if there is none."""
        memory = self._by_uid.get(uid)
        if memory is None:
            memory = self._by_uid[uid] = RunMemory(namespace, name, uid)
            self._uids.setdefault(RunKey(namespace, name), set()).add(uid)
        return memory

    def get(self, uid: JournalId) -> RunMemory | None:
        """The memory of this run, if there is one."""
        return self._by_uid.get(uid)

    def others(self, key: RunKey, uid: JournalId | None) -> list[JournalId]:
        """Runs remembered under this name that are not `uid`: they must be gone."""
        return [other for other in self._uids.get(key, ()) if other != uid]

    def forget(self, uid: JournalId) -> None:
        """The run is gone and dealt with."""
        memory = self._by_uid.pop(uid, None)
        if memory is None:
            return
        key = RunKey(memory.namespace, memory.name)
        uids = self._uids.get(key, set())
        uids.discard(uid)
        if not uids:
            self._uids.pop(key, None)

    def all(self) -> list[RunMemory]:
        """Every run that is known."""
        return list(self._by_uid.values())

    def summaries(self) -> dict[str, int]:
        """How many runs have which status.summary."""
        counts: dict[str, int] = {}
        for memory in self._by_uid.values():
            if memory.summary:
                counts[memory.summary] = counts.get(memory.summary, 0) + 1
        return counts
