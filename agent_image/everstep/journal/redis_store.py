"""The journal on Redis or Valkey: each call is one atomic script or one read. Keys are formatted in `keys` alone.

Needs core commands of Redis 7.0 or Valkey 8: EVAL(SHA), XADD, XRANGE, XREVRANGE, HSET, HMGET, HGETALL, HDEL, EXISTS, GET, SET,
SADD, SREM, SISMEMBER, SMEMBERS, UNLINK, XTRIM, SCAN, INFO; CONFIG GET once if it is allowed (see `durability`).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias, cast

from everstep.errors import BadStore
from everstep.ids import Attempt, InboxId, JournalId, Owner, RecordHash, Seq
from everstep.journal import durability
from everstep.journal.keys import JournalKeys, journal_id_of, meta_pattern
from everstep.journal.redis_client import Client, Reply, make_client, script
from everstep.journal.redis_errors import NoScript, is_of_client, translated, wrap
from everstep.journal.redis_live import RedisLive
from everstep.journal.redis_pipe import Answered, Pipe
from everstep.journal.redis_url import Mode, RedisUrl, parse_redis_url
from everstep.journal.store import (
    AppendAnswer,
    AppendReply,
    ClaimAnswer,
    ClaimReply,
    CompactAnswer,
    DurabilityReport,
    FenceAnswer,
    FenceReply,
    Head,
    InboxEntry,
    Meta,
    Sealed,
    Stored,
    check_append,
)

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster

FIRST_PAGE_RECORDS = 200
PAGE_RECORDS = 1000
PAGE_BYTES = 4 * 1024 * 1024
"""Pages adapt to the size of the records, so that no reply stalls the server or fills the pod's memory."""
SWEEP_BATCH = 500
PIPES = 16
"""Connections that appends are spread over, at most."""
RUNS_PER_PIPE = 4
"""A server reads 16 KiB of a connection before it syncs what it read from all of them: some three appends of a few KB. Fewer runs
on each connection would make more writes and reads of sockets, more of them more syncs."""
_META = ("attempt", "owner", "seq", "hash", "progress")
Entries: TypeAlias = list[tuple[bytes, dict[bytes, bytes]]]


