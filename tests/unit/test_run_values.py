"""What can be journaled: equal on return, or refused before anything is written, naming step and path."""

import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import hashlib
import json
import pathlib
import threading
import uuid
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, PrivateAttr, field_validator

import everstep
from everstep import NotJSON, StepFailed, ValueTooLarge
from everstep.journal.records import canonical
from everstep.run.values import MAX_DEPTH, VALUE_MAX_BYTES, Codec, Signature
from everstep.testing import MemoryRun


class Colour(enum.Enum):
    RED = "red"


class Ticket(BaseModel):
    id: int
    tags: set[str] = set()
    due: dt.datetime | None = None
    anything: Any = None


@dataclasses.dataclass
class Point:
    x: int
    y: tuple[int, ...]


class Secretive(BaseModel):
    shown: int
    hidden: int = Field(default=0, exclude=True)
    _private: int = PrivateAttr(default=0)


CYCLE: list[object] = []
CYCLE.append(CYCLE)
NOW = dt.datetime(2026, 1, 2, 3, 4, 5, 678900, tzinfo=dt.UTC)

EQUAL: list[tuple[object, object]] = [
    (Any, None),
    (Any, {"a": [1, 2.5, True, None, "é\u2028\n"], "b": {"c": {}}}),
    (Any, 2**80),
    (Any, -0.0),
    (Any, 1e308),
    (dict, {"$blob": "not a blob"}),
    (str, "𝄞" * 10),
    (int, 10**30),
    (float, 0.1),
    (float, 3),
    (bool, True),
    (None, None),
    (tuple[int, str], (1, "a")),
    (set[int], {3, 1, 2}),
    (frozenset[str], frozenset({"a"})),
    (dict[int, str], {1: "a", 2: "b"}),
    (dict[Colour, list[tuple[int, int]]], {Colour.RED: [(1, 2)]}),
    (Ticket, Ticket(id=1, tags={"x", "y"}, due=NOW)),
    (list[Ticket], [Ticket(id=1), Ticket(id=2, anything={"a": 1})]),
    (Ticket | None, None),
    (Point, Point(1, (2, 3))),
    (Colour, Colour.RED),
    (Literal["a", "b"], "b"),
    (dt.datetime, NOW),
    (dt.date, dt.date(2026, 1, 2)),
    (dt.timedelta, dt.timedelta(seconds=1.5)),
    (decimal.Decimal, decimal.Decimal("1.10")),
    (uuid.UUID, uuid.UUID(int=5)),
    (pathlib.Path, pathlib.Path("/a/b")),
    (bytes, b"text"),
]


@pytest.mark.parametrize(("annotation", "value"), EQUAL, ids=repr)
def test_c6_c47_supported_values_come_back_equal(annotation: object, value: object) -> None:
    codec = Codec(annotation, "f", "result")
    encoded = codec.encode(value)
    back = codec.decode(json.loads(encoded.raw))
    assert back == value
    if annotation is not float:
        assert type(back) is type(value)
    assert canonical(encoded.data) == encoded.raw


REFUSED: list[tuple[object, object, str]] = [
    (Any, (1, 2), "result: tuple is not JSON; annotate"),
    (Any, {"a": {1: "x"}}, "result.a: key 1 is int; JSON keys are strings"),
    (Any, {"a": [1, {"b": {1, 2}}]}, "result.a[1].b: set is not JSON"),
    (Any, float("nan"), "result: nan is not JSON"),
    (Any, {"a": float("inf")}, "result.a: inf is not JSON"),
    (float, float("nan"), "result: nan is not JSON"),
    (list[float], [1.0, float("inf")], "result[1]: inf is not JSON"),
    (Any, CYCLE, "result[0]: contains itself"),
    (Any, object(), "result: object is not JSON"),
    (Any, fractions.Fraction(1, 3), "result: Fraction is not JSON"),
    (Any, range(3), "result: range is not JSON"),
    (Any, pathlib.Path("/a"), "result: PosixPath is not JSON"),
    (Any, threading.Lock(), "result: lock is not JSON"),
    (Any, "\ud800", "result: text with lone surrogates"),
    (str, "\ud800", "result: text with lone surrogates"),
    (Any, b"x", "result: bytes is not JSON"),
    (Any, NOW, "result: datetime is not JSON"),
    (bytes, b"\xff", "result"),
    (int, "many", "result does not fit its annotation"),
    (Ticket, {"id": "x"}, "result does not fit its annotation: id:"),
    (Ticket, Ticket(id=1, anything=(1, 2)), "result.anything: tuple (1, 2) would come back as list [1, 2]"),
    (dict[str, Any], {"a": {"b": (1,)}}, "result.a.b: tuple (1,) would come back as list [1]"),
    (list, [{1, 2}], "result[0]"),
    (Secretive, Secretive(shown=1, hidden=2), "result.hidden: int 2 would come back as int 0"),
    (None, "something", "result does not fit its annotation"),
]


