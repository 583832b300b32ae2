"""Reconciling: observe → decide → act, turn by turn, and what feeds it: watch events, the resync, the look-again timers.

A reconcile starts with live reads, so nothing that an event said is trusted; an event only says which run to look at. Correct
with any number of operators at once: etcd's counter, the journal's fence and the pod's name keep them from making two attempts.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from everstep.clock import Clock
from everstep.errors import EverstepError, RetryableError
from everstep.ids import EpochMs, JournalId
from everstep_operator import faults
from everstep_operator.act import Actor, Outcome
from everstep_operator.api.times import epoch_ms
from everstep_operator.api.words import LABEL_RUN, LABEL_RUN_UID, RUN_KIND
from everstep_operator.cluster import views
from everstep_operator.cluster.client import Cluster
from everstep_operator.decide import decide
from everstep_operator.decide.model import TURNS_MAX, Decision, JournalView, Observed, Rules, RunView
from everstep_operator.errors import ClusterUnavailable
from everstep_operator.memory import GoneKey, Key, Memories, RunKey, RunMemory
from everstep_operator.metrics import Metrics
from everstep_operator.observe import Observer
from everstep_operator.queue import WorkQueue

Json = dict[str, Any]  # Any: the API server's JSON
RESYNC_RETRY_S: Final = 15.0
"""After a listing that failed."""

log = logging.getLogger(__name__)


class NoRest(RetryableError):
    """A run asked for more turns than the longest honest chain needs: somebody writes against us, or there is a loop."""


class Reconciler:
    """Reconciles one key."""

    def __init__(
        self,
        observer: Observer,
        actor: Actor,
        memories: Memories,
        metrics: Metrics,
        rules: Rules,
        clock: Clock,
        enqueue: Callable[[Key], None],
    ) -> None:
        self._observer, self._actor, self._memories, self._metrics = observer, actor, memories, metrics
        self._rules, self._clock, self._enqueue = rules, clock, enqueue

    async def reconcile(self, key: Key) -> float | None:
        """Bring one run as far as it goes now. Returns seconds until it must be looked at again, None for never.
        Raises what observing and acting raise; the queue then retries with back-off."""
        started = self._clock.monotonic_s()
        try:
            again = await (self._run(key) if isinstance(key, RunKey) else self._gone(key))
        except Exception:
            self._metrics.reconciles.labels("error").inc()
            raise
        self._metrics.reconciles.labels("ok").inc()
        self._metrics.reconcile_s.observe(self._clock.monotonic_s() - started)
        return again

    async def _run(self, key: RunKey) -> float | None:
        for _ in range(TURNS_MAX):
            faults.reach("before_observe")
            run = await self._observer.run(key)
            self._report_gone(key, run)
            if run is None or self._is_anothers(run):
                return None
            seen = await self._observer.observe(run)
            faults.reach("after_observe")
            memory = self._memories.of(run.namespace, run.name, run.uid)
            decision, outcome = await self._turn(seen, memory)
            self._measure_resume(seen, memory)
            if outcome is Outcome.DONE and not decision.again:
                return self._pause(decision.look_again_epoch_ms)
        raise NoRest(f"{key.namespace}/{key.name}: no rest after {TURNS_MAX} turns")

    async def _gone(self, key: GoneKey) -> float | None:
        """A run is said to be gone. Only a live GET decides; then its journal is fenced at once, so that a process that lives
        on (an orphaned pod, a lost node) can write no more."""
        for _ in range(TURNS_MAX):
            run = await self._observer.run(RunKey(key.namespace, key.name))
            if run is not None and run.uid == key.uid:
                return None
            seen = await self._observer.observe_gone(key)
            memory = self._memories.of(key.namespace, key.name, key.uid)
            decision, outcome = await self._turn(seen, memory)
            if outcome is Outcome.DONE and not decision.again:
                pause = self._pause(decision.look_again_epoch_ms)
                if isinstance(seen.journal, JournalView) and pause is None:
                    self._memories.forget(key.uid)
                return pause
        raise NoRest(f"{key.namespace}/{key.name} ({key.uid}, deleted): no rest after {TURNS_MAX} turns")

    async def _turn(self, seen: Observed, memory: RunMemory) -> tuple[Decision, Outcome]:
        decision = decide(seen, rules=self._rules, now_epoch_ms=self._clock.now_epoch_ms())
        log.debug("%s/%s: %s", seen.namespace, seen.name, decision)
        memory.summary = decision.summary or memory.summary
        return decision, await self._actor.act(seen, decision, memory)

    def _is_anothers(self, run: RunView) -> bool:
        """Whether another installation serves this run: its first status write, which only one can win, named its journal. Two
        operators that watch the same namespaces with different stores must not both run it."""
        named = run.status.checkpoint.key if run.status.checkpoint else ""
        if not named or named == self._rules.journal_key_format.format(uid=run.uid):
            return False
        log.info("%s/%s is served by another installation (journal %s); left alone", run.namespace, run.name, named)
        self._memories.forget(run.uid)
        return True

    def _report_gone(self, key: RunKey, run: RunView | None) -> None:
        """Runs of this name that we knew and that are not there any more (the name may have a new run)."""
        for uid in self._memories.others(key, run.uid if run else None):
            self._enqueue(GoneKey(key.namespace, key.name, uid))

    def _pause(self, at: EpochMs | None) -> float | None:
        return None if at is None else max(0.0, (at - self._clock.now_epoch_ms()) / 1000)

    def _measure_resume(self, seen: Observed, memory: RunMemory) -> None:
        """Seconds from a loss to the end of the next attempt's replay, once per attempt."""
        progress = seen.journal.progress if isinstance(seen.journal, JournalView) else None
        if progress is None or progress.resumed_epoch_ms is None or seen.run is None:
            return
        if progress.attempt <= memory.resumed_attempt:
            return
        memory.resumed_attempt = progress.attempt
        before = next((a for a in seen.run.status.attempts if a.number == progress.attempt - 1), None)
        ended = epoch_ms(before.end_time) if before else None
        if ended is not None and before is not None and before.class_ not in ("Parked", "Finished", "Stopped"):
            self._metrics.loss_to_resume_s.observe(max(0.0, (progress.resumed_epoch_ms - ended) / 1000))


