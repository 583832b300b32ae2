"""The live stream on Redis: one capped stream per run (key `live`), fenced by the same meta as the journal."""

from everstep.ids import Attempt, JournalId, Owner, RecordHash, Seq
from everstep.journal.keys import JournalKeys
from everstep.journal.live import CAP_ENTRIES, PAGE_ENTRIES
from everstep.journal.redis_client import Reply
from everstep.journal.store import ClaimAnswer, ClaimReply, Head


class RedisLive:
    """A part of RedisStore, which has the three methods that stand here only to be named."""

    def keys(self, journal: JournalId) -> JournalKeys:
        """Of the store."""
        raise NotImplementedError

    async def _run(self, name: str, keys: list[str], arguments: list[str | bytes | int]) -> Reply:
        raise NotImplementedError

    async def _command(self, *words: str | int) -> Reply:
        raise NotImplementedError

    async def live_add(self, journal: JournalId, attempt: Attempt, owner: Owner, entries: list[bytes]) -> ClaimReply:
        """See `everstep.journal.live.LiveStore`."""
        keys = self.keys(journal)
        reply = await self._run("live_add", [keys.meta, keys.live], [attempt, owner, CAP_ENTRIES, *entries])
        word = reply[0] if isinstance(reply[0], str) else reply[0].decode()
        head = Head(Seq(int(reply[2])), RecordHash(_text(reply[3]))) if len(reply) > 3 else None
        return ClaimReply(ClaimAnswer(word), Attempt(int(reply[1])), head)

    async def live_read(self, journal: JournalId, after: int = 0, count: int = PAGE_ENTRIES) -> list[tuple[int, bytes]]:
        """See `everstep.journal.live.LiveStore`."""
        page = await self._command("XRANGE", self.keys(journal).live, str(after + 1), "+", "COUNT", count)
        return [(int(_text(entry_id).partition("-")[0]), fields.get(b"e", b"")) for entry_id, fields in page]


def _text(raw: bytes | str) -> str:
    return raw if isinstance(raw, str) else raw.decode(errors="replace")
