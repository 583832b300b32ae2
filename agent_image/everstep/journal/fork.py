"""A fork: a new run whose journal begins with the proved beginning of another one.

    source   1 … c-1 | c: the first record of step K | …
    fork     1 … c-1'| what the source knows of steps that were in flight at c |   then its own records

Copied, sealed again under the new journal's chain, numbered again, as attempt 1: everything before step K that agent code did or
was told: intents, outcomes, timers, values, and what was spent. Not copied: parks, which tell of another run's waiting, and pins:
image and Python are the fork's own choice, pinned when its first attempt has replayed the prefix.
A step that was in flight at the cut and has ended since brings its further records along: its effect must not happen again. It
stays open, and runs again under its recorded idempotency key or asks again, if a person's answer was needed, or the agent of the
source gave it up later: another agent may not. Ids of inbox entries are not kept: the fork has an inbox of its own.

The first record tells where it comes from: `run_started.lineage` = {"journal", "run", "seq", "hash", "step", "copied",
"activeMs"}. `seq` and `hash` are those of the last record of the source before the cut, `copied` is how many records of the fork
are not its own, `activeMs` the active time they stand for.
"""

import hashlib
import json
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from everstep.errors import ConfigError, JournalTampered
from everstep.ids import Attempt, Owner, Seq
from everstep.journal.blobnames import blobs_of
from everstep.journal.canonical import canonical
from everstep.journal.chain import Chain
from everstep.journal.records import (
    Abandoned,
    BudgetRaised,
    Cancel,
    Failure,
    Finished,
    Held,
    Intent,
    Json,
    Record,
    Result,
    RunStarted,
    Segment,
    Settled,
    Snapshot,
    Uncertain,
    decode,
    encode,
)
from everstep.journal.sealing import Sealer
from everstep.journal.spend import Spend
from everstep.journal.store import APPEND_MAX_RECORDS, AppendAnswer, ClaimAnswer, FenceAnswer, Head, Sealed, Store
from everstep.journal.verify import Verdict, VerifyReport

ATTEMPT = Attempt(1)
"""The copied records are its; the run's own attempts begin with 2."""
END = "end"
"""In place of a step: keep all that is recorded, only not the end of the run."""
_UNPROVED = (Verdict.ANCHOR,)
SEGMENTED = (
    "that step comes after everstep.continue_as_new, which set the agent's inputs; other inputs are possible only in a fork from "
    "a step before it"
)
_NOT_ITS_OWN = ("park", "pinned")
_FORKED_INBOX = "fork"
_BATCH_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Fork:
    """What the new journal begins with; not sealed yet."""

    records: Sequence[Record]
    """Numbered from 1, all of ATTEMPT."""
    lineage: Mapping[str, Json]
    blobs: Sequence[str]
    """Digests of the values that lie beside the records."""
    in_flight: Sequence[str]
    """Keys of steps that were in flight at the cut and stay open."""
    brought: Sequence[str]
    """Keys of steps that were in flight at the cut and whose end is known."""

    @property
    def segmented(self) -> bool:
        """The agent began anew (continue_as_new) before the cut: its inputs are those of that record."""
        return any(isinstance(r, Segment) or _kept(r, "segment") for r in self.records)


def plan(report: VerifyReport, run: str, step: str, sealer: Sealer | None = None) -> Fork:
    """What a fork of `run` before `step` (a key, `#key`, a name that is there once, or `end`) begins with. `report` carries the
    proved records (keep=True); `sealer` opens them where the run is encrypted. Raises ConfigError, JournalTampered,
    JournalLost: only proved records are ever copied."""
    if report.verdict in _UNPROVED:
        report.require_whole()
    records = [decode(stored.record, stored.seq, sealer) for stored in report.records]
    at = _cut(records, report, run, step)
    before = records[:at]
    started = beginning(before[0]) if before else None
    if started is None:
        raise ConfigError(f"run {run} has no record before step {step} that a fork could begin with")
    if any(isinstance(r, Cancel) for r in before) or any(_kept(r, "cancel") for r in before):
        raise ConfigError(f"step {step} of run {run} was called after the run was cancelled; fork from an earlier step")
    open_keys = _open(before)
    tails = {key: tail for key in open_keys if (tail := _tail(records[at:], key))}
    lineage = {
        "journal": report.journal_id,
        "run": run,
        "seq": before[-1].seq,
        "hash": report.records[at - 1].hash,
        "step": records[at].key if at < len(records) and step != END else END,
    }
    after = sorted((r for tail in tails.values() for r in tail), key=lambda r: r.seq)
    kept = [r for r in [*before, *after, *_doubts(before, open_keys, tails, run)] if r.kind not in _NOT_ITS_OWN]
    if not isinstance(kept[0], RunStarted):  # the beginning was compacted away; the record that is first carries it
        kept.insert(0, started)
    copied = [_copy(r, i + 1) for i, r in enumerate(kept)]
    return Fork(
        copied,
        lineage | {"copied": len(copied), "activeMs": _active_ms(kept)},
        sorted({name for record in copied for name in _blobs(record)}),
        [key for key in open_keys if key not in tails],
        list(tails),
    )


