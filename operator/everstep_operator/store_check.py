"""Keeps watch over what the journal store promises: fsync policy, eviction, role. What is found keeps new attempts from starting.

INFO is cheap, so it is asked every minute; CONFIG only when another server process answers (the store compares run_id).
"""

import asyncio
import logging
from typing import Final, Protocol, runtime_checkable

from everstep.errors import BadStore, JournalUnavailable
from everstep.journal import durability
from everstep.journal.store import DurabilityReport, Store
from everstep_operator.decide.model import StoreHealth
from everstep_operator.settings import Settings

FIRST_RETRY_S: Final = 2.0
"""Between tries while the store has not answered once."""
UNREADABLE: Final = (
    "appendfsync cannot be read (CONFIG is blocked, as on managed services): if the service keeps every write, say so with "
    "journal.durabilityDeclared: true, or choose the level that holds with journal.durability"
)

log = logging.getLogger(__name__)


@runtime_checkable
class TellsDurability(Protocol):
    """A store that can say what its confirmed writes are worth."""

    async def durability(self) -> DurabilityReport: ...


class StoreCheck:
    """`health` is what decide sees; `checked` whether the store has answered once."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store, self._settings = store, settings
        self.health = StoreHealth(problems=("the journal store has not answered yet",))
        self.checked = False

    async def run(self, every_s: float) -> None:
        """For ever."""
        while True:
            await self.refresh()
            await asyncio.sleep(every_s if self.checked else min(every_s, FIRST_RETRY_S))

    async def refresh(self) -> None:
        """Check now. A store that does not answer keeps the last word, since JournalDown tells of that; one that can never
        carry a journal becomes a problem."""
        if not isinstance(self._store, TellsDurability):
            self._set((), type(self._store).__name__)
            return
        try:
            async with asyncio.timeout(self._settings.store_timeout_s):
                report = await self._store.durability()
        except (JournalUnavailable, TimeoutError) as e:
            log.warning("the journal store could not be checked: %s", e or "no answer")
        except BadStore as e:
            self._set((str(e),), "")
        else:
            self._set(problems_of(report, self._settings), report.server)

    def _set(self, problems: tuple[str, ...], server: str) -> None:
        if not self.checked or problems != self.health.problems:
            for problem in problems:
                log.error("journal store %s: %s", server, problem)
            if not problems:
                log.info("journal store %s is fit to use", server)
        self.health, self.checked = StoreHealth(problems, server), True


def problems_of(report: DurabilityReport, settings: Settings) -> tuple[str, ...]:
    """What keeps runs from starting, each with its cure."""
    unreadable = report.level is None and settings.durability != durability.Level.REPLICATED
    if unreadable and not settings.durability_declared:
        return (*report.problems, UNREADABLE)
    return tuple(durability.judge(report, settings.durability))
