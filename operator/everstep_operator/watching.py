"""`kubectl everstep live` in the operator's pod: the live stream of a run, line by line.

    {"kind": "text", …, "position": n}   an entry of `everstep.journal.live`, its text readable
    {"alive": n}                         nothing new for ALIVE_S; n is the position reached
    {"end": {"position": n, "over": b}}  the last line. `over`: nothing follows; else only this command's time was up: ask again

Whoever reads asks again from the last position they have, so no line is lost for good and none comes twice. kubectl exec does not
end a program whose reader has gone: it learns that when it writes, so it writes now and then, and it lives for FOLLOW_S at most.
"""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from everstep.cli import inspect
from everstep.cli.exits import Exit, Refusal
from everstep.clock import Clock
from everstep.errors import JournalUnavailable
from everstep.ids import JournalId
from everstep.journal.export import Write
from everstep.journal.live import POLL_S, LiveEntry, LiveStore, read_live
from everstep.journal.sealing import Sealer
from everstep.journal.store import Head, Store

ALIVE_S = 5.0
FOLLOW_S = 600.0
LOOK_S = 1.0
"""Between two looks whether the run has ended: a read of one record."""
LINGER_S = 2.0
"""After its end an attempt still hands over the last words; then its process ends."""
AWAY_S = 60.0
"""For so long the store may be unreachable while a run is followed: as long as an attempt waits for it."""
GetSealer = Callable[[], Awaitable[Sealer | None]]


async def write_live(
    store: Store,
    get_sealer: GetSealer,
    arguments: argparse.Namespace,
    anchor: Head | None,
    write: Write,
    clock: Clock,
) -> None:
    """Write the lines. A run that has not begun is waited for where it is followed. Raises ConfigError for a journal that is not
    there, Refusal, JournalUnavailable, BrokenPipeError when nobody reads any more."""
    if not isinstance(store, LiveStore):
        raise Refusal("this store has no live streams", Exit.FAILED)
    watch = _Watch(store, JournalId(arguments.journal), str(arguments.run), anchor, clock, follow=arguments.follow)
    sealer: Sealer | None = None
    asked = False
    async for entry in watch.entries(arguments.after):
        if isinstance(entry, LiveEntry):
            if not asked:  # by now there is a journal, which tells whether the run is encrypted
                sealer, asked = await get_sealer(), True
            shown = entry if sealer is None else entry._replace(text=sealer.open_text(entry.text))
            write(_line(shown._asdict()))
        else:
            write(_line(entry))


def _line(data: dict[str, Any]) -> bytes:  # Any: JSON data
    return json.dumps(data, separators=(",", ":")).encode() + b"\n"


class _Watch:
    """Of one run, for one command."""

    def __init__(
        self, store: Store, journal: JournalId, run: str, anchor: Head | None, clock: Clock, *, follow: bool
    ) -> None:
        self._store, self._journal, self._run, self._anchor = store, journal, run, anchor
        self._clock = clock
        self._follow = follow
        self._seen = anchor is not None and anchor.seq > 0
        self._over_s: float | None = None
        """When it was seen that the run has ended."""

    async def entries(self, after: int) -> AsyncIterator[LiveEntry | dict[str, Any]]:  # Any: JSON data
        """Entries, and the other lines between and behind them."""
        clock = self._clock
        began_s = told_s = looked_s = answered_s = clock.monotonic_s()
        first = True
        while True:
            now_s = clock.monotonic_s()
            try:
                if first or now_s - looked_s >= LOOK_S:
                    looked_s, first = now_s, False
                    await self._look(now_s)
                last = not self._follow or (self._over_s is not None and now_s - self._over_s >= LINGER_S)
                assert isinstance(self._store, LiveStore)
                async for entry in read_live(self._store, self._journal, after):
                    after, told_s = entry.position, now_s
                    yield entry
                answered_s = now_s
            except JournalUnavailable:
                if not self._follow or now_s - answered_s > AWAY_S:
                    raise
                last = False
            if last or now_s - began_s > FOLLOW_S:
                yield {"end": {"position": after, "over": last}}
                return
            if now_s - told_s >= ALIVE_S:
                told_s = now_s
                yield {"alive": after}
            await asyncio.sleep(POLL_S)

    async def _look(self, now_s: float) -> None:
        """Whether it has begun, and whether it is over: its last record says so, or its journal was removed."""
        if not self._follow:
            await inspect.need_journal(self._store, self._journal, self._run, self._anchor)
            return
        if self._over_s is not None:
            return
        if await self._store.meta(self._journal) is None:
            self._over_s = now_s if self._seen else None
            return
        self._seen = True
        stored = await self._store.last(self._journal)
        if stored is not None and json.loads(stored.record).get("kind") == "finished":
            self._over_s = now_s