def beginning(record: Record) -> RunStarted | None:
    """The run's beginning, as its first record or carried by one that opened an epoch."""
    if isinstance(record, RunStarted):
        return record
    found = [decode(canonical(data), Seq(record.seq)) for data in _kept(record, "run_started")]
    return found[0] if found and isinstance(found[0], RunStarted) else None


def _kept(record: Record, kind: str) -> list[dict[str, Any]]:  # JSON
    """Records that one which opened an epoch carries."""
    return [data for data in record.kept if data["kind"] == kind] if isinstance(record, Snapshot | Segment) else []


def _cut(records: Sequence[Record], report: VerifyReport, run: str, step: str) -> int:
    """Index of the first record that is not kept."""
    if step == END:
        report.require_whole()
        return len(records) - (bool(records) and isinstance(records[-1], Finished))
    firsts: dict[str, int] = {}
    for i, record in enumerate(records):
        if isinstance(record, Intent | Held):
            firsts.setdefault(record.key, i)
    key = step.removeprefix("#")
    found = [firsts[key]] if key in firsts else [i for i in firsts.values() if records[i].name == step]
    if len(found) == 1:
        return found[0]
    if found:
        keys = ", ".join(f"#{records[i].key}" for i in found[:10]) + (" …" if len(found) > 10 else "")
        raise ConfigError(f"run {run} called step {step} more than once; name one call by its key: {keys}")
    report.require_whole()  # it may lie behind the record that does not fit
    raise ConfigError(f"run {run} has no step {step}; `steps {run}` lists them with their keys")


def _open(records: Sequence[Record]) -> list[str]:
    """Keys of the calls that have no outcome, in order."""
    still: dict[str, None] = {}
    for record in records:
        if isinstance(record, Intent | Held):
            still[record.key] = None
        elif record.OUTCOME and not (isinstance(record, Settled) and record.decision == "again"):
            still.pop(record.key, None)
    return list(still)


def _tail(later: Sequence[Record], key: str) -> list[Record]:
    """The further records of a call up to its outcome; [] if it stays open."""
    tail: list[Record] = []
    for record in later:
        if record.key != key:
            continue
        tail.append(record)
        match record:
            case Abandoned() | Failure(type="BudgetExceeded", data={"budget": _}):
                return []  # the agent of the source gave it up, or its budget had no room
            case Settled() if record.inbox:
                return []  # a person's answer; the fork asks again
            case Result() | Failure():
                return tail
            case Settled() if record.decision != "again":
                return tail
    return []


def _doubts(before: Sequence[Record], open_keys: Sequence[str], known: Container[str], run: str) -> Iterator[Record]:
    """An `uncertain` for each at_most_once step that stays open: a process of the source may still be at it, or has been at it
    since the cut, so neither a licence to run again nor a probe's "not done" may count in the fork."""
    for key in open_keys:
        own = [r for r in before if r.key == key]
        intent = next((r for r in own if isinstance(r, Intent)), None)
        if key in known or intent is None or intent.effect != "at_most_once" or isinstance(own[-1], Uncertain):
            continue
        yield Uncertain(
            seq=before[-1].seq,
            attempt=ATTEMPT,
            time=before[-1].time,
            key=key,
            name=intent.name,
            reason=f"it was in flight when run {run} was forked, and may have happened there",
            input=intent.input,
        )


def _active_ms(records: Sequence[Record]) -> int:
    """Active time up to the cut; the copied records cannot tell it, as they are all of one attempt."""
    spend = Spend()
    for record in records:
        spend.add(record)
    spend.begin_attempt(0)
    return spend.active_ms()


def _copy(record: Record, seq: int) -> Record:
    update: dict[str, Any] = {"seq": seq, "attempt": ATTEMPT}
    if isinstance(record, Settled) and record.inbox:
        update["inbox"] = ""
    if isinstance(record, BudgetRaised) and record.inbox:
        update["inbox"] = _FORKED_INBOX
    return msgspec.structs.replace(record, **update)


def _blobs(record: Record) -> Iterator[str]:
    for field, value in msgspec.structs.asdict(record).items():
        if field == "applied":
            continue
        yield from blobs_of(value)
    for segment in _kept(record, "segment"):
        yield from blobs_of(segment.get("value"))


