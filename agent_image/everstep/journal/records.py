"""The records of a journal: one frozen model per kind, and their canonical bytes.

A record is a JSON object in canonical form: keys sorted, no spaces, UTF-8, no NaN or infinities, string keys only (`encode`).
Every record carries

    v        schema version (SCHEMA_VERSION); a newer one is refused
    kind     one of the kinds below; an unknown one is refused
    seq      its number; equal to its place in the stream
    key      step key, timer key or value key; "" for records of the run itself
    name     what people call it (step name); "" where there is none
    attempt  the attempt that wrote it
    time     wall clock when it was made, epoch milliseconds

Never pickle, never a class name that is imported: a planted payload stays data. A value (result, argument, state) is held as
plain JSON in `value`; one above BLOB_OVER_BYTES is kept as a blob and `value` is `{"$blob": "<sha256>", "bytes": n}`. A result
with files, and a snapshot or segment in its `files`, names their blobs in `parts`, too (everstep.run.artifacts).

Models are msgspec's, not pydantic's: they are all that an attempt needs to start, are there in 10 ms instead of 70, and make,
write and read a record in about a fifth of the time. Nothing is coerced when one is read; making one checks its names, not types.

Outcome kinds reach agent code one at a time in journal order: result, failure, abandoned, fired, settled, wait_resolved, cancel.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from operator import attrgetter
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias, get_args

import msgspec

from everstep.errors import JournalUnreadable
from everstep.ids import Decision, Seq
from everstep.ids import EffectClass as EffectClass  # noqa: PLC0414 - whoever makes records finds these here
from everstep.journal.canonical import Json as Json  # noqa: PLC0414 - likewise
from everstep.journal.canonical import canonical as canonical  # noqa: PLC0414 - likewise
from everstep.journal.canonical import exactly

if TYPE_CHECKING:
    from everstep.journal.sealing import Sealer

SCHEMA_VERSION = 1
RECORD_MAX_BYTES = 256 * 1024
BLOB_OVER_BYTES = 64 * 1024
HEARTBEAT_MAX_BYTES = 8 * 1024
"""Details of a heartbeat are a bookmark, not a result: there may be hundreds of them in a long step."""


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    OUTCOME: ClassVar[bool] = False

    v: Annotated[int, msgspec.Meta(ge=1, le=SCHEMA_VERSION)] = SCHEMA_VERSION
    seq: int
    key: str = ""
    name: str = ""
    attempt: int
    time: int


class RunStarted(_Record, frozen=True, kw_only=True, tag="run_started"):
    """First record of every journal."""

    kind: ClassVar[Literal["run_started"]] = "run_started"
    run: str
    namespace: str = ""
    goal: str = ""
    """SHA-256 of the goal."""
    inputs: str = ""
    """SHA-256 of the canonical inputs."""
    entrypoint: str = ""
    image: str = ""
    python: str
    """`3.11`: the minor version is pinned by the run."""
    sdk: str
    key_id: str = ""
    budget: dict[str, Json] | None = None
    """What the run may use, as it was started (everstep.budget)."""
    lineage: dict[str, Json] | None = None
    """Of a fork: what it was made of (everstep.journal.fork)."""


class Pinned(_Record, frozen=True, kw_only=True, tag="pinned"):
    """Image and Python were changed on purpose, and the journal had been replayed under the new ones: they are the run's from
    here on (everstep.run.pins)."""

    kind: ClassVar[Literal["pinned"]] = "pinned"
    image: str = ""
    """As the attempt was told it, with its digest where that is known; "" in local mode."""
    named: str = ""
    """How the spec named it."""
    python: str = ""
    by: str = ""
    """`spec`, `operator` (the digest of a tag became known), `local repin` or `fork`."""


class Intent(_Record, frozen=True, kw_only=True, tag="intent"):
    """A step's body is about to start; written and confirmed before it does. One per try."""

    kind: ClassVar[Literal["intent"]] = "intent"
    effect: EffectClass
    input: str
    """SHA-256 of the canonical arguments."""
    args: dict[str, str] | None = None
    """With two or more arguments the CRC-32 of each one's canonical bytes, to name the one that changed."""
    idem: str
    """The idempotency key, stable over tries and attempts."""
    tries: int = 1
    """Number of this try, from 1."""
    reserve: dict[str, int] | None = None
    """The most this try may use: tokens, costMicroUSD."""


