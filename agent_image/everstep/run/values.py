"""What can be journaled, and how it comes back: equal, or refused before anything is written.

The supported set: JSON itself (None, bool, int, finite float, str, list, dict with string keys) without any annotation, and
whatever pydantic can turn into JSON and back *to an equal value* under the annotation that was given: tuples, sets, models,
dataclasses, datetimes, decimals, enums, UUIDs, paths. Everything else is NotJSON, naming step and path: NaN and infinities,
cycles, keys that are no strings, a tuple without an annotation, objects without equality.

Step bodies and agents only ever see the decoded form, in the first run as on replay.
"""

import contextlib
import hashlib
import inspect
import json
import math
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from everstep.errors import BadStep, NotJSON, ValueTooLarge
from everstep.journal.canonical import Json, canonical
from everstep.run.arguments import Arguments
from everstep.run.shapes import SCALARS, Fits, shape_of

if TYPE_CHECKING:
    from pydantic import TypeAdapter

VALUE_MAX_BYTES = 16 * 1024 * 1024
"""Above this a value is refused: it would be read whole at each replay. Keep it elsewhere and journal its address."""
MAX_DEPTH = 200
"""Lists and objects within each other. A value must also be readable where another Python has less stack left."""
_SMALL = 10**18


class Encoded(NamedTuple):
    """A value ready for the journal: as JSON data and as its canonical bytes."""

    data: Json
    raw: bytes


class Codec:
    """Values of one annotation. `what` names it in errors, e.g. `result` or `argument body`.

    `exact` False takes whatever becomes JSON, even if it comes back as something else (a tuple as a list): for the result of a
    whole run, which no agent code sees again and which must not be lost to a tuple after hours of work."""

    def __init__(self, annotation: object, step: str, what: str, *, exact: bool = True) -> None:
        self.step = step
        self.what = what
        self.exact = exact
        self.plain = annotation if annotation in SCALARS else None
        self.typed = False
        """Whether its values are pydantic's to check."""
        self._fits: Fits | None = None
        """Tells those that pydantic would leave as they are."""
        if annotation is None:
            self.plain = type(None)
        elif self.plain is None and (annotation not in (Any, object, inspect.Parameter.empty) or not exact):
            self.typed = True
            self._annotation = Any if annotation in (object, inspect.Parameter.empty) else annotation
            self._fits = shape_of(self._annotation)
            if self._fits is None:
                _ = self._adapter  # an annotation that cannot be journaled is told of now

    @cached_property
    def _adapter(self) -> "TypeAdapter[Any]":
        import pydantic

        try:
            return pydantic.TypeAdapter(cast(Any, self._annotation))  # any annotation
        except (pydantic.PydanticSchemaGenerationError, pydantic.PydanticUserError) as e:
            raise BadStep(
                f"{self.step}: {self.what} is annotated {_type_name(self._annotation)}, which cannot be journaled. Pass plain "
                f"data (a model, a dataclass, JSON) and build such objects inside the step's body, or keep them at module level"
            ) from e

    def encode(self, value: object) -> Encoded:
        """Raises NotJSON or ValueTooLarge; nothing was written."""
        if (raw := self._as_it_is(value)) is not None:
            data = json.loads(raw)
        elif not self.typed:
            if self.plain is not None and type(value) is not self.plain:
                value = self._coerce(value)
            kind = type(value)
            small = kind is int and -_SMALL < cast(int, value) < _SMALL
            raw = repr(value).encode() if small else self._canonical(value, value)
            data = value if kind in SCALARS else json.loads(raw)
            if data is not value and data != value:
                raise self._not_json(value)
        else:
            typed = self._validate(value)
            try:
                dumped = self._adapter.dump_python(typed, mode="json", warnings="error")
            except Exception as e:  # also of the value's own serializers
                raise self._not_json(value, _first_line(e)) from e
            raw = self._canonical(dumped, value)
            data = json.loads(raw)
            back = self._back(raw, value)
            if self.exact and not _equal(back, typed):
                raise self._changed(typed, back)
        if len(raw) > VALUE_MAX_BYTES:
            raise ValueTooLarge(
                f"{self.step}: {self.what} takes {len(raw)} bytes; the bound is {VALUE_MAX_BYTES}. Keep it elsewhere and pass "
                f"its address"
            )
        if type(data) not in SCALARS and raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and too_deep(data):
            raise self._not_json(data)
        return Encoded(data, raw)

    def decode(self, data: Json) -> Any:  # the annotation's own type, known to the caller only
        """From the journal's JSON. Raises NotJSON if it does not fit the annotation (changed code, a person's answer)."""
        if (raw := self._as_it_is(data)) is not None:
            return json.loads(raw)
        if not self.typed:
            if self.plain is not None and type(data) is not self.plain:
                return self._coerce(data)
            return data
        try:
            return self._adapter.validate_json(canonical(data))
        except Exception as e:  # also of the annotation's own validators
            raise NotJSON(f"{self.step}: {self.what} does not fit its annotation: {_reason(e)}") from e

    def _as_it_is(self, value: object) -> bytes | None:
        """The canonical bytes of a value that pydantic would neither change nor refuse, where that can be told without it."""
        try:
            return canonical(value) if self._fits is not None and self._fits(value) else None
        except (ValueError, RecursionError):  # what is wrong with it is said the long way
            return None

    def _back(self, raw: bytes, value: object) -> object:
        try:
            return self._adapter.validate_json(raw)
        except Exception as e:  # the same
            raise self._not_json(value, f"what it becomes in the journal cannot be read back: {_reason(e)}") from e

    def _coerce(self, value: object) -> object:
        from pydantic import TypeAdapter, ValidationError

        adapter: TypeAdapter[Any] = TypeAdapter(cast(Any, self.plain))  # one of SCALARS
        try:
            return adapter.validate_python(value)
        except ValidationError as e:
            raise NotJSON(f"{self.step}: {self.what} does not fit its annotation: {_reason(e)}") from e

    def _validate(self, value: object) -> object:
        try:
            return self._adapter.validate_python(value)
        except Exception as e:  # the same
            raise NotJSON(f"{self.step}: {self.what} does not fit its annotation: {_reason(e)}") from e

    def _canonical(self, data: object, value: object) -> bytes:
        try:
            return canonical(data)
        except (TypeError, ValueError, RecursionError) as e:
            raise self._not_json(data if data is not value else value, str(e)) from e

    def _not_json(self, value: object, hint: str = "") -> NotJSON:
        path, found = find_bad(value, self.what) or (self.what, hint or _type_name(type(value)))
        return NotJSON(f"{self.step}: {path}: {found}")

    def _changed(self, typed: object, back: object) -> NotJSON:
        path, found = _first_difference(typed, back, self.what)
        return NotJSON(
            f"{self.step}: {path}: {found}. A value must come back equal from the journal; annotate it more precisely or return "
            f"plain data"
        )