@pytest.mark.parametrize(("annotation", "value", "message"), REFUSED, ids=lambda v: repr(v)[:30])
def test_c47_everything_else_is_refused_naming_the_path(annotation: object, value: object, message: str) -> None:
    with pytest.raises(NotJSON) as e:
        Codec(annotation, "file_ticket", "result").encode(value)
    assert str(e.value).startswith("file_ticket: ")
    assert message in str(e.value)


def nested(levels: int) -> Any:
    """Lists and dicts in turn."""
    value: Any = "leaf"
    for n in range(levels):
        value = [value, "[" * 300] if n % 2 else {"k": value}
    return value


@pytest.mark.parametrize("annotation", [Any, object, list, list[Any], dict[str, Any] | list[Any]], ids=str)
@pytest.mark.parametrize("levels", [MAX_DEPTH + 2, 400, 100_000])
def test_deep_nesting_is_refused(annotation: object, levels: int) -> None:
    with pytest.raises(NotJSON, match="nested deeper than 200 levels"):
        Codec(annotation, "f", "result").encode(nested(levels))


def test_nesting_up_to_the_bound_and_any_width_pass() -> None:
    for value in (nested(MAX_DEPTH), [nested(3) for _ in range(500)], "[" * 1000, {"{" * 500: [{}]}):
        assert Codec(Any, "f", "result").decode(Codec(Any, "f", "result").encode(value).data) == value


def test_types_that_cannot_be_journaled_are_refused_at_import() -> None:
    with pytest.raises(everstep.BadStep, match="argument lock is annotated"):

        @everstep.step(effect="read")
        async def locks(lock: threading.Event) -> None: ...


class Later(BaseModel):
    n: int


def test_annotations_that_name_something_later_are_built_at_the_first_call() -> None:
    def fn(later: "Later") -> "Later":
        return later

    data, _ = Signature(fn, "fn").encode((Later(n=1),), {})
    assert data == {"later": {"n": 1}}


def test_c9_the_digest_of_arguments_is_that_of_their_canonical_form() -> None:
    def fn(b: dict[str, int], a: int = 2, *rest: int, k: str = "x", **more: int) -> None: ...

    signature = Signature(fn, "fn")
    data, digest = signature.encode(({"z": 1, "a": 2},), {})
    assert data == {"b": {"z": 1, "a": 2}, "a": 2, "rest": [], "k": "x", "more": {}}
    assert digest == hashlib.sha256(canonical(data)).hexdigest()
    assert signature.encode(({"a": 2, "z": 1}, 2), {"k": "x"})[1] == digest
    data, digest = signature.encode(({}, 1, 3, 4), {"q": 9})
    assert digest == hashlib.sha256(canonical(data)).hexdigest()
    assert signature.decode(data) == ([{}, 1, 3, 4], {"k": "x", "q": 9})

    def plain(ü: int, b: str) -> None: ...  # noqa: PLC2401 - people may

    data, digest = Signature(plain, "plain").encode((1, "x"), {})
    assert digest == hashlib.sha256(canonical(data)).hexdigest()