def begin(fork: Fork, started: Mapping[str, Any]) -> list[Record]:  # fields of RunStarted
    """The records with a first one that is the new run's own: `started` replaces what differs from the source."""
    first, *rest = fork.records
    assert isinstance(first, RunStarted)
    own = msgspec.structs.replace(first, **{"image": "", "python": "", "lineage": dict(fork.lineage), **started})
    mine = json.loads(encode(own))
    return [own, *(_epoch(record, mine) if isinstance(record, Snapshot | Segment) else record for record in rest)]


def _epoch(record: Snapshot | Segment, started: dict[str, Any]) -> Snapshot | Segment:  # JSON
    """One that opened an epoch, carrying the beginning of the fork in place of the source's, and no ids of its inbox."""
    return msgspec.structs.replace(record, applied=None, kept=_carried(record.kept, started))


def _carried(kept: Sequence[dict[str, Any]], started: dict[str, Any]) -> list[dict[str, Any]]:  # JSON
    own: list[dict[str, Any]] = []
    for data in kept:
        if data["kind"] == "run_started":
            own.append(started)
        elif data["kind"] == "segment":
            told = {name: value for name, value in data.items() if name != "applied"}
            own.append(told | {"attempt": ATTEMPT, "kept": _carried(data["kept"], started)})
    return own


def seal(chain: Chain, records: Sequence[Record], renamed: Mapping[str, str] | None = None) -> list[Sealed]:
    """The links of the new chain; payloads are sealed anew where it is an encrypted run's. `renamed`: names of blobs there."""
    sealed: list[Sealed] = []
    prev = chain.genesis()
    for record in records:
        raw = encode(record)
        for old, new in (renamed or {}).items():
            raw = raw.replace(old.encode(), new.encode())
        if chain.sealer is not None:
            raw = chain.sealer.seal(raw)
        sealed.append(Sealed(Seq(record.seq), raw, prev, chain.link(prev, raw)))
        prev = sealed[-1].hash
    return sealed


async def rename_blobs(store: Store, source: Chain, target: Chain, names: Sequence[str]) -> dict[str, str]:
    """What values beside the records are called in the new journal; {} unless one of both is encrypted. Raises
    JournalTampered."""
    if source.sealer is None and target.sealer is None:
        return {}
    return {name: (await _resealed(store, source, target, name))[0] for name in names}


async def copy_blobs(store: Store, source: Chain, target: Chain, names: Sequence[str]) -> None:
    """Values beside the records. Raises JournalTampered if one of a record's own is missing or changed."""
    for name in names:
        new, raw = await _resealed(store, source, target, name)
        await store.blob_put(target.journal_id, new, raw)


async def _resealed(store: Store, source: Chain, target: Chain, name: str) -> tuple[str, bytes]:
    """A blob's name and bytes in the new journal."""
    raw = await store.blob_get(source.journal_id, name)
    if raw is None or hashlib.sha256(raw).hexdigest() != name:
        what = "is missing" if raw is None else "was changed"
        raise JournalTampered(f"the value kept as blob {name[:12]}… {what}", Seq(1))
    if source.sealer is not None:
        raw = source.sealer.open_blob(raw, Seq(1))
    if target.sealer is not None:
        raw = target.sealer.seal_blob(raw)
    return hashlib.sha256(raw).hexdigest(), raw


async def write(store: Store, chain: Chain, owner: Owner, sealed: Sequence[Sealed], fields: Mapping[str, str]) -> Head:
    """Write the new journal; its head. The same owner may repeat the very same call. Raises ConfigError if another journal
    is there, JournalUnavailable."""
    journal, head = chain.journal_id, Head(Seq(0), chain.genesis())
    reply = await store.fence(journal, ATTEMPT, head, dict(fields))
    claim = await store.claim(journal, ATTEMPT, owner) if reply.answer is FenceAnswer.OK else None
    if claim is None or claim.answer is not ClaimAnswer.OK:
        raise ConfigError(f"journal {journal} is there already; a fork needs a run that has not begun")
    for batch in _batches(sealed):
        said = await store.append(journal, ATTEMPT, owner, head, batch)
        if said.answer not in (AppendAnswer.OK, AppendAnswer.DUP):
            raise ConfigError(f"journal {journal} was taken by somebody else while it was written ({said.answer})")
        head = Head(batch[-1].seq, batch[-1].hash)
    return head


def _batches(sealed: Sequence[Sealed]) -> Iterator[list[Sealed]]:
    batch: list[Sealed] = []
    size = 0
    for one in sealed:
        if batch and (len(batch) == APPEND_MAX_RECORDS or size + len(one.record) > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += len(one.record)
    if batch:
        yield batch
