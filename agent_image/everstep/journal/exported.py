"""Reading an export (`everstep.journal.export`) and judging it: by a key, by a signature, or by both.

The file is walked once, one line in memory. Two things look at each record: the public chain, which anybody can compute, and,
where a key is given (or the journal's chain has none), `everstep.journal.verify`, which judges it as it judges a store. The first
record that either refuses is the one that is named; at the same record the structure of the file speaks first, then the key, then
the public chain.
"""

import base64
import binascii
import enum
import hashlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from everstep.errors import EverstepError
from everstep.ids import Attempt, JournalId, RecordHash, Seq
from everstep.journal.chain import Chain, derive_run_key
from everstep.journal.export import FORMAT, PLAIN, SHORT_HASH, PublicChain, blob_names, signed_bytes
from everstep.journal.signing import ALGORITHM, PublicKey, available
from everstep.journal.store import Head, Meta, Stored
from everstep.journal.verify import Verdict, inner_seq, verify

LINE_MAX_BYTES = 64 * 1024 * 1024
"""A value takes at most 16 MiB, as base64 and JSON a bit more; a longer line is none of ours."""


class NotAnExport(EverstepError):
    """The file cannot be read as an export: not ours, or of a newer format."""


class Judgement(enum.StrEnum):
    """What is said of a file; docs/integrity.md has the table."""

    WHOLE = "whole"
    CUT = "cut"
    ALTERED = "altered"
    ROLLED_BACK = "rolled back"
    FORGED = "forged"
    UNPROVED = "unproved"


_JUDGEMENT = {
    Verdict.WHOLE: Judgement.WHOLE,
    Verdict.ALTERED: Judgement.ALTERED,
    Verdict.SWAPPED: Judgement.ALTERED,
    Verdict.DROPPED: Judgement.CUT,
    Verdict.FOREIGN: Judgement.FORGED,
    Verdict.RECOMPUTED: Judgement.FORGED,
    Verdict.META: Judgement.FORGED,
    Verdict.TAIL_CUT: Judgement.CUT,
    Verdict.LOST: Judgement.ROLLED_BACK,
    Verdict.ANCHOR: Judgement.FORGED,
}


@dataclass(frozen=True)
class Finding:
    """One thing that does not fit."""

    judgement: Judgement
    finding: str
    """The finer word: a Verdict's, or `cut`, `unsigned`, `signature`, `signer`, `header`, `resealed`, `blob`."""
    bad_seq: int | None
    """First record that does not fit; 0 is the header; None where it cannot be told."""
    message: str


@dataclass(frozen=True)
class FileReport:
    """The outcome for one file."""

    journal: JournalId
    run: str
    judgement: Judgement
    finding: str
    bad_seq: int | None
    message: str
    records: int
    """How many records fit, from the first on."""
    head: Head
    """The last record that fits."""
    signer: str
    """Id of the key that signed, where the signature is good; else empty."""
    proved_by: tuple[str, ...]
    """`key`, `signature`: what vouches for it; empty if nothing does."""
    notes: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        return self.judgement is Judgement.WHOLE


async def check_export(
    file: BinaryIO,
    *,
    key: bytes | None = None,
    trusted: Sequence[PublicKey] = (),
    anchor: Head | None = None,
    demand_signature: bool = False,
) -> FileReport:
    """Judge an export. `key` is the run's chain key or the operator's; `trusted` are the public keys that may vouch for it, and
    with `demand_signature` one of them must. `file` must be at its beginning and seekable.

    Raises NotAnExport, ConfigError (no library for `trusted`)."""
    walk = _Walk(file, anchor)
    chain = walk.chain(key)
    found: list[Finding] = []
    if chain is None:
        await walk.rest()
        found += walk.against_anchor()
    else:
        report = await verify(walk, chain, walk.journal, anchor=walk.anchor)
        walk.notes += report.notes if report.first > 1 else ()
        await walk.rest()
        if not report.whole:
            # what was before the header's base is not missing from the file
            bad = None if report.bad_seq is None else max(int(report.bad_seq), walk.base.seq + 1)
            found.append(Finding(_JUDGEMENT[report.verdict], report.verdict.value, bad, report.message))
    structure = [f for f in walk.found if f.finding in _STRUCTURE]
    found = [*structure, *found, *(f for f in walk.found if f.finding not in _STRUCTURE)]
    signer, by_signature = _signature(walk, trusted, demand_signature, found)
    proved = (("key",) if key is not None else ()) + (("signature",) if by_signature else ())
    first = min(found, key=_order, default=None)
    return _report(walk, first, signer, proved, anchor)