def test_wrong_calls_raise_as_python_does() -> None:
    def fn(a: int) -> None: ...

    with pytest.raises(TypeError):
        Signature(fn, "fn").encode((), {})
    with pytest.raises(TypeError):
        Signature(fn, "fn").encode((1, 2), {})


seen_by_body: list[object] = []


@everstep.step(effect="read")
async def echo(value: Ticket, plain: list[int]) -> Ticket:
    seen_by_body.append(plain)
    plain.append(99)  # the body has a copy of its own
    return value


@everstep.step(effect="read")
async def tuples() -> tuple[int, set[str]]:
    return 1, {"a"}


@everstep.step(effect="read")
async def returns(what: str) -> Any:
    if what == "nan":
        return float("nan")
    return "x" * (VALUE_MAX_BYTES + 1)


@everstep.agent
async def values(goal: str) -> list[object]:
    mine = [1]
    ticket = await echo(Ticket(id=1, tags={"x"}), mine)
    ticket.tags.add("mine")
    pair = await tuples()
    seen: list[object] = [mine, sorted(ticket.tags), [type(v).__name__ for v in pair]]
    for what in ("nan", "huge"):
        try:
            await returns(what)
        except StepFailed as e:
            seen.append([e.type, e.message])
    try:
        await echo(Ticket(id=1), "x" * (VALUE_MAX_BYTES + 1))  # type: ignore[arg-type]  # wrong on purpose
    except NotJSON as e:
        seen.append(str(e)[:60])
    return seen


def test_c6_first_run_equals_replay_and_bodies_share_nothing_with_the_agent() -> None:
    run: MemoryRun[list[object]] = MemoryRun(values, "go")
    first = run.run()
    assert first == run.replay()
    assert first[:3] == [[1], ["mine", "x"], ["int", "set"]]
    assert first[3] == ["NotJSON", "returns: result: nan is not JSON"]
    assert first[4][0] == "ValueTooLarge"  # type: ignore[index]  # a list, see above
    assert str(first[5]).startswith("echo: argument plain does not fit its annotation")
    assert (
        run.bodies["2"] == run.bodies["3"] == 1
    )  # an effect whose value cannot be journaled has happened: never again


def test_arguments_are_checked_before_anything_is_written() -> None:
    @everstep.step(effect="read")
    async def takes(body: dict[str, Any]) -> None: ...

    @everstep.agent
    async def run(goal: str) -> str:
        try:
            await takes({"due": NOW})
        except NotJSON as e:
            return str(e)
        return "?"

    there: MemoryRun[str] = MemoryRun(run, "go")
    assert there.run().startswith("takes: argument body.due: datetime datetime.datetime(2026")
    assert there.kinds() == ["run_started", "finished"]


@everstep.step(effect="read")
async def large(size: int) -> dict[str, Any]:
    return {"text": "é" * size, "$blob": "mine"}


@everstep.agent
async def blobs(goal: str) -> list[object]:
    sizes = [0, 30_000, 32_750, 32_760, 40_000, 1_000_000]
    got = [await large(n) for n in sizes]
    return [[len(g["text"]), g["$blob"]] for g in got]


def test_c5_c45_values_above_the_offload_bound_replay_whole() -> None:
    run: MemoryRun[list[object]] = MemoryRun(blobs, "go")
    run.attempt(crash_at="after_append:5")
    assert run.run() == [[n, "mine"] for n in (0, 30_000, 32_750, 32_760, 40_000, 1_000_000)]
    assert run.replay() == run.replay()
    assert all(len(s.record) < 70_000 for s in run.store.journals_by_id[run.journal_id].records)


def test_a_blob_that_was_changed_or_lost_is_tampering() -> None:
    def lose(blobs: dict[Any, bytes]) -> None:
        blobs.clear()

    def change(blobs: dict[Any, bytes]) -> None:
        blobs.update(dict.fromkeys(blobs, b"{}"))

    for spoil in (lose, change):
        run: MemoryRun[list[object]] = MemoryRun(blobs, "go")
        run.attempt(crash_at="before_finished")
        spoil(run.store.blobs)
        assert isinstance(run.attempt().error, everstep.errors.JournalTampered)


