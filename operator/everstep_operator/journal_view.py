"""The only caller of the journal in the operator: what a reconcile may know of it, and the few writes the operator has.

The operator writes the fence, the inbox and informative meta fields, never a record. It decodes the newest record alone; a kind
it does not know is not its business (an SDK may be newer than the operator). A store that does not answer is data, not a
crash: `view` returns JournalDown with words for the run's condition, and its writes raise JournalUnavailable.

Of an encrypted run only what people are asked is opened, since it is shown to them; the rest reads (encrypted).
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import Final, TypeVar

from everstep.clock import Clock
from everstep.errors import BadStore, ConfigError, JournalUnavailable, JournalUnreadable
from everstep.ids import Attempt, EpochMs, InboxId, JournalId, RecordHash, Seq
from everstep.journal.chain import Chain
from everstep.journal.datakeys import was_erased, wrapped_fields, wrapped_keys
from everstep.journal.inbox import CancelBody, SettleBody, make_entry
from everstep.journal.progress import Progress
from everstep.journal.records import Json, Park, Record, canonical, decode
from everstep.journal.sealing import Sealer, hidden
from everstep.journal.store import FenceAnswer, FenceReply, Head, Meta, Store, Stored
from everstep.journal.told import anchor_field
from everstep_operator.decide.model import JournalDown, JournalView, News
from everstep_operator.keyring import KeyRing
from everstep_operator.wrapping_keys import Wrapping

REQUEST_FIELD: Final = "request/"
"""Prefix of meta fields that keep the uids of HumanRequests the operator created: `request/<name>` = uid."""
KEY_ID_FIELD: Final = "keyId"
DELETED_FIELD: Final = "deletedAt"

STEADY_READS: Final = 3
"""A live attempt appends between our two reads; a few more give a head and a newest record that belong together."""

PROGRESS_KINDS: Final = ("result", "wait_resolved", "fired", "settled")
ANSWER_KINDS: Final = ("settled", "wait_resolved", "cancel")

T = TypeVar("T")

log = logging.getLogger(__name__)


class Journals:
    """The journals of this installation. Safe to use from many workers at once."""

    def __init__(
        self, store: Store, ring: KeyRing, clock: Clock, *, timeout_s: float, wrapping: Wrapping | None = None
    ) -> None:
        self._store, self._ring, self._clock, self._timeout_s = store, ring, clock, timeout_s
        self._wrapping = wrapping
        self._down_since: EpochMs | None = None

    @property
    def down_since(self) -> EpochMs | None:
        """Since when the store has not answered; None while it does."""
        return self._down_since

    # --- reading

    async def view(self, journal: JournalId, anchor: Head | None) -> JournalView | JournalDown:
        """Meta, newest record, inbox ids, and the hash stored at the anchor's seq. Costs three short reads, four with an
        anchor behind the head. Raises ClusterUnavailable where a key must be read."""
        try:
            seen, wrapped, newest = await self._answer(self._view(journal, anchor))
            if isinstance(seen.last, Park) and seen.last.waits and wrapped and newest is not None:
                last = decode(newest.record, newest.seq, await self._sealer(journal, wrapped))
                return replace(seen, last=last)
            return seen
        except JournalUnavailable as e:
            return JournalDown(str(e), self._down_since or self._clock.now_epoch_ms())
        except (ConfigError, JournalUnreadable) as e:
            return JournalDown(str(e), self._clock.now_epoch_ms())
        except KeyError as e:
            reason = (
                f"the journal was made with operator key {e}, which is not in the key Secret: restore it from a backup"
            )
            return JournalDown(reason, self._clock.now_epoch_ms())

    async def _view(
        self, journal: JournalId, anchor: Head | None
    ) -> tuple[JournalView, Mapping[str, str], Stored | None]:
        """The view, with payloads hidden; the meta fields of an encrypted run, {} of another; the newest record."""
        meta = await self._store.meta(journal)
        chain = self._chain(journal, meta, anchor)
        if meta is None:
            return JournalView(genesis=chain.genesis()), {}, None
        newest = await self._store.last(journal)
        for _ in range(STEADY_READS):
            if newest is None or newest.seq == meta.head.seq:
                break
            meta, newest = await self._store.meta(journal) or meta, await self._store.last(journal)
        tampered = _tampered(chain, meta, newest)
        encrypted = bool(wrapped_keys(meta.fields))
        sealer = hidden(journal) if encrypted else None
        last, unreadable = (None, "") if tampered or newest is None else _decode(newest, sealer)
        at_anchor, news = await self._since(journal, anchor, meta.head)
        view = JournalView(
            genesis=chain.genesis(),
            attempt=meta.attempt,
            owner=meta.owner,
            head=meta.head,
            last=last,
            unreadable=unreadable,
            tampered=tampered,
            news=news,
            at_anchor=at_anchor,
            progress=Progress.from_bytes(meta.progress) if meta.progress else None,
            inbox=frozenset(entry.id for entry in await self._store.inbox_read(journal)),
            requests={
                name.removeprefix(REQUEST_FIELD): uid
                for name, uid in meta.fields.items()
                if name.startswith(REQUEST_FIELD)
            },
            deleted_at=meta.fields.get(DELETED_FIELD, ""),
            encrypted=encrypted,
            erased=was_erased(meta.fields),
        )
        return view, meta.fields if encrypted else {}, newest

    def _chain(self, journal: JournalId, meta: Meta | None, anchor: Head | None) -> Chain:
        named = meta.fields.get(KEY_ID_FIELD, "") if meta else ""
        return self._ring.chain(journal, named or self._ring.key_id_for_anchor(journal, anchor))

    async def _since(self, journal: JournalId, anchor: Head | None, head: Head) -> tuple[RecordHash | None, News]:
        """The hash stored at the anchor, and what the records after it tell. Anchors keep that tail short."""
        anchored = Seq(0) if anchor is None else anchor.seq
        at_anchor: RecordHash | None = None
        progress: Seq | None = None
        applied: set[InboxId] = set()
        if head.seq < anchored or head.seq == 0:
            return None, News()
        async for stored in self._store.read(journal, Seq(max(0, anchored - 1)), head.seq):
            if stored.seq == anchored:
                at_anchor = stored.hash
                continue
            told = _peek(stored)
            if told.get("kind") in PROGRESS_KINDS:
                progress = stored.seq
            if told.get("kind") in ANSWER_KINDS and told.get("inbox"):
                applied.add(InboxId(str(told["inbox"])))
        return at_anchor, News(progress, frozenset(applied))

    async def meta(self, journal: JournalId) -> Meta | None:
        """The meta alone, for the sweeper. Raises JournalUnavailable."""
        return await self._answer(self._store.meta(journal))

    async def journals(self) -> list[JournalId]:
        """All journals of this installation. Raises JournalUnavailable."""
        return await self._answer(self._store.journals())

    # --- keys

    async def run_key(self, journal: JournalId, anchor: Head | None) -> tuple[str, bytes]:
        """(key id, chain key) of one run, for its Secret. Raises JournalUnavailable, KeyError."""
        meta = await self._answer(self._store.meta(journal))
        key_id = (meta.fields.get(KEY_ID_FIELD, "") if meta else "") or self._ring.key_id_for_anchor(journal, anchor)
        key = self._ring.chain(journal, key_id).key
        assert key is not None, "operator chains are keyed"
        return key_id, key

    async def data_keys(self, journal: JournalId) -> Mapping[str, bytes] | None:
        """The data keys of a journal, by id, {} if it is not encrypted; None if there is no journal. Raises ConfigError for keys
        that were erased or cannot be unwrapped, JournalUnavailable, ClusterUnavailable."""
        meta = await self._answer(self._store.meta(journal))
        if meta is None:
            return None
        sealer = await self._sealer(journal, meta.fields)
        if sealer is None:
            return {}
        if sealer.hidden is not None:
            raise ConfigError("the run was erased: what it recorded cannot be read, so it cannot go on")
        return sealer.keys

    async def _sealer(self, journal: JournalId, fields: Mapping[str, str]) -> Sealer | None:
        if not wrapped_keys(fields):
            return None
        if self._wrapping is None:
            raise ConfigError("the run is encrypted, and this operator has no key-encryption keys")
        return await self._wrapping.sealer(journal, fields)

    # --- the operator's writes

    async def fence(
        self,
        journal: JournalId,
        attempt: Attempt,
        anchor: Head,
        *,
        namespace: str,
        name: str,
        data_keys: Mapping[str, bytes] | None = None,
    ) -> FenceReply:
        """Fence with the anchor; idempotent. A journal that it begins keeps `data_keys`, wrapped; one that is there its own.
        Raises JournalUnavailable, ClusterUnavailable."""
        key_id = self._ring.key_id_for_anchor(journal, anchor)
        meta = await self._answer(self._store.meta(journal))
        if meta is not None:
            key_id = meta.fields.get(KEY_ID_FIELD, "") or key_id
        fields = {"namespace": namespace, "name": name, KEY_ID_FIELD: key_id}
        if meta is None and data_keys:
            reply = await self._begin_sealed(journal, attempt, anchor, fields, data_keys)
        else:
            reply = await self._answer(self._store.fence(journal, attempt, anchor, fields))
        if reply.answer is not FenceAnswer.OK:
            log.warning("journal %s: fence for attempt %d answered %s", journal, attempt, reply.answer)
        return reply

    async def _begin_sealed(
        self, journal: JournalId, attempt: Attempt, anchor: Head, fields: dict[str, str], data_keys: Mapping[str, bytes]
    ) -> FenceReply:
        if self._wrapping is None:
            raise JournalUnavailable("the run is to be encrypted, and this operator has no key-encryption keys")
        try:
            async with self._wrapping.held(self._store) as ring:
                wrapped = wrapped_fields(ring, journal, data_keys, self._clock.random_bytes)
                return await self._answer(self._store.fence(journal, attempt, anchor, fields | wrapped))
        except ConfigError as e:
            raise JournalUnavailable(str(e)) from e

    async def inbox_add(self, journal: JournalId, entry_id: InboxId, body: CancelBody | SettleBody) -> bool:
        """Add once, sealed with the run's key; False if the id was there. Raises JournalUnavailable, ClusterUnavailable."""
        meta = await self._answer(self._store.meta(journal))
        chain = self._chain(journal, meta, None)
        try:
            chain = replace(chain, sealer=await self._sealer(journal, meta.fields if meta else {}))
        except ConfigError as e:
            raise JournalUnavailable(str(e)) from e
        entry = make_entry(chain, entry_id, body)
        return await self._answer(self._store.inbox_add(journal, entry))

    async def seal_request(self, journal: JournalId, name: str, spec: Json) -> str:
        """A MAC of a question under the run's key. No inbox entry can be made of it: its id and body fit none.
        Raises JournalUnavailable."""
        meta = await self._answer(self._store.meta(journal))
        return self._chain(journal, meta, None).inbox_mac(REQUEST_FIELD + name, canonical(spec))

    async def keep_request(self, journal: JournalId, name: str, uid: str) -> None:
        """Remember that this HumanRequest is ours. Raises JournalUnavailable."""
        await self._answer(self._store.set_fields(journal, {REQUEST_FIELD + name: uid}))

    async def tell_anchor(self, journal: JournalId, anchor: Head) -> None:
        """Tell the running attempt what is anchored: it may then delete what is before a snapshot. Raises JournalUnavailable."""
        await self._answer(self._store.set_fields(journal, anchor_field(anchor)))

    async def mark_deleted(self, journal: JournalId, at: str) -> None:
        """Set deletedAt. Raises JournalUnavailable."""
        await self._answer(self._store.set_fields(journal, {DELETED_FIELD: at}))

    async def sweep(self, journal: JournalId) -> None:
        """Delete every key of the journal. Raises JournalUnavailable."""
        await self._answer(self._store.sweep(journal))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._store.aclose()

    async def _answer(self, call: Awaitable[T]) -> T:
        """One bounded call; keeps `down_since`."""
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await call
        except TimeoutError as e:
            self._note_down()
            raise JournalUnavailable(f"the journal store did not answer within {self._timeout_s:g} s") from e
        except JournalUnavailable:
            self._note_down()
            raise
        except BadStore as e:
            self._note_down()  # a wrong password or a missing right: cured at the store, so runs wait like in any outage
            raise JournalUnavailable(str(e)) from e
        self._down_since = None
        return answer

    def _note_down(self) -> None:
        if self._down_since is None:
            self._down_since = self._clock.now_epoch_ms()


