"""What people and the operator tell a run: answers to uncertain steps, other budgets, and cancel.

Read before agent code starts and then about every second. Entries are proved by their MAC, count once by their id, and become
records; an answer that cannot be taken yet is held until its question is asked, or refused with a reason.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from everstep.errors import JournalUnavailable
from everstep.ids import JournalId
from everstep.journal.chain import Chain
from everstep.journal.inbox import BudgetBody, CancelBody, SettleBody, read_body
from everstep.journal.records import Cancel
from everstep.journal.store import InboxEntry, Store

if TYPE_CHECKING:
    from everstep.run.driver import StepDriver
    from everstep.run.engine import Engine

log = logging.getLogger("everstep.run")


class Inbox:
    """Of one attempt. `position` is the last entry that was read, asked by the store when the run parks."""

    def __init__(self, store: Store, journal_id: JournalId, chain: Chain, known_ids: set[str]) -> None:
        self._store = store
        self._journal_id = journal_id
        self._chain = chain
        self._known = known_ids
        self._held: dict[str, list[tuple[str, SettleBody]]] = {}
        self._questions: dict[str, StepDriver] = {}
        self._cancels: list[tuple[str, CancelBody]] = []
        self._raises: list[tuple[str, BudgetBody]] = []
        self._engine: Engine | None = None
        self._cancelled = False
        self.position = ""

    def attach(self, engine: "Engine") -> None:
        self._engine = engine
        self._cancelled = engine.history.cancel is not None

    async def read(self) -> None:
        """Take in what is new. Raises JournalUnavailable."""
        for entry in await self._store.inbox_read(self._journal_id, self.position):
            self._take(entry)
            self.position = entry.position
        self.apply()

    async def poll(self) -> None:
        """Until the process ends: read about every `inbox_poll_s`."""
        assert self._engine is not None
        while True:
            await asyncio.sleep(self._engine.config.inbox_poll_s)
            if self._engine.parking:
                continue
            try:
                await self.read()
            except JournalUnavailable as e:
                log.debug("the inbox could not be read: %s", e)

    def go_live(self) -> None:
        """The recorded history was consumed: what was read meanwhile may be applied."""
        self.apply()

    def holds(self, key: str) -> bool:
        """An answer for this step was read already."""
        return bool(self._held.get(key))

    def offer(self, driver: "StepDriver") -> None:
        """A question is asked: apply an answer that came before, or keep the question for one that comes."""
        self._questions[driver.call.key] = driver
        self.apply()

    def apply(self) -> None:
        """Turn what was read into records, as far as it has its turn."""
        engine = self._engine
        if engine is None or not engine.takes_answers:
            return
        try:
            self._apply_cancels(engine)
            raises, self._raises = self._raises, []
            for entry_id, raised in raises:
                engine.gate.raised(entry_id, raised)
            for key in list(self._questions):
                self._apply_answers(key)
        except BaseException as e:
            engine.stop(e)

    def _apply_cancels(self, engine: "Engine") -> None:
        cancels, self._cancels = self._cancels, []
        for entry_id, body in cancels:
            if not self._cancelled:
                self._cancelled = True
                engine.delivery.add(engine.put(Cancel, by=body.by, reason=body.reason, inbox=entry_id))

    def _apply_answers(self, key: str) -> None:
        driver = self._questions[key]
        answers = self._held.get(key, [])
        while answers and driver.question is not None and not driver.question.answer.done():
            entry_id, body = answers.pop(0)
            driver.settle(body, entry_id)
        if driver.question is None or driver.question.answer.done():
            del self._questions[key]

    def _take(self, entry: InboxEntry) -> None:
        if entry.id in self._known:
            return
        self._known.add(entry.id)
        body = read_body(self._chain, entry)
        if body is None:
            log.warning("inbox entry %s is forged or of an unknown kind; it is skipped", entry.id)
        elif isinstance(body, CancelBody):
            self._cancels.append((entry.id, body))
        elif isinstance(body, BudgetBody):
            self._raises.append((entry.id, body))
        else:
            self._held.setdefault(body.key, []).append((entry.id, body))
