"""The live stream of a run: what steps say while they work. Beside the journal, never part of it.

A model's tokens are worth seeing before the step has its result, and worth nothing after it. So they go to a capped stream of
their own, which proves nothing, is lost without harm, and is never read by agent code. An entry is a JSON object

    kind      text       `text` continues what this try has said; `offset` is how many characters it had said before
              begin      a try said its first word
              end        the try ended well; what it said is what the journal has
              abandoned  the try is dead (its process was lost, it failed, it was cancelled): what it said does not count
              dropped    the store was away or the step too fast: `offset` characters and more are missing here
    key       step key
    name      step name
    attempt   the attempt whose step it is. An entry is taken from the live attempt only, so this is who wrote it, too, except for
              `abandoned`: the next attempt says it of a lost one
    tries     number of the try within the step
    offset    characters said before this entry
    text      what was said; at most TEXT_MAX_BYTES. Of an encrypted run: `Sealer.seal_text` of it
    time      epoch milliseconds

The store gives each entry a `position`, 1, 2, 3 …, without gaps. The newest CAP_ENTRIES are kept. Reading from position n + 1
goes on exactly after n; whoever comes too late is told what is gone (`gap`, made by the reader).
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from everstep.ids import Attempt, JournalId, Owner
from everstep.journal.store import ClaimReply

CAP_ENTRIES = 10_000
"""Per run; the store may keep a few more. A page of text is some hundred entries."""
TEXT_MAX_BYTES = 8 * 1024
PAGE_ENTRIES = 500
POLL_S = 0.2

Kind = Literal["text", "begin", "end", "abandoned", "dropped", "gap"]


class LiveEntry(NamedTuple):
    """One entry; see the module."""

    kind: Kind
    key: str = ""
    name: str = ""
    attempt: int = 0
    tries: int = 1
    offset: int = 0
    text: str = ""
    time: int = 0
    position: int = 0
    """Given by the store; 0 before. Of a `gap`: the last position that is gone."""

    def to_bytes(self) -> bytes:
        """As it is stored, without its position."""
        data = {name: value for name, value in self._asdict().items() if name != "position" and value not in ("", 0)}
        return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")

    @classmethod
    def from_bytes(cls, raw: bytes, position: int) -> "LiveEntry":
        """Whatever the store holds there: nobody proves it, so nothing in it is trusted, and nothing is refused."""
        try:
            data = json.loads(raw)
            known = {
                name: data[name]
                for name, kind in (("kind", str), ("key", str), ("name", str), ("text", str))
                if isinstance(data.get(name), kind)
            }
            known |= {
                name: data[name] for name in ("attempt", "tries", "offset", "time") if isinstance(data.get(name), int)
            }
            return cls(**{"kind": "text", **known}, position=position)
        except (ValueError, TypeError, AttributeError):
            return cls("dropped", position=position)


@runtime_checkable
class LiveStore(Protocol):
    """The part of a store that keeps live streams. All stores of Everstep have it."""

    async def live_add(self, journal: JournalId, attempt: Attempt, owner: Owner, entries: list[bytes]) -> ClaimReply:
        """Add entries if this owner still holds the attempt; FENCED or TAKEN otherwise, and nothing is added: the dead do not
        speak. Not made durable. May raise JournalUnavailable; the entries are then lost or there."""
        ...

    async def live_read(self, journal: JournalId, after: int = 0, count: int = PAGE_ENTRIES) -> list[tuple[int, bytes]]:
        """Entries after a position, oldest first."""
        ...


async def read_live(store: LiveStore, journal: JournalId, after: int = 0) -> AsyncIterator[LiveEntry]:
    """What is there after a position, once. Begins with a `gap` if entries in between were dropped by the cap."""
    while True:
        page = await store.live_read(journal, after)
        if page and page[0][0] > after + 1:
            yield LiveEntry("gap", position=page[0][0] - 1)
        for position, raw in page:
            after = position
            yield LiveEntry.from_bytes(raw, position)
        if len(page) < PAGE_ENTRIES:
            return


async def follow_live(
    store: LiveStore,
    journal: JournalId,
    after: int = 0,
    *,
    until: Callable[[], bool] = lambda: False,
    poll_s: float = POLL_S,
) -> AsyncIterator[LiveEntry]:
    """The same for ever, or until `until` says that nothing follows. Reconnect with the last position that was seen: nothing is
    lost and nothing repeated."""
    while True:
        last = until()  # asked before the read: what was written before the end is still read
        async for entry in read_live(store, journal, after):
            after = entry.position
            yield entry
        if last:
            return
        await asyncio.sleep(poll_s)
