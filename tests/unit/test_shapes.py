"""Values that do without pydantic come out as pydantic would give them, and it still has its say about all others."""

import random
from typing import Any, Optional, Union

import pytest

from everstep.errors import LimitError
from everstep.ids import StepKey
from everstep.run.shapes import shape_of
from everstep.run.values import Codec

PLAIN: list[Any] = [
    list[str],
    list[int],
    list[float],
    list[Any],
    list[list[int]],
    list,
    dict,
    dict[str, int],
    dict[str, Any],
    dict[str, list[str | None]],
    str | None,
    int | str,
    int | float,
    float | int | None,
    bool | int,
    Optional[list[str]],  # noqa: UP045  # what people write
    Union[dict[str, bool], list[bool]],  # noqa: UP007  # the same
    list[object],
]
OTHER: list[Any] = [
    tuple[int, ...],
    set[str],
    dict[int, str],
    bytes,
    list[bytes],
    list[tuple[int, int]],
    StepKey | bytes,
]
LONG = 2**70
VALUES: list[Any] = [
    None,
    True,
    1,
    1.0,
    -0.0,
    1e300,
    LONG,
    float("nan"),
    "",
    "text " * 40,
    "\ud800",
    "7",
    [],
    {},
    (1, 2),
    {1: "a"},
    {"a": {"b": [1, {"c": None}]}},
    [True, 1, 1.5, "x"],
    [float("inf")],
    [["\udfff"]],
    [(1,)],
    [[1], [2, 3]],
    ["a", None],
    {"a": 1, "b": "2"},
    {"z": [None, "s"], "a": []},
    {"k": True},
    [{"deep": [[[[1]]]]}],
    b"bytes",
    {"s": {1, 2}},
]


def outcome(codec: Codec, value: Any) -> object:
    """What comes of a value, written and read back; or the error."""
    try:
        encoded = codec.encode(value)
        back = codec.decode(encoded.data)
    except LimitError as e:
        return type(e), str(e)
    return encoded.raw, repr(encoded.data), repr(back)


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "as it becomes"])
@pytest.mark.parametrize("annotation", PLAIN, ids=str)
def test_with_and_without_pydantic_the_same_comes_out(annotation: Any, exact: bool) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    mixed = [[draw.choice(VALUES) for _ in range(3)] for _ in range(40)]
    mixed += [{f"k{n}": draw.choice(VALUES) for n in range(2)} for _ in range(40)]
    quick, long = (Codec(annotation, "s", "result", exact=exact) for _ in range(2))
    assert quick._fits is not None
    long._fits = None
    for value in [*VALUES, *mixed]:
        assert outcome(quick, value) == outcome(long, value), value


@pytest.mark.parametrize("annotation", OTHER, ids=str)
def test_annotations_that_hold_anything_else_are_pydantics(annotation: Any) -> None:
    assert shape_of(annotation) is None


def test_what_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(LimitError, match="contains itself"):
        Codec(list[Any], "s", "result").encode(loop)


def test_a_copy_is_given() -> None:
    codec, value = Codec(list[list[int]], "s", "result"), [[1]]
    back = codec.decode(value)
    assert back == value
    assert back[0] is not value[0]
