"""Annotations that hold plain JSON and nothing else: `list[str]`, `dict[str, int]`, `str | None` and what is built of these.

A value that is exactly of such a type needs no pydantic: it would come out as it went in. Its import, 60 ms of every restart,
then waits for a value that is not, which pydantic converts or refuses as ever.
"""

import types
import typing
from collections.abc import Callable
from typing import Any, TypeAlias

Fits: TypeAlias = Callable[[object], bool]
"""Whether a value is exactly of the annotation's type. May raise RecursionError for what contains itself."""

SCALARS = (str, int, bool, float, type(None))


def shape_of(annotation: object) -> Fits | None:
    """None where the annotation may hold anything else."""
    if annotation in (Any, object):
        return _is_json
    if annotation is None or annotation in SCALARS:
        return _is_a(annotation or type(None))
    origin, of = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        any_of = [shape_of(one) for one in of]
        return None if None in any_of else _one_of([fits for fits in any_of if fits is not None])
    item = shape_of(of[-1]) if of else _is_json
    if origin is list and item is not None:
        return _list_of(item)
    if origin is dict and item is not None and of[:1] in ((), (str,)):
        return _dict_of(item)
    return None


def _is_json(value: object) -> bool:
    kind = type(value)
    if kind in SCALARS:
        return True
    if kind is list:
        return _ITEMS(value)
    return kind is dict and _VALUES(value)


def _is_a(kind: object) -> Fits:
    return lambda value: type(value) is kind


def _list_of(fits: Fits) -> Fits:
    return lambda value: type(value) is list and all(map(fits, value))


def _dict_of(fits: Fits) -> Fits:
    return lambda value: (
        type(value) is dict and all(type(key) is str for key in value) and all(map(fits, value.values()))
    )


def _one_of(any_of: list[Fits]) -> Fits:
    return lambda value: any(fits(value) for fits in any_of)


_ITEMS = _list_of(_is_json)
_VALUES = _dict_of(_is_json)