class Unresolved(BadStep):
    """An annotation names something that is not there (yet)."""


def resolve(fn: Callable[..., object], name: str) -> dict[str, Any]:
    """The annotations of a function, as types. Raises Unresolved."""
    try:
        return typing.get_type_hints(fn, include_extras=True)
    except NameError as e:
        raise Unresolved(
            f"{name}: an annotation cannot be resolved: {e}. Types of steps and agents must be defined at module level"
        ) from e


class Signature:
    """The arguments of one step: bound by name, checked by annotation, decoded again for the body."""

    def __init__(self, fn: Callable[..., object], step: str) -> None:
        self._fn = fn
        self.step = step
        self.signature = inspect.signature(fn)
        kinds = {p.kind for p in self.signature.parameters.values()}
        positional = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
        self._variadic = bool(kinds - positional)
        """Whether arguments must be bound the long way: not all of them can be told by their place."""
        self._codecs: dict[str, Codec] | None = None
        self._result: Codec | None = None
        with contextlib.suppress(Unresolved):  # an annotation names something defined later; built at the first call
            self._build()

    def _build(self) -> tuple[dict[str, Codec], Codec]:
        if self._codecs is None or self._result is None:
            hints = resolve(self._fn, self.step)
            self._codecs = {
                name: Codec(_as_container(p, hints.get(name, Any)), self.step, f"argument {name}")
                for name, p in self.signature.parameters.items()
            }
            self._result = Codec(hints.get("return", Any), self.step, "result")
        return self._codecs, self._result

    @property
    def result(self) -> Codec:
        return self._build()[1]

    def encode(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> tuple[dict[str, Json], str]:
        """JSON of all arguments by name, and their digest. Raises TypeError as a call would, NotJSON, ValueTooLarge."""
        codecs = self._build()[0]
        if kwargs or len(args) != len(codecs) or self._variadic:
            bound = self.signature.bind(*args, **kwargs)
            bound.apply_defaults()
            given: Iterable[tuple[str, object]] = bound.arguments.items()
        else:
            given = zip(codecs, args, strict=True)
        data: dict[str, Json] = {}
        parts: list[tuple[str, bytes]] = []
        for name, value in given:
            encoded = codecs[name].encode(list(value) if isinstance(value, tuple) and _is_var(self, name) else value)
            data[name] = encoded.data
            parts.append((name, encoded.raw))
        # The canonical form of the whole, from those of its parts.
        raw = b"{" + b",".join(b'"' + name.encode() + b'":' + part for name, part in sorted(parts)) + b"}"
        if len(raw) > VALUE_MAX_BYTES:
            raise ValueTooLarge(f"{self.step}: arguments take {len(raw)} bytes; the bound is {VALUE_MAX_BYTES}")
        return Arguments(data, parts), digest(raw)

    def decode(self, data: Mapping[str, Json]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments for the body; a copy that shares nothing with the agent."""
        codecs = self._build()[0]
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        raw = data if all(type(v) in SCALARS for v in data.values()) else json.loads(canonical(data))
        for name, p in self.signature.parameters.items():
            value = codecs[name].decode(raw[name])
            if p.kind is p.VAR_POSITIONAL:
                args.extend(value)
            elif p.kind is p.VAR_KEYWORD:
                kwargs.update(value)
            elif p.kind is p.KEYWORD_ONLY:
                kwargs[name] = value
            else:
                args.append(value)
        return args, kwargs


def digest(raw: bytes) -> str:
    """SHA-256, lower-case hex."""
    return hashlib.sha256(raw).hexdigest()


def too_deep(data: Json) -> bool:
    """Whether JSON is nested deeper than MAX_DEPTH; level by level, as it is asked for every large value."""
    level: list[Any] = [data] if type(data) in (dict, list) else []  # lists and dicts of JSON
    for _ in range(MAX_DEPTH):
        level = [
            item
            for one in level
            for item in (one.values() if type(one) is dict else one)
            if type(item) is dict or type(item) is list
        ]
        if not level:
            return False
    return bool(level)


def find_bad(value: object, path: str) -> tuple[str, str] | None:
    """The first place in a value that is not JSON, and what is there; None if all of it is."""
    return _find_bad(value, path, [], 0)


def _find_bad(value: object, path: str, above: list[int], depth: int) -> tuple[str, str] | None:
    if value is None or isinstance(value, bool | int | float | str):
        return _bad_scalar(value, path)
    if not isinstance(value, dict) and type(value) is not list:
        cure = "; annotate the step with its type, or use a list" if isinstance(value, tuple | set | frozenset) else ""
        return path, f"{_type_name(type(value))} is not JSON{cure}"
    if id(value) in above:
        return path, "contains itself"
    if depth >= MAX_DEPTH:
        return path, f"is nested deeper than {MAX_DEPTH} levels"
    above.append(id(value))
    try:
        return _bad_item(value, path, above, depth)
    finally:
        above.pop()


def _bad_item(value: object, path: str, above: list[int], depth: int) -> tuple[str, str] | None:
    if isinstance(value, dict):
        items = [(key, f"{path}.{key}", item) for key, item in value.items()]
    else:
        items = [("", f"{path}[{i}]", item) for i, item in enumerate(cast("list[object]", value))]
    for key, place, item in items:
        if not isinstance(key, str):
            return path, f"key {key!r} is {_type_name(type(key))}; JSON keys are strings"
        if bad := _find_bad(item, place, above, depth + 1):
            return bad
    return None


def _bad_scalar(value: object, path: str) -> tuple[str, str] | None:
    if isinstance(value, float) and not math.isfinite(value):
        return path, f"{value!r} is not JSON"
    return _bad_text(value, path) if isinstance(value, str) else None


def _bad_text(value: str, path: str) -> tuple[str, str] | None:
    try:
        value.encode()
    except UnicodeEncodeError:
        return path, "text with lone surrogates is not valid Unicode"
    return None


def _first_difference(a: object, b: object, path: str) -> tuple[str, str]:
    """Where two values differ, for the message that a value came back changed."""
    if type(a) is type(b):
        if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
            for key in a:
                if a[key] != b[key]:
                    return _first_difference(a[key], b[key], f"{path}.{key}")
        if isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
            for i, (x, y) in enumerate(zip(a, b, strict=True)):
                if x != y:
                    return _first_difference(x, y, f"{path}[{i}]")
        fields = getattr(type(a), "model_fields", None) or getattr(type(a), "__dataclass_fields__", None) or ()
        for name in fields:
            x, y = getattr(a, name, None), getattr(b, name, None)
            if x != y:
                return _first_difference(x, y, f"{path}.{name}")
    return path, f"{_short(a)} would come back as {_short(b)}"


def _as_container(p: inspect.Parameter, hint: Any) -> Any:  # any annotation
    if p.kind is p.VAR_POSITIONAL:
        return list if hint is Any else list[hint]
    if p.kind is p.VAR_KEYWORD:
        return dict[str, Any] if hint is Any else dict[str, hint]
    return hint


def _is_var(signature: Signature, name: str) -> bool:
    return signature.signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL


def _equal(a: object, b: object) -> bool:
    try:
        return bool(a == b)
    except Exception:  # an array's, for instance: what cannot be compared cannot be trusted to be equal
        return False


def _short(value: object) -> str:
    text = repr(value)
    return f"{_type_name(type(value))} {text if len(text) <= 80 else text[:77] + '…'}"


def _type_name(kind: object) -> str:
    return getattr(kind, "__qualname__", None) or str(kind)


def _first_line(e: BaseException) -> str:
    return " ".join(str(e).split())[:300]


def _reason(e: BaseException) -> str:
    from pydantic import ValidationError

    if isinstance(e, ValidationError):
        first = e.errors(include_url=False, include_context=False)[0]
        at = ".".join(str(x) for x in first["loc"])
        return f"{at + ': ' if at else ''}{first['msg']}, not {_short(first['input'])}"
    return _first_line(e)