_STRUCTURE = ("dropped", "swapped", "cut", "line", "blob")


def _order(finding: Finding) -> float:
    """The earliest record first; what has no place comes last. Equal ones stay in the order they were found in."""
    return float("inf") if finding.bad_seq is None else finding.bad_seq


def _report(
    walk: "_Walk", first: Finding | None, signer: str, proved: tuple[str, ...], anchor: Head | None
) -> FileReport:
    notes = list(walk.notes)
    if first is None and not proved:
        by = f"and is signed by {signer}, which was not given as a key to trust" if signer else "but nothing signs it"
        message = f"the file fits together, {by}: --public-key FILE or --key FILE proves it"
        first = Finding(Judgement.UNPROVED, "unproved", None, message)
    if anchor is None:
        notes.append("no anchor was given: an older export looks the same as the newest one")
    if not available():
        notes.append("the signature was not checked: pip install 'everstep[integrity]'")
    head, records = walk.head, walk.records
    if first is None:
        message = f"whole: records {walk.base.seq + 1} to {head.seq}" if walk.base.seq else f"whole: {records} records"
        said, finding, bad = Judgement.WHOLE, "whole", None
    else:
        said, finding, bad, message = first.judgement, first.finding, first.bad_seq, first.message
        proved = () if said is not Judgement.WHOLE else proved
        if bad is not None and bad <= head.seq:
            head = walk.head_before(bad)
            records = head.seq - walk.base.seq
    return FileReport(walk.journal, walk.run, said, finding, bad, message, records, head, signer, proved, tuple(notes))


def _signature(walk: "_Walk", trusted: Sequence[PublicKey], demand: bool, found: list[Finding]) -> tuple[str, bool]:
    """(id of the key whose signature is good, whether it is a trusted one). Adds what does not fit to `found`."""
    end, block = walk.end, walk.signature
    if end is None or not available():
        return "", False
    if block is None:
        if demand or walk.told_signer:
            said = (
                f"the header names {walk.told_signer} as its signer"
                if walk.told_signer
                else "a signature was asked for"
            )
            found.append(Finding(Judgement.FORGED, "unsigned", None, f"the file carries no signature, but {said}"))
        return "", False
    key = _signed_by(block)
    if key is None or not key.verifies(_decoded(block.get("value")), signed_bytes(end)):
        found.append(Finding(Judgement.FORGED, "signature", None, "the signature is not of this file, or was damaged"))
        return "", False
    if demand and key not in trusted:
        wanted = ", ".join(k.id for k in trusted)
        message = f"the file is signed by {key.id}, not by {wanted}"
        found.append(Finding(Judgement.FORGED, "signer", None, message))
    found += walk.against_end(end)
    return key.id, key in trusted


def _signed_by(block: dict[str, Any]) -> PublicKey | None:  # Any: JSON data
    raw = _decoded(block.get("public"))
    if block.get("algorithm") != ALGORITHM or len(raw) != 32:
        return None
    key = PublicKey(raw)
    return key if block.get("id") == key.id else None


def _decoded(text: object) -> bytes:
    try:
        return base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        return b""


