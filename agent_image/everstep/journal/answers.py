"""What a store answers, decided purely: memory and SQLite ask here, the Lua scripts say the same in the server's language.

Whoever calls holds a transaction (or never awaits), so what is passed in is one consistent state.
"""

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

from everstep.ids import Attempt, Owner, RecordHash, Seq
from everstep.journal.store import AppendAnswer, ClaimAnswer, CompactAnswer, FenceAnswer, Head, Sealed

HashAt = Callable[[int], RecordHash | None]
"""The stored hash of a record by its seq; None where there is none. 0 asks for the previous hash of record 1."""


class State(NamedTuple):
    """What a decision looks at: meta's fields and the seq of the newest record that is really there."""

    attempt: Attempt
    owner: Owner | None
    head: Head
    last_seq: int


def answer_fence(have: State | None, attempt: Attempt, anchor: Head, hash_at: HashAt) -> FenceAnswer:
    """`have` None: there is no such journal. OK with a higher attempt means: set it and remove the owner."""
    if have is None:
        return FenceAnswer.OK if anchor.seq == 0 else FenceAnswer.LOST
    if anchor.seq > have.head.seq or anchor.seq > have.last_seq:
        return FenceAnswer.LOST
    at_anchor = have.head.hash if anchor.seq == have.last_seq == 0 else hash_at(anchor.seq)
    if at_anchor != anchor.hash:
        return FenceAnswer.TAMPERED
    return FenceAnswer.FENCED if attempt < have.attempt else FenceAnswer.OK


def answer_claim(have: State | None, attempt: Attempt, owner: Owner) -> ClaimAnswer:
    """OK: set the owner."""
    if have is None or have.attempt != attempt:
        return ClaimAnswer.FENCED
    return ClaimAnswer.OK if have.owner in (None, owner) else ClaimAnswer.TAKEN


def answer_report(have: State | None, attempt: Attempt, owner: Owner) -> ClaimAnswer:
    """OK: set the progress."""
    if have is None or have.attempt != attempt or have.owner is None:
        return ClaimAnswer.FENCED
    return ClaimAnswer.OK if have.owner == owner else ClaimAnswer.TAKEN


def answer_compact(
    have: State | None,
    lease: tuple[Attempt, Owner],
    upto: Seq,
    anchor: Head,
    hash_at: HashAt,
    record_at: Callable[[int], bytes | None],
) -> CompactAnswer:
    """OK: delete what is before `upto`."""
    answer = answer_report(have, *lease)
    if answer is not ClaimAnswer.OK:
        return CompactAnswer(answer.value)
    if not 1 <= upto <= anchor.seq or hash_at(anchor.seq) != anchor.hash:
        return CompactAnswer.REFUSED
    return CompactAnswer.OK if opens_epoch(record_at(upto)) else CompactAnswer.REFUSED


def opens_epoch(record: bytes | None) -> bool:
    """Whether these bytes are a snapshot or a segment, as far as their kind says."""
    try:
        told = json.loads(record or b"")
    except (ValueError, RecursionError):
        return False
    return isinstance(told, dict) and told.get("kind") in ("snapshot", "segment")


def answer_append(  # noqa: PLR0911 - one return per answer reads like the table it is
    have: State | None,
    lease: tuple[Attempt, Owner],
    after: Head,
    records: Sequence[Sealed],
    hash_at: HashAt,
    unread_inbox: Callable[[], bool],
) -> tuple[AppendAnswer, int]:
    """The answer, and with OK how many of the records are there already and must be skipped. `unread_inbox` is asked only
    when something would be written: a park that landed is DUP, whatever came into the inbox since."""
    attempt, owner = lease
    if have is None or have.attempt < attempt or (have.attempt == attempt and have.owner is None):
        return AppendAnswer.NOLEASE, 0  # our fence or claim is gone: the store went back in time
    if have.attempt > attempt:
        return AppendAnswer.FENCED, 0
    if have.owner != owner:
        return AppendAnswer.TAKEN, 0
    if have.last_seq != have.head.seq or have.head.seq < after.seq:
        return AppendAnswer.GAP, 0
    skip = min(have.head.seq - after.seq, len(records))
    if skip == 0 and have.head.hash != after.hash:
        return AppendAnswer.CONFLICT, 0
    if any(hash_at(r.seq) != r.hash for r in records[:skip]):
        return AppendAnswer.CONFLICT, 0
    if skip == len(records):
        return AppendAnswer.DUP, skip
    return (AppendAnswer.INBOX if unread_inbox() else AppendAnswer.OK), skip