class Intake:
    """Turns what the watches show into keys (the Sink of the handlers). Never blocks, never raises."""

    def __init__(self, queue: WorkQueue[Key], memories: Memories) -> None:
        self._queue, self._memories = queue, memories

    def saw_run(self, run: Json, *, gone: bool, listed: bool) -> None:
        """An AgentRun. The echo of our own last status write is skipped: it tells nothing new."""
        meta = run.get("metadata") or {}
        namespace, name, uid = meta.get("namespace"), meta.get("name"), meta.get("uid")
        if not (namespace and name and uid):
            return
        if gone:
            self._queue.add(GoneKey(namespace, name, JournalId(uid)))
            return
        memory = self._memories.get(JournalId(uid))
        version = meta.get("resourceVersion")
        if memory is not None and version and memory.written_version == version:
            return
        self._queue.add(RunKey(namespace, name), urgent=not listed)

    def saw_pod(self, pod: Json, *, gone: bool, listed: bool) -> None:
        """A pod with our label. Its last state is kept when it goes: it may hold the only proof of how the process ended."""
        meta = pod.get("metadata") or {}
        labels = meta.get("labels") or {}
        namespace, uid = meta.get("namespace"), JournalId(labels.get(LABEL_RUN_UID) or "")
        name = _owner_name(meta) or labels.get(LABEL_RUN)
        if not (namespace and name):
            return
        if gone and uid and (memory := self._memories.get(uid)) is not None:
            memory.see_deleted_pod(views.pod_view(pod, uid, gone=True))
        self._queue.add(RunKey(namespace, name), urgent=not listed)

    def saw_request(self, request: Json, *, gone: bool, listed: bool) -> None:
        """A HumanRequest: it concerns its run once somebody has answered, or has deleted it."""
        spec = request.get("spec") or {}
        namespace = (request.get("metadata") or {}).get("namespace")
        name = (spec.get("runRef") or {}).get("name")
        if namespace and name and (gone or spec.get("response")):
            self._queue.add(RunKey(namespace, name), urgent=not listed)


class Resync:
    """Looks at every run now and then, whatever the watches said: heals gaps (E22), ghosts after a 410, lost deletions."""

    def __init__(
        self, cluster: Cluster, queue: WorkQueue[Key], memories: Memories, clock: Clock, namespaces: Sequence[str]
    ) -> None:
        self._cluster, self._queue, self._memories = cluster, queue, memories
        self._clock, self._namespaces = clock, namespaces
        self._completed_s: float | None = None
        self._started_s = clock.monotonic_s()

    @property
    def done_once(self) -> bool:
        """Whether all runs have been listed since the start."""
        return self._completed_s is not None

    def age_s(self) -> float:
        """Time since the last complete listing."""
        return self._clock.monotonic_s() - (self._completed_s or self._started_s)

    async def run(self, every_s: float) -> None:
        """For ever; a listing that fails is tried again sooner."""
        while True:
            try:
                await self.once(every_s)
                pause = every_s
            except EverstepError as e:
                log.warning("resync: %s", e)
                pause = min(every_s, RESYNC_RETRY_S)
            await asyncio.sleep(pause)

    async def once(self, every_s: float) -> None:
        """List all runs. Those whose timer falls due before the next resync look after themselves; the others, and those that
        we remember and the list does not have, are looked at. The list is no verdict: each look begins with a live GET."""
        listed: set[JournalId] = set()
        async for run in self._cluster.list_runs(self._namespaces):
            listed.add(JournalId(run.uid))
            key = RunKey(run.namespace, run.name)
            if not self._queue.is_due_within(key, every_s):
                self._queue.add(key, urgent=False)
        for memory in self._memories.all():
            if memory.uid not in listed:
                self._queue.add(GoneKey(memory.namespace, memory.name, memory.uid))
        self._completed_s = self._clock.monotonic_s()


def retry_after(metrics: Metrics, key: Key, error: Exception) -> float:
    """What the queue asks after a failed reconcile: logs and counts it, and says how long the server wants to be left alone."""
    metrics.errors.labels(type(error).__name__).inc()
    where = f"{key.namespace}/{key.name}"
    if isinstance(error, EverstepError) and error.retryable:
        log.warning("%s: %s; trying again", where, error)
    else:
        log.error("%s: reconcile failed; trying again", where, exc_info=error)
    return error.retry_after_s if isinstance(error, ClusterUnavailable) else 0.0


def _owner_name(meta: Json) -> str | None:
    for owner in meta.get("ownerReferences") or []:
        if owner.get("kind") == RUN_KIND and owner.get("controller"):
            return str(owner.get("name") or "") or None
    return None