def anchor_to_tell(seen: JournalView, checkpoint: Json) -> Head | None:
    """The anchor in a status that was just written, if the attempt waits for one at or after its newest snapshot."""
    waits_for = seen.progress.opened_seq if seen.progress else 0
    if not waits_for or not isinstance(checkpoint, dict) or int(checkpoint.get("seq") or 0) < waits_for:
        return None
    return Head(Seq(int(checkpoint["seq"])), RecordHash(str(checkpoint.get("hash") or "")))


def _tampered(chain: Chain, meta: Meta, newest: Stored | None) -> str:
    """Why the head is not genuine; "" if it is. What does not carry this run's key is not believed: whoever can write the store
    could otherwise declare a run finished."""
    if newest is None:
        if meta.head.seq > 0:
            return f"the journal's head is record {meta.head.seq}, but there is no record at all"
        return "" if meta.head.hash == chain.genesis() else "the empty journal does not begin with this run's key"
    if newest.seq < meta.head.seq:
        return f"the journal's head is record {meta.head.seq}, but the newest record is {newest.seq}"
    if newest.seq == meta.head.seq and newest.hash != meta.head.hash:
        return f"record {newest.seq} has another hash than the journal's head"
    if chain.link(newest.prev_hash, newest.record) != newest.hash:
        return f"record {newest.seq} was changed after it was written, or was not written by this run"
    return ""


def _decode(newest: Stored, sealer: Sealer | None) -> tuple[Record | None, str]:
    try:
        return decode(newest.record, newest.seq, sealer), ""
    except JournalUnreadable as e:
        return None, str(e)


def _peek(stored: Stored) -> dict[str, object]:
    """Kind and inbox id of a record, {} for what is no JSON object: kinds of newer SDKs are skipped, not refused."""
    try:
        told = json.loads(stored.record)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}
