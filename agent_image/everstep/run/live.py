"""What the steps of one attempt say while they work, on its way into the run's live stream.

Never in anybody's way: text is collected for a moment, written by a task of its own, and dropped (and said to be dropped) while
the store is away. The store takes it from the live attempt only, and a refusal is how an attempt may learn that it was replaced.
"""

import asyncio
import contextlib
import contextvars
from dataclasses import dataclass
from typing import TYPE_CHECKING

from everstep import faults
from everstep.errors import EverstepError, Fenced
from everstep.ids import Owner
from everstep.journal.live import TEXT_MAX_BYTES, Kind, LiveEntry, LiveStore
from everstep.journal.records import Intent
from everstep.journal.store import ClaimAnswer
from everstep.run.history import History
from everstep.run.scope import BodyContext

if TYPE_CHECKING:
    from everstep.journal.sealing import Sealer
    from everstep.run.engine import Engine

GATHER_S = 0.05
"""The first word goes at once; what follows within this time goes together."""
BUFFER_ENTRIES = 2000
ADD_ENTRIES = 200
"""Entries in one write: keeps the script short."""
AWAY_S = 1.0
"""Before the next write while the store does not take any."""
CLOSE_S = 1.0


@dataclass(eq=False, repr=False)
class _Said:
    """Of one try."""

    key: str
    name: str
    tries: int
    length: int = 0
    dropped: bool = False


class Live:
    """Of one attempt. `owner` is who claimed it; `sealer` where the run is encrypted."""

    def __init__(self, engine: "Engine", owner: Owner, sealer: "Sealer | None" = None) -> None:
        self._engine = engine
        self._owner = owner
        self._sealer = sealer
        self._store = engine.store if isinstance(engine.store, LiveStore) else None
        self._buffer: list[LiveEntry] = []
        self._tries: dict[tuple[str, int], _Said] = {}
        self._flusher: asyncio.Task[None] | None = None
        self._over = False
        self._writing = asyncio.Lock()

    # --- what is said -------------------------------------------------------------------------------------------

    def say(self, body: BodyContext, text: str) -> None:
        """What a body says, from any thread."""
        if text and self._store is not None and not self._over:
            body.spoke = True
            with contextlib.suppress(RuntimeError):  # a thread that was left behind, and the loop is closed
                self._engine.loop.call_soon_threadsafe(self._say, body, text, context=contextvars.Context())

    def _say(self, body: BodyContext, text: str) -> None:
        said = self._tries.get((body.key, body.tries))
        if said is None:
            said = self._tries[body.key, body.tries] = _Said(body.key, body.step, body.tries)
            self._put(self._entry("begin", said))
        while text:
            part = _head(text)
            text = text[len(part) :]
            self._put(self._entry("text", said)._replace(text=part))
            said.length += len(part)

    def ended(self, body: BodyContext, *, well: bool) -> None:
        """A body is over: what it said counts, or does not."""
        if body.spoke:
            # After what it said last, which may still be on its way from a thread.
            self._engine.loop.call_soon_threadsafe(self._end, body, well, context=contextvars.Context())

    def _end(self, body: BodyContext, well: bool) -> None:
        said = self._tries.pop((body.key, body.tries), None)
        if said is not None:
            self._put(self._entry("end" if well else "abandoned", said))

    def _entry(self, kind: Kind, said: _Said) -> LiveEntry:
        config = self._engine.config
        now = int(self._engine.clock.now_epoch_ms())
        return LiveEntry(kind, said.key, said.name, config.attempt, said.tries, said.length, time=now)

    # --- writing ------------------------------------------------------------------------------------------------

    async def open(self, history: History) -> None:
        """Say of steps that were in flight in a lost attempt that their words do not count. Nothing if nothing was ever said."""
        if self._store is None:
            return
        dead = [past.intent for past in history.past.values() if past.outcome is None and past.intent is not None]
        lost = [intent for intent in dead if intent.attempt < self._engine.config.attempt]
        try:
            if not lost or not await self._store.live_read(self._engine.config.journal_id, 0, 1):
                return
        except EverstepError:
            return
        for intent in lost:
            self._put(self._abandoned(intent))

    def _abandoned(self, intent: Intent) -> LiveEntry:
        now = int(self._engine.clock.now_epoch_ms())
        return LiveEntry("abandoned", intent.key, intent.name, intent.attempt, intent.tries, time=now)

    def _put(self, entry: LiveEntry) -> None:
        if len(self._buffer) >= BUFFER_ENTRIES:
            if self._buffer[-1].kind != "dropped":
                self._buffer.append(entry._replace(kind="dropped", text=""))
            return
        before = self._buffer[-1] if self._buffer else None
        if before is not None and _follows(before, entry):
            self._buffer[-1] = before._replace(text=before.text + entry.text)
        else:
            self._buffer.append(entry)
        if self._flusher is None and not self._over:
            self._flusher = self._engine.lane.task(self._flush(), "live stream")

    async def _flush(self) -> None:
        try:
            while self._buffer and not self._over:
                there = await self._write()
                await asyncio.sleep(GATHER_S if there else AWAY_S)
        finally:
            self._flusher = None

    async def _write(self) -> bool:
        """False: the store is away."""
        async with self._writing:  # one after the other, so that words stay in order
            return await self._write_batch()

    async def _write_batch(self) -> bool:
        if self._store is None or not self._buffer:
            return True
        batch, self._buffer = self._buffer[:ADD_ENTRIES], self._buffer[ADD_ENTRIES:]
        config = self._engine.config
        try:
            reply = await self._store.live_add(
                config.journal_id, config.attempt, self._owner, [self._to_bytes(entry) for entry in batch]
            )
        except EverstepError as e:
            self._engine.log.debug("the live stream lost %d entries: %s", len(batch), e)
            self._buffer.insert(0, batch[0]._replace(kind="dropped", text=""))
            return False
        if reply.answer is not ClaimAnswer.OK:
            self._over = True
            self._engine.stop(Fenced(f"attempt {reply.attempt} has replaced attempt {config.attempt}", reply.attempt))
            return True
        faults.reach("after_live")
        return True

    def _to_bytes(self, entry: LiveEntry) -> bytes:
        if self._sealer is not None and entry.text:
            entry = entry._replace(text=self._sealer.seal_text(entry.text))
        return entry.to_bytes()

    async def close(self) -> None:
        """Write what is left, for a bounded time."""
        if self._buffer and not self._over:
            try:
                async with asyncio.timeout(CLOSE_S):
                    while self._buffer and not self._over and await self._write():
                        pass
            except TimeoutError:
                pass
        self._over = True


def _follows(before: LiveEntry, entry: LiveEntry) -> bool:
    """Whether an entry's text simply goes on."""
    if not (before.kind == entry.kind == "text" and (before.key, before.tries) == (entry.key, entry.tries)):
        return False
    return len((before.text + entry.text).encode("utf-8", "replace")) <= TEXT_MAX_BYTES


def _head(text: str) -> str:
    """As much of it as one entry takes."""
    if len(text) <= TEXT_MAX_BYTES // 4:
        return text
    return text.encode("utf-8", "replace")[:TEXT_MAX_BYTES].decode("utf-8", "ignore") or text[:1]
