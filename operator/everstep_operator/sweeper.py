"""Sweeping the journals of deleted runs, and fencing those whose deletion nobody saw.

A journal is removed only if all of this holds, checked anew each time:

    it is of this installation          its keys carry the prefix
    it is of this operator              its head carries a hash made with our key: another cluster may share the Redis and
                                        even the installation's name, but not the key Secret
    a live GET says the run is gone     404, or another uid under its name; never a LIST alone
    `deletedAt` was recorded            by the reconcile that fenced it
    … and is older than the delay       time to notice a mistaken deletion
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from everstep.clock import Clock
from everstep.errors import EverstepError
from everstep.ids import JournalId
from everstep_operator import faults
from everstep_operator.api.times import epoch_ms
from everstep_operator.cluster.client import Cluster
from everstep_operator.decide.model import JournalDown
from everstep_operator.journal_view import Journals
from everstep_operator.memory import GoneKey, Key, Memories
from everstep_operator.metrics import Metrics

PAUSE_S: Final = 0.05
"""Between two journals, so that a sweep of thousands is no burst on the API server."""

log = logging.getLogger(__name__)


class Sweeper:
    """One per operator. `enqueue` is told of journals whose run is gone without having been fenced."""

    def __init__(
        self,
        cluster: Cluster,
        journals: Journals,
        memories: Memories,
        metrics: Metrics,
        clock: Clock,
        enqueue: Callable[[Key], None],
        *,
        after_s: float,
    ) -> None:
        self._cluster, self._journals, self._memories = cluster, journals, memories
        self._metrics, self._clock, self._enqueue, self._after_s = metrics, clock, enqueue, after_s

    async def run(self, every_s: float) -> None:
        """For ever. What cannot be reached now is left to the next round."""
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.once()
            except EverstepError as e:
                log.warning("sweep: %s", e)

    async def once(self) -> int:
        """One round over all journals. Returns how many were removed. Raises JournalUnavailable."""
        removed = 0
        for journal in await self._journals.journals():
            try:
                removed += await self._one(journal)
            except EverstepError as e:
                log.warning("sweep of journal %s: %s", journal, e)
            await asyncio.sleep(PAUSE_S)
        return removed

    async def _one(self, journal: JournalId) -> bool:
        if self._memories.get(journal) is not None:
            return False  # reconciling and the resync take care of every run that is remembered
        meta = await self._journals.meta(journal)
        namespace = meta.fields.get("namespace", "") if meta else ""
        name = meta.fields.get("name", "") if meta else ""
        if not namespace or not name or not await self._is_gone(namespace, name, journal):
            return False
        seen = await self._journals.view(journal, None)
        if isinstance(seen, JournalDown):
            return False
        if seen.tampered:
            log.warning("journal %s of %s/%s is left alone: %s", journal, namespace, name, seen.tampered)
        elif not seen.deleted_at:
            self._enqueue(GoneKey(namespace, name, journal))
        elif self._is_due(seen.deleted_at):
            faults.reach("before_sweep")
            await self._journals.sweep(journal)
            self._metrics.swept.inc()
            log.info("journal %s of %s/%s, deleted at %s, is removed", journal, namespace, name, seen.deleted_at)
            return True
        return False

    def _is_due(self, deleted_at: str) -> bool:
        deleted = epoch_ms(deleted_at)
        return deleted is not None and self._clock.now_epoch_ms() - deleted >= self._after_s * 1000

    async def _is_gone(self, namespace: str, name: str, uid: JournalId) -> bool:
        """Live GET; a run that merely is not allowed to be read is not gone (Forbidden is raised)."""
        found = await self._cluster.get_run(namespace, name)
        return found is None or found["metadata"]["uid"] != uid