class _Walk:
    """Reads the file once and keeps what the judgement needs. A source for `verify`."""

    def __init__(self, file: BinaryIO, anchor: Head | None) -> None:
        self._file = file
        header = file.readline(LINE_MAX_BYTES)
        data = _json_line(header)
        if data is None or "everstep" not in data:
            raise NotAnExport("this is not an export of Everstep: its first line is no header")
        if data["everstep"] != FORMAT:
            raise NotAnExport(f"the export has format {data['everstep']!r}; this version of Everstep reads {FORMAT}")
        try:
            self.journal = JournalId(str(data["journal"]))
            self.run = str(data["run"])
            self.base = _head(data["base"])
            self.told = _head(data["head"])
            self.anchor = anchor or (None if data["anchor"] is None else _head(data["anchor"]))
            self.stride = max(1, int(data["stride"]))
            self.told_signer = str(data["signer"] or "")
            self.plain = data["chain"] == PLAIN
        except (KeyError, TypeError, ValueError) as e:
            raise NotAnExport(f"the export's header cannot be read: {e!r}") from e
        self.header_digest = hashlib.sha256(header.rstrip(b"\n")).hexdigest()
        self.public = PublicChain(self.journal, self.base)
        self.head = self.base
        self.records = 0
        self.found: list[Finding] = []
        self.notes: tuple[str, ...] = ()
        self.end: dict[str, Any] | None = None  # Any: JSON data
        self.signature: dict[str, Any] | None = None
        self._heads: dict[int, tuple[str, RecordHash]] = {}  # seq → (q, h) at every stride
        self._fits = self.base  # the last record before the first finding
        self._blobs: set[str] = set()
        self._awaited: set[str] = set()
        self._stray = ""
        self._lines = self._records()

    def chain(self, key: bytes | None) -> Chain | None:
        """The chain to prove the records by; None where its key is secret and was not given."""
        if key is None:
            return Chain(self.journal) if self.plain else None
        derived = Chain(self.journal, derive_run_key(key, self.journal))
        if self.base.seq == 0:
            return derived if derived.genesis() == self.base.hash else Chain(self.journal, key)
        place = self._file.tell()
        first = _stored(_json_line(self._file.readline(LINE_MAX_BYTES)))
        self._file.seek(place)
        if first is not None and derived.link(self.base.hash, first.record) == first.hash:
            return derived
        return Chain(self.journal, key)

    async def meta(self, _journal: JournalId) -> Meta | None:
        return Meta(Attempt(1), None, self.told, None)

    async def read(self, _journal: JournalId, after: Seq = Seq(0), upto: Seq | None = None) -> AsyncIterator[Stored]:
        """All records, up to the first that is out of its place."""
        async for stored in self._lines:
            yield stored

    async def rest(self) -> None:
        """Read what `verify` left unread."""
        async for _ in self._lines:
            pass

    async def _records(self) -> AsyncIterator[Stored]:
        while (raw := self._file.readline(LINE_MAX_BYTES)) and self.end is None:
            data = _json_line(raw)
            seq = self.head.seq + 1
            if data is not None and "end" in data:
                self._take_end(data)
            elif data is not None and "blob" in data:
                self._take_blob(data)
            elif (stored := _stored(data)) is None:
                self._unreadable(raw, seq)
                return
            elif stored.seq != seq:
                self._misplaced(stored, seq)
                return
            else:
                yield self._take(stored, data or {})
        self._no_more(bool(raw))

    def _take(self, stored: Stored, data: dict[str, Any]) -> Stored:  # Any: JSON data
        public = self.public.add(stored.hash, stored.record)
        if not self.found:
            self._fits = self.head
            self._look(stored, data.get("q") == public)
        self._awaited = {name for name in blob_names(stored.record) if name not in self._blobs}
        self.head = Head(stored.seq, stored.hash)
        self.records += 1
        if (stored.seq - self.base.seq) % self.stride == 0:
            self._heads[stored.seq] = public[:SHORT_HASH], stored.hash
        return stored

    def _look(self, stored: Stored, fits: bool) -> None:
        """What the public chain says of one record."""
        seq, inner = stored.seq, inner_seq(stored.record)
        if inner is not None and inner != seq:
            message = f"record {inner} sits at the place of record {seq}"
            self.found.append(Finding(Judgement.ALTERED, "swapped", seq, message))
        elif self.anchor is not None and self.anchor.seq == seq and self.anchor.hash != stored.hash:
            message = f"record {seq} is not the one the anchor was taken of"
            self.found.append(Finding(Judgement.FORGED, "anchor", seq, message))
        elif stored.prev_hash != self.head.hash:
            message = f"record {seq} comes from another chain"
            self.found.append(Finding(Judgement.FORGED, "foreign", seq, message))
        elif not fits:
            message = f"record {seq}, or its hash, was changed after it was written"
            self.found.append(Finding(Judgement.ALTERED, "altered", seq, message))
        else:
            self._look_for_blobs()

    def _look_for_blobs(self) -> None:
        """Each value kept beside the journal stands behind the first record that names it, and no other does."""
        seq = self.head.seq
        if self._awaited:
            message = f"record {seq} names a value kept as blob {min(self._awaited)[:12]}…, which is missing"
            self.found.append(Finding(Judgement.CUT, "blob", seq, message))
        elif self._stray:
            message = f"behind record {seq} is a value that it does not name, blob {self._stray[:12]}…"
            self.found.append(Finding(Judgement.ALTERED, "blob", seq, message))

    def _take_blob(self, data: dict[str, Any]) -> None:  # Any: JSON data
        name = str(data["blob"])
        if name not in self._awaited:
            self._stray = name
        elif hashlib.sha256(_decoded(data.get("b"))).hexdigest() != name:
            message = f"the value kept as blob {name[:12]}…, of record {self.head.seq}, was changed"
            self.found.append(Finding(Judgement.ALTERED, "blob", self.head.seq, message))
        self._awaited.discard(name)
        self._blobs.add(name)

    def _take_end(self, data: dict[str, Any]) -> None:  # Any: JSON data
        self.end = data["end"] if isinstance(data["end"], dict) else {}
        block = data.get("signature")
        self.signature = block if isinstance(block, dict) else None

    def _unreadable(self, raw: bytes, seq: int) -> None:
        if not raw.endswith(b"\n"):
            message = f"the file ends in the middle of record {seq}; {self._told()}"
            self.found.append(Finding(Judgement.CUT, "cut", seq, message))
        else:
            self.found.append(Finding(Judgement.ALTERED, "line", seq, f"the line of record {seq} cannot be read"))

    def _misplaced(self, stored: Stored, seq: int) -> None:
        after = self._next_record()
        if stored.seq < seq or (after is not None and after.seq == seq):
            message = f"record {stored.seq} sits at the place of record {seq}"
            self.found.append(Finding(Judgement.ALTERED, "swapped", seq, message))
        else:
            message = f"record {seq} is missing, the next one there is {stored.seq}"
            self.found.append(Finding(Judgement.CUT, "dropped", seq, message))

    def _next_record(self) -> Stored | None:
        while raw := self._file.readline(LINE_MAX_BYTES):
            data = _json_line(raw)
            if data is None or "blob" not in data:
                return _stored(data)
        return None

    def _no_more(self, more: bool) -> None:
        seq = self.head.seq + 1
        if self.end is None:
            message = f"the file ends after record {self.head.seq}, without its end line; {self._told()}"
            self.found.append(Finding(Judgement.CUT, "cut", seq, message))
        elif more and not self.found:
            self.found.append(Finding(Judgement.ALTERED, "line", seq, "there is more behind the end line"))
        elif self.end.get("records") != self.records or self.head.seq < self.told.seq:
            message = f"the file ends after record {self.head.seq}; {self._told()}"
            self.found.append(Finding(Judgement.CUT, "cut", seq, message))
        elif not self.found:
            self._look_for_blobs()

    def _told(self) -> str:
        return f"its header tells of {self.told.seq}"

    def against_anchor(self) -> list[Finding]:
        """An anchor against what was read, where no chain could be computed."""
        if self.anchor is None or self.anchor.seq <= self.head.seq:
            return []
        message = (
            f"the export ends at record {self.head.seq}, behind the anchor at {self.anchor.seq}: acknowledged records are "
            f"missing, or it is an older one"
        )
        return [Finding(Judgement.ROLLED_BACK, "lost", self.head.seq + 1, message)]

    def against_end(self, end: dict[str, Any]) -> list[Finding]:  # Any: JSON data
        """What was signed against what was read."""
        if end.get("header") != self.header_digest:
            return [Finding(Judgement.FORGED, "header", 0, "the header is not the one that was signed")]
        if end.get("public") == self.public.hash and end.get("head") == {"seq": self.head.seq, "hash": self.head.hash}:
            return []
        seq, last = self.base.seq, self.base.seq
        for entry in end.get("heads") or []:
            if self._heads.get(entry[0], ("", ""))[0] != entry[1]:
                seq = entry[0]
                break
            last = entry[0]
        first = last + 1
        among = f"record {first}" if seq == first else f"one of the records from {first} on"
        message = f"the hashes were made again: {among} is not what was signed"
        return [Finding(Judgement.FORGED, "resealed", first, message)]

    def head_before(self, seq: int) -> Head:
        """The head in front of a record; without its hash where that was not kept."""
        before = max(self.base.seq, seq - 1)
        for known in (self.base, self.head, self._fits):
            if known.seq == before:
                return known
        return Head(Seq(before), self._heads.get(before, ("", RecordHash("")))[1])


def _json_line(raw: bytes) -> dict[str, Any] | None:  # Any: JSON data
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _stored(data: dict[str, Any] | None) -> Stored | None:  # Any: JSON data
    """A record's line, if it is one."""
    if data is None:
        return None
    n, prev, digest, record = (data.get(name) for name in ("n", "p", "h", "r"))
    if not (isinstance(n, int) and isinstance(prev, str) and isinstance(digest, str) and isinstance(record, str)):
        return None
    try:
        raw, attempt = record.encode(), int(json.loads(record)["attempt"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raw, attempt = record.encode(errors="replace"), 0
    if len(digest) != 64 or digest.strip("0123456789abcdef"):
        return None
    return Stored(Seq(n), raw, RecordHash(prev), RecordHash(digest), Attempt(attempt))


def _head(data: Any) -> Head:  # Any: JSON data
    return Head(Seq(int(data["seq"])), RecordHash(str(data["hash"])))