def test_c45_a_byte_below_at_and_above_the_bound() -> None:
    codec = Codec(str, "f", "result")
    for size in (VALUE_MAX_BYTES - 1, VALUE_MAX_BYTES):
        assert len(codec.encode("x" * (size - 2)).raw) == size
    with pytest.raises(ValueTooLarge, match=f"takes {VALUE_MAX_BYTES + 1} bytes; the bound is {VALUE_MAX_BYTES}"):
        codec.encode("x" * (VALUE_MAX_BYTES - 1))


def test_c48_planted_payloads_stay_data() -> None:
    """Whatever stands in a record comes back as JSON: no class is looked up, nothing is called."""
    payloads = [
        {"py/object": "os.system", "args": ["touch /tmp/owned"]},
        {"__reduce__": ["os.system", ["id"]]},
        {"lc": 1, "type": "constructor", "id": ["os", "system"], "kwargs": {"command": "id"}},
        {"$type": "builtins.eval", "value": "1/0"},
        "!!python/object/apply:os.system ['id']",
    ]

    @everstep.step(effect="read")
    async def planted(n: int) -> Any:
        return payloads[n]

    @everstep.agent
    async def run(goal: str) -> list[Any]:
        return [await planted(n) for n in range(len(payloads))]

    there: MemoryRun[list[Any]] = MemoryRun(run, "go")
    assert there.run() == payloads
    assert there.replay() == payloads


def test_drawn_values_are_the_same_on_replay() -> None:
    @everstep.agent
    async def run(goal: str) -> list[str]:
        return [everstep.now().isoformat(), str(everstep.uuid4()), repr(everstep.random()), repr(everstep.random())]

    there: MemoryRun[list[str]] = MemoryRun(run, "go")
    first = there.run()
    assert first == there.replay()
    assert first[2] != first[3]
    assert uuid.UUID(first[1]).version == 4
    assert dt.datetime.fromisoformat(first[0]).tzinfo is not None


class Stubborn(BaseModel):  # noqa: PLW1641 - its comparison is what is tested
    n: int

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("cannot be compared")

    @field_validator("n")
    @classmethod
    def _explodes(cls, n: int) -> int:
        if n == 13:
            raise KeyError("unlucky")
        return n


def test_errors_of_the_values_own_code_are_refusals_not_crashes() -> None:
    codec = Codec(Stubborn, "f", "result")
    with pytest.raises(NotJSON, match=r"must come back equal"):
        codec.encode(Stubborn(n=1))
    with pytest.raises(NotJSON, match="unlucky"):
        codec.decode({"n": 13})


def test_annotations_that_cannot_be_resolved_are_named() -> None:
    def fn(later: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821 - what is tested

    signature = Signature(fn, "fn")
    with pytest.raises(
        everstep.BadStep, match=r"'Nowhere' is not defined. Types of steps and agents must be defined at"
    ):
        signature.encode((1,), {})


def test_the_result_of_a_run_is_not_lost_to_a_tuple() -> None:
    @everstep.agent
    async def run(goal: str) -> Any:
        return {"pair": (1, 2), "when": NOW, 3: "three"}

    there: MemoryRun[Any] = MemoryRun(run, "go")
    assert there.run() == {"pair": [1, 2], "when": "2026-01-02T03:04:05.678900Z", "3": "three"}
    there.replay()


class Token(str):
    """As a library of somebody's has them."""


class Count(int):
    """Likewise."""


def test_names_and_numbers_may_be_of_subclasses() -> None:
    @everstep.agent
    async def named(goal: str) -> str:
        async def body() -> str:
            everstep.report_usage(input_tokens=Count(3))
            return Token("seen")

        return str(await everstep.run_step(Token("look"), body, effect=Token("read")))  # type: ignore[arg-type]  # the point

    run = MemoryRun[str](named, "go")
    assert run.attempt().value == "seen"
    assert [(r.kind, r.name) for r in run.records if r.key == "0"] == [("intent", "look"), ("result", "look")]