class RedisStore(RedisLive):
    """See `everstep.journal.store.Store`. Connects at the first call."""

    def __init__(self, url: RedisUrl, *, installation: str, ca_path: str | None = None) -> None:
        self.shown = url.shown
        """Names the server in messages, without credentials."""
        self._url = url
        self._ca_path = ca_path
        self._made: Client | None = None
        self._installation = installation
        self._durability: DurabilityReport | None = None
        self._drops = False
        self._cluster = url.mode is Mode.CLUSTER
        self._lean = url.mode in (Mode.SINGLE, Mode.SOCKET) and not url.tls
        """Whether a pipe can be had without redis-py."""
        self._first_use = asyncio.Lock()
        self._pipes: dict[int, Pipe] = {}
        self._closed = False
        self._places: dict[JournalId, int] = {}
        """Which of the pipes carries a journal's appends."""
        self._piped = not self._cluster
        """Whether appends go through a pipe: not in a cluster, whose client follows moved slots."""

    @classmethod
    def from_url(cls, url: str, *, installation: str, ca_path: str | None = None) -> "RedisStore":
        """Raises BadStore for a malformed URL."""
        return cls(parse_redis_url(url), installation=installation, ca_path=ca_path)

    @property
    def client(self) -> Client:
        """redis-py's, made when it is first needed. Raises BadStore if it is not installed."""
        if self._made is None:
            try:
                self._made = make_client(self._url, self._ca_path)
            except ImportError as e:
                raise BadStore(f"a store on Redis needs the package redis: pip install redis ({e})") from e
        return self._made

    def keys(self, journal: JournalId) -> JournalKeys:
        return _keys(self._installation, journal)

    async def fence(self, journal: JournalId, attempt: Attempt, anchor: Head, fields: dict[str, str]) -> FenceReply:
        keys = self.keys(journal)
        reply = await self._run(
            "fence", [keys.meta, keys.journal], [attempt, anchor.seq, anchor.hash, *_flat(_checked(fields))]
        )
        return FenceReply(FenceAnswer(_text(reply[0])), Attempt(reply[1]), _head(reply))

    async def claim(self, journal: JournalId, attempt: Attempt, owner: Owner) -> ClaimReply:
        reply = await self._run("claim", [self.keys(journal).meta], [attempt, owner])
        return ClaimReply(ClaimAnswer(_text(reply[0])), Attempt(reply[1]), _head(reply))

    async def append(
        self,
        journal: JournalId,
        attempt: Attempt,
        owner: Owner,
        after: Head,
        records: Sequence[Sealed],
        *,
        progress: bytes | None = None,
        park_after_inbox: str | None = None,
    ) -> AppendReply:
        lease = (attempt, owner)
        keys, arguments = self._append_words(journal, lease, after, records, progress, park_after_inbox)
        if self._piped:
            with translated(self.shown):
                pipe = await self._open_pipe(journal)
            if pipe is not None:
                return _append_reply(await self._sent(pipe, keys, arguments), self.shown)
        return _append_reply(await self._run("append", keys, arguments), self.shown)

    def append_soon(
        self,
        journal: JournalId,
        attempt: Attempt,
        owner: Owner,
        after: Head,
        records: Sequence[Sealed],
        *,
        progress: bytes | None,
        answered: Callable[[Callable[[], AppendReply]], None],
    ) -> bool:
        pipe = self._pipes.get(self._place(journal))
        if pipe is None or pipe.closed:
            return False
        keys, arguments = self._append_words(journal, (attempt, owner), after, records, progress, None)
        self._send(pipe, keys, arguments, lambda reply: answered(lambda: _append_reply(reply, self.shown)))
        return True

    def _append_words(
        self,
        journal: JournalId,
        lease: tuple[Attempt, Owner],
        after: Head,
        records: Sequence[Sealed],
        progress: bytes | None,
        park_after_inbox: str | None,
    ) -> tuple[list[str], list[str | bytes | int]]:
        check_append(after, records)
        keys = self.keys(journal)
        arguments: list[str | bytes | int] = [*lease, after.seq, after.hash]
        arguments += ("0", "") if progress is None else ("1", progress)
        arguments += ("0", "") if park_after_inbox is None else ("1", park_after_inbox)
        for r in records:
            arguments += (r.record, r.prev_hash, r.hash)
        return [keys.meta, keys.journal, keys.inbox], arguments

    async def report(self, journal: JournalId, attempt: Attempt, owner: Owner, progress: bytes) -> ClaimReply:
        reply = await self._run("report", [self.keys(journal).meta], [attempt, owner, progress])
        return ClaimReply(ClaimAnswer(_text(reply[0])), Attempt(reply[1]), _head(reply))

    async def read(self, journal: JournalId, after: Seq = Seq(0), upto: Seq | None = None) -> AsyncIterator[Stored]:
        key = self.keys(journal).journal
        start, end, count = str(after + 1), "+" if upto is None else str(upto), FIRST_PAGE_RECORDS
        while upto is None or int(start.strip("(").partition("-")[0]) <= upto:
            page: Entries = await self._command("XRANGE", key, start, end, "COUNT", count)
            for entry_id, fields in page:
                yield _stored(entry_id, fields)
            if len(page) < count:
                return
            start = "(" + _text(page[-1][0])
            average = sum(len(fields.get(b"r", b"")) for _, fields in page) // len(page) + 1
            count = max(16, min(PAGE_RECORDS, PAGE_BYTES // average))

    async def meta(self, journal: JournalId) -> Meta | None:
        raw: dict[bytes, bytes] = await self._command("HGETALL", self.keys(journal).meta)
        if b"attempt" not in raw:
            return None
        head = Head(Seq(_whole(raw.get(b"seq"))), RecordHash(_text(raw.get(b"hash", b""))))
        fields = {_text(k): _text(v) for k, v in raw.items() if _text(k) not in _META}
        owner = raw.get(b"owner")
        return Meta(
            Attempt(_whole(raw[b"attempt"])),
            None if owner is None else Owner(_text(owner)),
            head,
            raw.get(b"progress"),
            fields,
        )

    async def last(self, journal: JournalId) -> Stored | None:
        page: Entries = await self._command("XREVRANGE", self.keys(journal).journal, "+", "-", "COUNT", 1)
        return _stored(*page[0]) if page else None

    async def inbox_add(self, journal: JournalId, entry: InboxEntry) -> bool:
        keys = self.keys(journal)
        return bool(await self._run("inbox_add", [keys.inbox, keys.inbox_ids], [entry.id, entry.body, entry.mac]))

    async def inbox_read(self, journal: JournalId, after: str = "") -> list[InboxEntry]:
        page: Entries = await self._command("XRANGE", self.keys(journal).inbox, str(int(after or 0) + 1), "+")
        return [
            InboxEntry(
                InboxId(_text(fields.get(b"i", b""))),
                fields.get(b"b", b""),
                _text(fields.get(b"m", b"")),
                _text(entry_id).partition("-")[0],
            )
            for entry_id, fields in page
        ]

    async def blob_put(self, journal: JournalId, digest: str, value: bytes) -> None:
        keys = self.keys(journal)
        await self._run("blob_put", [keys.blob(digest), keys.blob_ids], [digest, value])

    async def blob_get(self, journal: JournalId, digest: str) -> bytes | None:
        value: bytes | None = await self._command("GET", self.keys(journal).blob(digest))
        return value

    async def blob_ids(self, journal: JournalId) -> list[str]:
        digests: set[bytes] = await self._command("SMEMBERS", self.keys(journal).blob_ids)
        return sorted(map(_text, digests))

    async def compact(
        self,
        journal: JournalId,
        attempt: Attempt,
        owner: Owner,
        upto: Seq,
        anchor: Head,
        blobs: Sequence[str] = (),
    ) -> CompactAnswer:
        keys = self.keys(journal)
        names = [keys.meta, keys.journal, keys.blob_ids, *(keys.blob(digest) for digest in blobs)]
        reply = await self._run("compact", names, [attempt, owner, upto, anchor.seq, anchor.hash, *blobs])
        return CompactAnswer(_text(reply[0]))

    async def set_fields(self, journal: JournalId, fields: dict[str, str]) -> None:
        if fields:
            await self._run("set_fields", [self.keys(journal).meta], _flat(_checked(fields)))

    async def journals(self) -> list[JournalId]:
        with translated(self.shown):
            await self._ready()
            found = self.client.scan_iter(match=meta_pattern(self._installation), count=1000)
            return sorted({journal_id_of(_text(key)) async for key in found})

    async def sweep(self, journal: JournalId) -> None:
        """Meta goes last: a sweep that was cut short is found again."""
        keys = self.keys(journal)
        digests: set[bytes] = await self._command("SMEMBERS", keys.blob_ids)
        blobs = [keys.blob(_text(digest)) for digest in sorted(digests)]
        for at in range(0, len(blobs), SWEEP_BATCH):
            await self._command("UNLINK", *blobs[at : at + SWEEP_BATCH])
        for key in (keys.live, keys.blob_ids, keys.inbox, keys.inbox_ids, keys.journal, keys.meta):
            await self._command("UNLINK", key)

    async def durability(self) -> DurabilityReport:
        """How safely the server keeps a confirmed write; asked again only when another server process answers."""
        infos = await self._infos()
        report = self._durability
        if report is None or report.run_id != durability.identity(infos) or report.level is None:
            appendfsync = [await self._appendfsync(node) for node in infos]
            report = self._durability = durability.report(infos, appendfsync)
            self._drops = durability.drops_transactions(next(iter(infos.values()), {}), await self._default_user())
        fresh = durability.refresh(report, infos)
        return fresh._replace(problems=(*fresh.problems, durability.DROPS)) if self._drops else fresh

    async def _default_user(self) -> object:
        """What ACL GETUSER says of user default; None where it may not be asked."""
        from redis.exceptions import RedisError, ResponseError

        try:
            return await self.client.execute_command("ACL GETUSER", "default")
        except ResponseError:
            return None
        except RedisError:
            with translated(self.shown):
                raise

    async def aclose(self) -> None:
        self._closed = True
        for pipe in self._pipes.values():
            await pipe.aclose()
        if self._made is not None:
            await self._made.aclose()

    # --- the pipe -----------------------------------------------------------------------------------------------

    def _place(self, journal: JournalId) -> int:
        return self._places.setdefault(journal, len(self._places) // RUNS_PER_PIPE % PIPES)

    async def _open_pipe(self, journal: JournalId) -> Pipe | None:
        """The journal's pipe, opened (again) if need be; None where appends go the ordinary way."""
        return await self._open_at(self._place(journal))

    async def _open_at(self, place: int) -> Pipe | None:
        async with self._first_use:
            pipe = self._pipes.get(place)
            if pipe is not None and not pipe.closed:
                return pipe
            if self._closed:
                raise ConnectionError("the store was closed")
            if pipe is not None:
                del self._pipes[place]
                if not pipe.busy:  # else it closes itself
                    await pipe.aclose()
            opened = await Pipe.connect(self._url) if self._lean else await Pipe.open(cast("Redis", self.client))
            if opened is None:
                self._piped = self._lean = False
            else:
                self._pipes[place] = opened
            return opened

    async def _sent(self, pipe: Pipe, keys: list[str], arguments: list[str | bytes | int]) -> Reply:
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def answered(given: Reply) -> None:
            if not reply.done():
                reply.set_result(given)

        self._send(pipe, keys, arguments, answered)
        return await reply

    @staticmethod
    def _send(pipe: Pipe, keys: list[str], arguments: list[str | bytes | int], answered: Answered) -> None:
        """The append script, by its digest, and whole where the server does not know it yet (it answers before running it)."""
        append = script("append")

        def first(reply: Reply) -> None:
            if isinstance(reply, NoScript):
                if pipe.closed:
                    answered(reply)
                else:
                    pipe.send(("EVAL", append.text, len(keys), *keys, *arguments), answered)
                return
            if isinstance(reply, Exception):
                pipe.distrust()  # read-only, failed over, out of memory: find the way to the primary anew
            answered(reply)

        pipe.send(("EVALSHA", append.sha, len(keys), *keys, *arguments), first)

    # --- the client ----------------------------------------------------------------------------------------------

    async def _infos(self) -> "dict[str, Mapping[str, object]]":
        """INFO of each primary, by node name."""
        if self._cluster:
            client = cast("RedisCluster", self.client)
            with translated(self.shown):
                await self._ready()
                found = await client.info(target_nodes=client.PRIMARIES)
            return found if "redis_version" not in found else {"": found}
        return {"": await self._command("INFO")}

    async def _appendfsync(self, node: str) -> str | None:
        """None where CONFIG is blocked, as on most managed services."""
        from redis.exceptions import RedisError, ResponseError

        try:
            if self._cluster and node:
                client = cast("RedisCluster", self.client)
                reply = await client.config_get("appendfsync", target_nodes=client.get_node(node_name=node))
            else:
                reply = await self.client.config_get("appendfsync")
        except ResponseError:
            return None
        except RedisError:
            with translated(self.shown):
                raise
        return durability.appendfsync_of(reply)

    async def _ready(self) -> None:
        """A cluster's client learns the nodes at its first use and after an error. When several calls make it do so at once, it
        cuts their connections (redis-py 8.1), so they queue here; once it knows the nodes this costs nothing."""
        if self._cluster:
            async with self._first_use:
                await cast("RedisCluster", self.client).initialize()

    async def _lone_pipe(self) -> Pipe | None:
        """While nothing needed redis-py: the first pipe, which then carries every command, not appends alone."""
        return await self._open_at(0) if self._lean and self._made is None else None

    async def _run(self, name: str, keys: list[str], arguments: list[str | bytes | int]) -> Reply:
        try:
            await self._ready()
            pipe = await self._lone_pipe()
            return await script(name).run(pipe.ask if pipe else self.client.execute_command, keys, arguments)
        except Exception as e:
            if not is_of_client(e):
                raise
            raise wrap(e, self.shown) from e

    async def _command(self, *words: str | int) -> Reply:
        with translated(self.shown):
            await self._ready()
            parse = _PARSED.get(str(words[0]))
            if parse is not None and (pipe := await self._lone_pipe()) is not None:
                return parse(await pipe.ask(*words))
            return await self.client.execute_command(*words)


def _entries(reply: Reply) -> Entries:
    return [(entry_id, _pairs(words)) for entry_id, words in reply]


def _pairs(words: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(words[::2], words[1::2], strict=True))


_PARSED: dict[str, Callable[[Reply], Reply]] = {
    "XRANGE": _entries,
    "XREVRANGE": _entries,
    "HGETALL": _pairs,
    "GET": lambda reply: reply,
}
"""What an attempt asks, and how redis-py gives the replies."""


@lru_cache(maxsize=1024)
def _keys(installation: str, journal: JournalId) -> JournalKeys:
    return JournalKeys(installation, journal)


def _checked(fields: Mapping[str, str]) -> Mapping[str, str]:
    taken = [name for name in _META if name in fields]
    if taken:
        raise ValueError(f"meta fields {taken} belong to the scripts")
    return fields


def _flat(fields: Mapping[str, str]) -> list[str | bytes | int]:
    return [part for pair in fields.items() for part in pair]


def _append_reply(reply: Reply, shown: str) -> AppendReply:
    """Raises JournalUnavailable or BadStore for an exception in a reply's place."""
    if isinstance(reply, Exception):
        raise wrap(reply, shown) from reply
    return AppendReply(AppendAnswer(_text(reply[0])), Attempt(reply[1]), _head(reply))


def _head(reply: Reply) -> Head | None:
    return Head(Seq(int(reply[2])), RecordHash(_text(reply[3]))) if len(reply) > 3 else None


def _stored(entry_id: bytes, fields: Mapping[bytes, bytes]) -> Stored:
    """As it is, however odd: verification judges it."""
    return Stored(
        Seq(_whole(_text(entry_id).partition("-")[0].encode())),
        fields.get(b"r", b""),
        RecordHash(_text(fields.get(b"p", b""))),
        RecordHash(_text(fields.get(b"h", b""))),
        Attempt(_whole(fields.get(b"a"))),
    )


def _text(raw: bytes | str) -> str:
    return raw if isinstance(raw, str) else raw.decode(errors="replace")


def _whole(raw: bytes | None) -> int:
    """Numbers in meta and entries are ours; what is not a number was put there by somebody else and proves nothing."""
    try:
        return int(raw or 0)
    except ValueError:
        return 0