class Held(_Record, frozen=True, kw_only=True, tag="held"):
    """A step was called, and the budget has no room for it: its intent follows when there is, or an outcome without one. Keeps
    the call's place among the agent's calls."""

    kind: ClassVar[Literal["held"]] = "held"
    effect: EffectClass
    input: str
    """SHA-256 of the canonical arguments."""
    args: dict[str, str] | None = None
    """As of an intent."""
    reason: str = ""


class Result(_Record, frozen=True, kw_only=True, tag="result"):
    """A step ended well."""

    kind: ClassVar[Literal["result"]] = "result"
    OUTCOME: ClassVar[bool] = True
    value: Json = None
    took_ms: int = 0
    usage: dict[str, int] | None = None
    """Tokens and cost as the step reported: inputTokens, outputTokens, costMicroUSD. None: it reported nothing."""
    unpriced: dict[str, list[int]] | None = None
    """Of these tokens, by model, in and out: those that had no price and were reported without money."""


class Failure(_Record, frozen=True, kw_only=True, tag="failure"):
    """A step ended in an exception after its last try; raised as StepFailed live and on replay."""

    kind: ClassVar[Literal["failure"]] = "failure"
    OUTCOME: ClassVar[bool] = True
    type: str
    message: str
    data: Json = None
    took_ms: int = 0
    usage: dict[str, int] | None = None
    unpriced: dict[str, list[int]] | None = None


class Abandoned(_Record, frozen=True, kw_only=True, tag="abandoned"):
    """A step that was cancelled by the agent and did not end with a result."""

    kind: ClassVar[Literal["abandoned"]] = "abandoned"
    OUTCOME: ClassVar[bool] = True
    reason: str = ""
    usage: dict[str, int] | None = None
    unpriced: dict[str, list[int]] | None = None


class TryFailed(_Record, frozen=True, kw_only=True, tag="try_failed"):
    """One try failed and another follows. Message bounded to 1 KiB."""

    kind: ClassVar[Literal["try_failed"]] = "try_failed"
    tries: int
    type: str
    message: str
    usage: dict[str, int] | None = None
    unpriced: dict[str, list[int]] | None = None
    limit: str | None = None
    """The entry of `max_tries_by` this try counts for, by its class name."""
    due: int | None = None
    """When the next try may begin, epoch ms: a wait that the other side asked for outlives the process."""


class Heartbeat(_Record, frozen=True, kw_only=True, tag="heartbeat"):
    """What a body in flight last told of its progress, for the next try. Throttled, and only when changed."""

    kind: ClassVar[Literal["heartbeat"]] = "heartbeat"
    details: Json = None
    """At most HEARTBEAT_MAX_BYTES of canonical JSON."""


class Timer(_Record, frozen=True, kw_only=True, tag="timer"):
    """A durable timer was created. `due` is absolute, epoch milliseconds."""

    kind: ClassVar[Literal["timer"]] = "timer"
    due: int


class Fired(_Record, frozen=True, kw_only=True, tag="fired"):
    """A timer fell due."""

    kind: ClassVar[Literal["fired"]] = "fired"
    OUTCOME: ClassVar[bool] = True


class Value(_Record, frozen=True, kw_only=True, tag="value"):
    """A value drawn once: `name` is now, uuid4 or random."""

    kind: ClassVar[Literal["value"]] = "value"
    value: Json = None


class Uncertain(_Record, frozen=True, kw_only=True, tag="uncertain"):
    """A person is asked: an at_most_once step was in flight when its process was lost, and nothing proves whether the effect
    happened; or the tries of a step are used up (`exhausted`), and it was declared to ask then."""

    kind: ClassVar[Literal["uncertain"]] = "uncertain"
    reason: str
    input: str = ""
    exhausted: bool | None = None
    """True: it is known that the last try failed, with the error below."""
    type: str | None = None
    message: str | None = None
    data: Json = None
    usage: dict[str, int] | None = None
    """Of that try; as in `try_failed`."""
    unpriced: dict[str, list[int]] | None = None


