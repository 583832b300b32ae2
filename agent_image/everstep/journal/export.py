"""Writing a journal into one file, proved while it is written, and signed.

JSON lines, UTF-8. docs/integrity.md has the same table for people.

    header   {"everstep": "export/1", "journal", "run", "namespace", "chain": "hmac-sha256" | "sha256", "keyId",
              "base": {"seq", "hash"}, "head": {"seq", "hash"}, "anchor": {"seq", "hash"} | null, "stride", "signer": id | null,
              "time", "sdk"}
    record   {"n": seq, "p": previous hash, "h": hash, "q": public hash, "r": "the record's bytes, exactly, as text"}
    blob     {"blob": "<sha-256 of the value>", "b": "<base64>"}      behind the first record that names it
    end      {"end": {"journal", "run", "header": sha-256 of the header line, "base", "head", "public": q(head), "records",
                      "blobs", "heads": [[seq, first 16 digits of q], …], "time"},
              "signature": {"algorithm": "ed25519", "id", "public": base64, "value": base64} | null}

`base` is (0, h(0)), or the record before the first one where older records were compacted away. The public chain binds the keyed
hashes and the bytes, so that what a signature says of q(head) holds for all of both:

    q(base) = SHA-256("everstep/public/1" ‖ 0 ‖ journal id ‖ 0 ‖ base seq ‖ 0 ‖ base hash)
    q(n)    = SHA-256(q(n-1) ‖ h(n) as 32 bytes ‖ record n)

The signature is over "everstep/export/1" ‖ 0 ‖ canonical(end). `heads` has every `stride`-th q (at most HEADS_MAX).
"""

import base64
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

from everstep.errors import ConfigError, JournalTampered
from everstep.ids import EpochMs, JournalId, Seq
from everstep.journal.blobnames import blobs_of
from everstep.journal.canonical import canonical
from everstep.journal.chain import Chain
from everstep.journal.records import Json
from everstep.journal.signing import ALGORITHM, SigningKey
from everstep.journal.store import Head, Meta, Store, Stored
from everstep.journal.verify import verify

FORMAT: Final = "export/1"
KEYED: Final = "hmac-sha256"
PLAIN: Final = "sha256"
HEADS_MAX: Final = 1024
SHORT_HASH: Final = 16
_PUBLIC = b"everstep/public/1"
_SIGNED = b"everstep/export/1\0"

Write = Callable[[bytes], object]


class PublicChain:
    """The chain that anybody can compute: `hash` is q of the last record that was added."""

    def __init__(self, journal: JournalId, base: Head) -> None:
        seed = b"\0".join((_PUBLIC, journal.encode(), str(base.seq).encode(), base.hash.encode()))
        self.hash = hashlib.sha256(seed).hexdigest()

    def add(self, keyed_hash: str, record: bytes) -> str:
        """q of the next record. Raises ValueError if the keyed hash is not hexadecimal."""
        self.hash = hashlib.sha256(bytes.fromhex(self.hash) + bytes.fromhex(keyed_hash) + record).hexdigest()
        return self.hash


@dataclass(frozen=True)
class About:
    """What the header tells of a run, beyond its journal."""

    run: str
    namespace: str = ""
    key_id: str = ""
    sdk: str = ""
    time: EpochMs = EpochMs(0)


@dataclass(frozen=True)
class Exported:
    """What was written."""

    head: Head
    records: int
    blobs: int
    signer: str | None
    """Id of the key that signed; None without a signature."""


