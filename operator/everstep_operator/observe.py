"""Observing one run, live: GET the run, LIST its pods, read its journal, LIST its questions. Nothing comes from a cache.

The order matters: pods before the journal. A pod that is seen terminal wrote its last record before, so the journal that is
read afterwards holds it; the other way round a finished run could look like a crashed one.
"""

import asyncio

from everstep.ids import JournalId, RecordHash, RunName, Seq
from everstep.journal.store import Head
from everstep_operator import faults
from everstep_operator.api.pod import pod_name
from everstep_operator.api.words import LABEL_RUN_UID
from everstep_operator.cluster import views
from everstep_operator.cluster.client import Cluster
from everstep_operator.decide.model import JournalView, NodeView, Observed, PodView, RequestView, RunView
from everstep_operator.errors import Forbidden
from everstep_operator.journal_view import Journals
from everstep_operator.memory import GoneKey, Memories, RunKey, RunMemory
from everstep_operator.store_check import StoreCheck


class Observer:
    """See the module. Raises ClusterUnavailable and ClusterRefused; an unreachable journal is part of what is observed."""

    def __init__(self, cluster: Cluster, journals: Journals, store: StoreCheck, memories: Memories) -> None:
        self._cluster, self._journals, self._store, self._memories = cluster, journals, store, memories

    async def run(self, key: RunKey) -> RunView | None:
        """Live GET of the run."""
        found = await self._cluster.get_run(key.namespace, key.name)
        return None if found is None else views.run_view(found)

    async def observe(self, run: RunView) -> Observed:
        """Everything about a run that exists."""
        memory = self._memories.of(run.namespace, run.name, run.uid)
        memory.see_generation(run.generation)
        pods = await self._pods(run.namespace, run.uid, memory, open_pod_name(run))
        anchor = _anchor(run)
        journal = await self._journals.view(run.uid, anchor)
        asks = run.status.waiting is not None or (isinstance(journal, JournalView) and bool(journal.requests))
        return Observed(
            namespace=run.namespace,
            name=run.name,
            uid=run.uid,
            run=run,
            pods=pods,
            journal=journal,
            requests=await self._requests(run.namespace, run.uid) if asks else (),
            store=self._store.health,
            prepared_generation=memory.prepared_generation,
            refusals=tuple(memory.refusals.values()),
        )

    async def observe_gone(self, key: GoneKey) -> Observed:
        """Everything about a run whose object does not exist any more."""
        memory = self._memories.of(key.namespace, key.name, key.uid)
        pods = await self._pods(key.namespace, key.uid, memory)
        journal = await self._journals.view(key.uid, None)
        return Observed(
            namespace=key.namespace,
            name=RunName(key.name),
            uid=key.uid,
            run=None,
            pods=pods,
            journal=journal,
            store=self._store.health,
        )

    async def _pods(self, namespace: str, uid: JournalId, memory: RunMemory, expected: str = "") -> tuple[PodView, ...]:
        """The run's pods. One that should be there and is missing in the LIST is asked for by name before it counts as gone:
        a list served from a cache that lags must not cost a healthy attempt (C29)."""
        found = await self._cluster.list_pods(namespace, f"{LABEL_RUN_UID}={uid}")
        if expected and all(pod["metadata"]["name"] != expected for pod in found):
            missing = await self._cluster.get_pod(namespace, expected)
            if missing is not None and (missing["metadata"].get("labels") or {}).get(LABEL_RUN_UID) == uid:
                found.append(missing)
        live = [views.pod_view(pod, uid) for pod in found]
        doubtful = {pod.node for pod in live if views.in_doubt(pod)}
        nodes = dict(zip(doubtful, await asyncio.gather(*map(self._node, doubtful)), strict=True))
        pods = memory.see_pods(views.with_node(pod, nodes[pod.node]) if views.in_doubt(pod) else pod for pod in live)
        if any(pod.gone or pod.phase in ("Failed", "Succeeded") for pod in pods):
            faults.reach("after_pod_gone")
        return pods

    async def _node(self, name: str) -> NodeView | None:
        try:
            return views.node_view(await self._cluster.get_node(name))
        except Forbidden:
            return None  # serving named namespaces without the cluster-wide right: the pod alone must tell

    async def _requests(self, namespace: str, uid: JournalId) -> tuple[RequestView, ...]:
        found = await self._cluster.list_requests(namespace, f"{LABEL_RUN_UID}={uid}")
        return tuple(views.request_view(request) for request in found)


def open_pod_name(run: RunView) -> str:
    """The pod of the newest attempt while that attempt has not ended; "" otherwise."""
    attempts = run.status.attempts
    newest = max(attempts, key=lambda a: a.number, default=None)
    if newest is None or newest.class_ or newest.end_time:
        return ""
    return pod_name(run.name, newest.number)


def _anchor(run: RunView) -> Head | None:
    checkpoint = run.status.checkpoint
    if checkpoint is None or not checkpoint.hash:
        return None
    return Head(Seq(checkpoint.seq), RecordHash(checkpoint.hash))