class Settled(_Record, frozen=True, kw_only=True, tag="settled"):
    """The uncertain step is decided, by probe or person. `done` delivers `value`; `fail` delivers a failure; `again` licenses
    exactly the next intent of this key and is not an outcome for the agent."""

    kind: ClassVar[Literal["settled"]] = "settled"
    OUTCOME: ClassVar[bool] = True
    decision: Decision
    value: Json = None
    by: str
    """`probe`, or the name of the person."""
    reason: str = ""
    inbox: str = ""
    """Id of the inbox entry that said so."""
    type: str | None = None
    """With `fail` of exhausted tries: the error of the last one, which the agent sees as its own."""
    message: str | None = None
    data: Json = None


class Waited(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a parked run waits for."""

    kind: Literal["uncertain", "exhausted", "timer", "budget"]
    key: str
    name: str = ""
    input: str = ""
    """Digest of the arguments the question is about (uncertain, exhausted)."""
    arguments: Json = None
    """The arguments themselves, as far as they fit 4 KiB."""
    reason: str = ""
    since: int = 0
    due: int | None = None


class Park(_Record, frozen=True, kw_only=True, tag="park"):
    """The attempt ended while the run waits. `wake` = the earliest timer, epoch ms."""

    kind: ClassVar[Literal["park"]] = "park"
    waits: list[Waited]
    wake: int | None = None


class Cancel(_Record, frozen=True, kw_only=True, tag="cancel"):
    """Somebody asked for the run to be cancelled; delivered as an outcome."""

    kind: ClassVar[Literal["cancel"]] = "cancel"
    OUTCOME: ClassVar[bool] = True
    by: str = ""
    reason: str = ""
    inbox: str = ""


class BudgetRaised(_Record, frozen=True, kw_only=True, tag="budget_raised"):
    """What the run may use was changed: by a person, or by another budget at a start (`inbox` is then empty)."""

    kind: ClassVar[Literal["budget_raised"]] = "budget_raised"
    limits: dict[str, Json]
    """Only what changes; null lifts a limit (everstep.budget)."""
    by: str = ""
    reason: str = ""
    inbox: str = ""


class _Epoch(_Record, frozen=True, kw_only=True):
    """Opens a new epoch: a later attempt begins at the newest of these, and what is before it may be compacted (a record of this
    kind may be the first that is left). Written while nothing is pending. Carries all that must outlive what is before it."""

    value: Json = None
    """The state (snapshot) or the inputs (segment)."""
    epoch: int
    """1, 2, … All keys that follow begin with `@<epoch>/`."""
    segment: int = 0
    """How often the run continued as new."""
    clock: int
    """Run time, epoch milliseconds."""
    totals: dict[str, Any]  # JSON
    """Sums over all that is before: `steps` (with an outcome), `spend` (everstep.journal.spend)."""
    applied: Json = None
    """Ids of the inbox entries that were applied so far: a list, or the blob that holds it."""
    kept: list[dict[str, Any]]  # JSON
    """Records of the run itself that still count: run_started, the newest segment (without its `files`, which this record's
    replace), a cancel on its way to the agent."""
    files: Json = None
    """Files that steps kept with everstep.artifact and that were still there when this was written, of each path the newest
    content: a reference as of a result with files, whose own value is null. A restart that begins here puts them back before
    agent code runs. None: there were none, or an SDK wrote this that did not know the field."""


class Snapshot(_Epoch, frozen=True, kw_only=True, tag="snapshot"):
    """The agent's own state, by `everstep.snapshot(state)`: a restart begins here, and `everstep.restored()` gives `value`."""

    kind: ClassVar[Literal["snapshot"]] = "snapshot"


class Segment(_Epoch, frozen=True, kw_only=True, tag="segment"):
    """The agent continued as new: it starts again with the inputs in `value`."""

    kind: ClassVar[Literal["segment"]] = "segment"


class Finished(_Record, frozen=True, kw_only=True, tag="finished"):
    """The last record. Success is this record with outcome `succeeded`, never an exit code."""

    kind: ClassVar[Literal["finished"]] = "finished"
    outcome: Literal["succeeded", "failed", "cancelled"]
    value: Json = None
    type: str = ""
    message: str = ""
    data: Json = None


Record: TypeAlias = (
    RunStarted
    | Pinned
    | Intent
    | Held
    | Result
    | Failure
    | Abandoned
    | TryFailed
    | Heartbeat
    | Timer
    | Fired
    | Value
    | Uncertain
    | Settled
    | Park
    | Snapshot
    | Segment
    | Cancel
    | BudgetRaised
    | Finished
)
KINDS: Mapping[str, type[Record]] = {model.kind: model for model in get_args(Record)}


class _Form:
    """How the records of one kind are written: fields that are None are left out, but for those that have no other default.

    msgspec sorts and writes as `canonical` does (a test compares them), but for fractions: 1e16 and 1e+16 are both right. So what
    may hold fractions is made by `canonical`."""

    __slots__ = ("_fields", "_open", "_shape")

    def __init__(self, model: type[Record]) -> None:
        fields = msgspec.structs.fields(model)
        needed = [f.name for f in fields if model is Value or f.default is not None]
        absent = [f.name for f in fields if f.name not in needed]
        names = [*needed, *absent]
        self._shape = msgspec.defstruct(
            model.__name__,
            [*needed, *((name, Json, None) for name in absent)],
            omit_defaults=True,
            tag_field="kind",
            tag=model.kind,
        )
        self._fields = attrgetter(*names)
        self._open = [names.index(f.name) for f in fields if f.type not in _WITHOUT_FRACTIONS]

    def encode(self, record: Record) -> bytes:
        values: Sequence[Json] = self._fields(record)
        for at in self._open:
            if type(values[at]) not in _AS_THEY_ARE:
                values = [*values[:at], msgspec.Raw(canonical(_plain(values[at]))), *values[at + 1 :]]
        return _ENCODER.encode(self._shape(*values))


_ENCODER = msgspec.json.Encoder(order="sorted", enc_hook=exactly)
_AS_THEY_ARE = (str, int, bool, NoneType)
_WITHOUT_FRACTIONS = (
    *(str, int, EffectClass),
    *(str | None, int | None, bool | None),
    *(dict[str, str] | None, dict[str, int] | None, dict[str, list[int]] | None),
)
_FORMS: dict[type[Record], _Form] = {}
"""Made when a kind is first written."""


def _plain(value: Json) -> Json:
    """With what a park waits for as plain JSON."""
    if isinstance(value, list) and value and isinstance(value[0], Waited):
        return [
            {name: told for name, told in msgspec.structs.asdict(wait).items() if told is not None} for wait in value
        ]
    return value


def encode(record: Record) -> bytes:
    """The bytes that are stored and hashed. Raises ValueError or TypeError for what is not JSON."""
    kind = type(record)
    form = _FORMS.get(kind)
    if form is None:
        form = _FORMS[kind] = _Form(kind)
    return form.encode(record)


@cache
def _decoder() -> msgspec.json.Decoder[Record]:
    return msgspec.json.Decoder(Record)


def decode(raw: bytes, seq: Seq, sealer: "Sealer | None" = None) -> Record:
    """Read a verified record. Raises JournalUnreadable for unknown kinds and newer schemas, naming both versions, and for sealed
    payloads without their key."""
    if sealer is not None:
        raw = sealer.open(raw, seq)
    try:
        return _decoder().decode(raw)
    except (msgspec.DecodeError, RecursionError, ValueError) as e:
        try:
            data = json.loads(raw)
            version, kind = data.get("v"), data.get("kind")
            if "sealed" in data:
                raise JournalUnreadable(f"record {seq} is encrypted, and no data key was given", seq) from e
        except (ValueError, AttributeError, RecursionError):
            version, kind = None, None
        raise JournalUnreadable(
            f"record {seq} cannot be read: kind {kind!r}, schema {version!r}; this SDK knows schema {SCHEMA_VERSION}. "
            f"Use the SDK version that wrote it, or a newer one. ({e})",
            seq,
        ) from e