def line(data: object) -> bytes:
    """One line of the file."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def signed_bytes(end: Json) -> bytes:
    """What the signature is over."""
    return _SIGNED + canonical(end)


def head_data(head: Head) -> dict[str, object]:
    """{"seq", "hash"}"""
    return {"seq": head.seq, "hash": head.hash}


async def export(
    store: Store, chain: Chain, about: About, write: Write, *, anchor: Head | None, signer: SigningKey | None
) -> Exported:
    """Write the journal up to the head it has now, one line at a time; what others append meanwhile is not in it.

    Proved under `chain` and against `anchor` while it is written: what came out before an error is worth nothing, for it has no
    end line. Raises ConfigError for a journal that is not there, JournalTampered, JournalLost, JournalUnavailable."""
    meta = await store.meta(chain.journal_id)
    if meta is None:
        raise ConfigError(f"run {about.run} has no journal yet: it was never started, or its journal was removed")
    tee = _Tee(
        store, chain, about, write, meta=meta, anchor=anchor, signer=None if signer is None else signer.public.id
    )
    report = await verify(tee, chain, chain.journal_id, upto=meta.head, anchor=anchor)
    report.require_whole()
    await tee.begin(None)
    end = {
        "journal": chain.journal_id,
        "run": about.run,
        "header": tee.header_digest,
        "base": head_data(tee.base),
        "head": head_data(report.head),
        "public": tee.public.hash,
        "records": tee.records,
        "blobs": len(tee.blobs),
        "heads": tee.heads,
        "time": about.time,
    }
    signature = None
    if signer is not None:
        public = signer.public
        signature = {
            "algorithm": ALGORITHM,
            "id": public.id,
            "public": base64.b64encode(public.raw).decode(),
            "value": base64.b64encode(signer.sign(signed_bytes(end))).decode(),
        }
    write(line({"end": end, "signature": signature}))
    return Exported(report.head, tee.records, len(tee.blobs), None if signature is None else str(signature["id"]))


class _Tee:
    """Stands before the store while a journal is verified, and writes what passes."""

    def __init__(
        self,
        store: Store,
        chain: Chain,
        about: About,
        write: Write,
        *,
        meta: Meta,
        anchor: Head | None,
        signer: str | None,
    ) -> None:
        self._store, self._chain, self._about, self._write = store, chain, about, write
        self._meta, self._anchor, self._signer = meta, anchor, signer
        self._begun = False
        self.base = Head(Seq(0), chain.genesis())
        self.public = PublicChain(chain.journal_id, self.base)
        self.header_digest = ""
        self.records = 0
        self.blobs: set[str] = set()
        self.stride = 1
        self.heads: list[list[object]] = []

    async def meta(self, _journal: JournalId) -> Meta | None:
        return self._meta

    async def begin(self, first: Stored | None) -> None:
        """Write the header, once: before the first record, or where there is none."""
        if self._begun:
            return
        self._begun = True
        if first is not None and first.seq > 1:
            self.base = Head(Seq(first.seq - 1), first.prev_hash)
            self.public = PublicChain(self._chain.journal_id, self.base)
        head, about = self._meta.head, self._about
        self.stride = max(1, -(-(head.seq - self.base.seq) // HEADS_MAX))
        header = line(
            {
                "everstep": FORMAT,
                "journal": self._chain.journal_id,
                "run": about.run,
                "namespace": about.namespace,
                "chain": PLAIN if self._chain.key is None else KEYED,
                "keyId": about.key_id,
                "base": head_data(self.base),
                "head": head_data(head),
                "anchor": None if self._anchor is None else head_data(self._anchor),
                "stride": self.stride,
                "signer": self._signer,
                "time": about.time,
                "sdk": about.sdk,
            }
        )
        self.header_digest = hashlib.sha256(header.rstrip(b"\n")).hexdigest()
        self._write(header)

    async def read(self, journal: JournalId, after: Seq = Seq(0), upto: Seq | None = None) -> AsyncIterator[Stored]:
        async for stored in self._store.read(journal, after, upto):
            await self.begin(stored)
            yield stored  # proved before it is asked for the next one, and only then written
            self._put(stored)
            for digest in blob_names(stored.record):
                if digest not in self.blobs:
                    await self._put_blob(digest, stored.seq)

    def _put(self, stored: Stored) -> None:
        public = self.public.add(stored.hash, stored.record)
        text = stored.record.decode()
        self._write(line({"n": stored.seq, "p": stored.prev_hash, "h": stored.hash, "q": public, "r": text}))
        self.records += 1
        if (stored.seq - self.base.seq) % self.stride == 0:
            self.heads.append([stored.seq, public[:SHORT_HASH]])

    async def _put_blob(self, digest: str, seq: Seq) -> None:
        raw = await self._store.blob_get(self._chain.journal_id, digest)
        if raw is None or hashlib.sha256(raw).hexdigest() != digest:
            what = "is missing" if raw is None else "was changed"
            raise JournalTampered(f"the value of record {seq}, kept as blob {digest[:12]}…, {what}", seq)
        self.blobs.add(digest)
        self._write(line({"blob": digest, "b": base64.b64encode(raw).decode()}))


def blob_names(record: bytes) -> list[str]:
    """Digests of the blobs a record names. Only a field itself stands for a blob: deeper down such an object is a user's own."""
    if b'"$blob"' not in record:
        return []
    data = json.loads(record)
    kept = data.get("kept")  # records that a snapshot or segment carries
    holders = [data, *(part for part in kept if isinstance(part, dict))] if isinstance(kept, list) else [data]
    fields = [field for holder in holders for field in holder.values() if isinstance(field, dict)]
    return [name for field in fields for name in blobs_of(field)]
