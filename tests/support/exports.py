"""Exports to be judged: a journal in memory, its file, and its lines taken apart and put together again."""

import hashlib
import io
import json
from dataclasses import dataclass
from typing import Any

import pytest

from everstep.ids import Attempt, JournalId, Owner, Seq
from everstep.journal.chain import Chain, derive_run_key
from everstep.journal.export import About, export
from everstep.journal.exported import FileReport, check_export
from everstep.journal.memory import MemoryStore
from everstep.journal.records import Record, Result, RunStarted, encode
from everstep.journal.signing import SigningKey
from everstep.journal.store import Head, Sealed

OPERATOR_KEY = b"\x07" * 32
RECORDS = 9
BLOB_AT = 5
"""The record whose value is kept beside the journal."""
Line = dict[str, Any]  # Any: JSON data of the file
SIGNER = SigningKey.new()
TRUSTED = [SIGNER.public]


@dataclass
class Made:
    """A journal and ways to export it."""

    store: MemoryStore
    chain: Chain
    heads: list[Head]

    async def file(self, *, signer: SigningKey | None = SIGNER, anchor: Head | None = None) -> bytes:
        out = io.BytesIO()
        about = About("triage", "ops", "k1", "0.1.0")
        await export(self.store, self.chain, about, out.write, anchor=anchor, signer=signer)
        return out.getvalue()


async def made(name: str = "j", *, records: int = RECORDS, key: bytes | None = OPERATOR_KEY, word: str = "x") -> Made:
    """A journal of `records` records in two attempts; one value is a blob."""
    store, journal = MemoryStore(), JournalId(name)
    chain = Chain(journal, None if key is None else derive_run_key(key, journal))
    head = Head(Seq(0), chain.genesis())
    heads = [head]
    await store.fence(journal, Attempt(1), head, {})
    await store.claim(journal, Attempt(1), Owner("o"))
    blob = b'"' + word.encode() * 700 + b'"'
    await store.blob_put(journal, hashlib.sha256(blob).hexdigest(), blob)
    for n in range(1, records + 1):
        value: object = {"said": word * 3, "n": n, "ümlaut": "\u2028"}
        if n == BLOB_AT:
            value = {"$blob": hashlib.sha256(blob).hexdigest(), "bytes": len(blob)}
        record: Record = Result(seq=n, key=str(n), name="look", attempt=1, time=n, value=value)
        if n == 1:
            record = RunStarted(seq=1, attempt=1, time=1, run="triage", python="3.11", sdk="0.1.0")
        raw = encode(record)
        sealed = Sealed(Seq(n), raw, head.hash, chain.link(head.hash, raw))
        await store.append(journal, Attempt(1), Owner("o"), head, [sealed])
        head = Head(sealed.seq, sealed.hash)
        heads.append(head)
    return Made(store, chain, heads)


async def judge(data: bytes, **given: Any) -> FileReport:  # Any: the arguments of check_export
    return await check_export(io.BytesIO(data), **given)


def lines(data: bytes) -> list[Line]:
    return [json.loads(line) for line in data.splitlines()]


def joined(parts: list[Line]) -> bytes:
    return b"".join(json.dumps(part, ensure_ascii=False, separators=(",", ":")).encode() + b"\n" for part in parts)


def place(parts: list[Line], seq: int) -> int:
    """Where a record's line is."""
    return next(at for at, part in enumerate(parts) if part.get("n") == seq)


Given = dict[str, Any]
BY_KEY: Given = {"key": OPERATOR_KEY}
BY_SIGNATURE: Given = {"trusted": TRUSTED, "demand_signature": True}
BOTH: Given = BY_KEY | BY_SIGNATURE
WAYS = pytest.mark.parametrize("given", [BY_KEY, BY_SIGNATURE, BOTH], ids=["key", "signature", "both"])
