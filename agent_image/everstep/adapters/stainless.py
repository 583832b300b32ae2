"""The clients of openai and anthropic: generated from one template, in which every call ends in `client.request(…)`.

So that is where a call becomes a step: below the resources and helpers (`parse`, `.stream()`, pagination), with the body as the
JSON that would be sent, and with the answer as the JSON that came. Both models and helpers are rebuilt from that JSON by the
library itself, live as on replay.

The step's arguments are method, path, query and body. Headers are not among them: they hold keys and trace ids.
"""

import copy
import functools
import importlib
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, NoReturn, Protocol, cast

from everstep import faults
from everstep.adapters import streams
from everstep.budget import Reserve
from everstep.errors import BadCall, MaybeDone, StepFailed
from everstep.journal.records import EffectClass, Json
from everstep.run.durable import idempotency_key, report_usage, say
from everstep.run.heartbeat import heartbeat
from everstep.run.retry import Retry
from everstep.run.scope import SCOPE
from everstep.run.steps import AsyncStep, Step, SyncStep
from everstep.run.streams import Channel
from everstep.run.wrap import Options, passes, refuse_outside

RAW_HEADERS = ("x-stainless-raw-response",)
BACKOFF_S = 0.5
BACKOFF_MAX_S = 8.0
"""As the clients' own."""


class Library(Protocol):
    """What an adapter knows of its library."""

    name: str

    def effect(self, method: str, path: str, body: Json) -> EffectClass:
        """The class of a request."""
        ...

    def usage(self, answer: Json) -> tuple[int, int]:
        """Input and output tokens that an answer tells of."""
        ...

    def shape(self, path: str) -> "type[Shape] | None":
        """How streams of a path look."""
        ...


class Shape(Protocol):
    """Collects the chunks of one stream. Made with the request's body."""

    def __init__(self, body: Json) -> None: ...

    def add(self, chunk: Json) -> str:
        """Take one chunk, as JSON; gives the text in it that a reader waits for."""
        ...

    def final(self) -> Json:
        """The final message. Raises StreamCut if the stream ended without saying why."""
        ...

    @classmethod
    def few(cls, final: Json, body: Json) -> list[Json]:
        """A final message as a few chunks from which the library makes it again."""
        ...


class StreamCut(Exception):
    """A stream ended without a finish reason: what came is not the answer. A failed try; nothing of it is journaled."""


ANSWER_BOUNDS = ("max_completion_tokens", "max_output_tokens", "max_tokens", "max_tokens_to_sample")
BYTES_PER_TOKEN = 3
"""Of a request; an estimate on the high side."""
LONG_WORD = 20_000
IMAGE_TOKENS = 2000
"""What is counted for a longer text without a space: an image or a file in base64."""


def reserve_of(body: Json) -> Reserve:
    """What a request may use at most, as far as it tells."""
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        return Reserve()
    bounds = [body[name] for name in ANSWER_BOUNDS if isinstance(body.get(name), int)]
    answers = body.get("n") if isinstance(body.get("n"), int) else 1
    return Reserve(tokens=_size(body) // BYTES_PER_TOKEN + sum(bounds[:1]) * max(1, answers or 1), model=body["model"])


def _size(value: Json) -> int:
    if isinstance(value, str):
        blob = len(value) > LONG_WORD and " " not in value[:LONG_WORD]
        return IMAGE_TOKENS * BYTES_PER_TOKEN if blob else len(value.encode("utf-8", "replace"))
    if isinstance(value, dict):
        return sum(len(name) + _size(item) for name, item in value.items())
    if isinstance(value, list):
        return sum(_size(item) for item in value)
    return 4


def cut(what: str) -> NoReturn:
    """Raise StreamCut."""
    raise StreamCut(f"the stream ended before {what}: the connection was lost on the way")


@dataclass(frozen=True)
class Request:
    """One request, as far as it is journaled."""

    method: str
    path: str
    query: Json
    body: Json


def wrapped(client: Any, library: Library, options: Options) -> object:  # a client of either library
    """A copy of the client, of a subclass of its class, which shares its connections. The client itself stays as it is."""
    kind = type(client)
    if getattr(kind, "_everstep_library", None) is not None:
        return client
    mixin = _AsyncCalls if inspect.iscoroutinefunction(kind.request) else _SyncCalls
    twin_class = type(
        kind.__name__,
        (mixin, kind),
        {"__module__": kind.__module__, "_everstep_library": library, "_everstep_options": options},
    )
    twin: Any = object.__new__(twin_class)  # of the client's class
    for name, value in vars(client).items():
        # A resource that was made already calls the client it was made for: it is made anew, at its first use or (of older
        # versions) here.
        if not isinstance(inspect.getattr_static(kind, name, None), functools.cached_property):
            twin.__dict__[name] = type(value)(twin) if getattr(value, "_client", None) is client else value
    return twin


def retry_of(library: str, retries: int) -> Retry:
    """What the client itself would try again, seen by the journal. TimeoutError: a try that the step's own bounds ended, which is
    to the caller what the client's APITimeoutError is."""
    module = importlib.import_module(library)
    again = ("APIConnectionError", "APITimeoutError", "RateLimitError", "InternalServerError", "ConflictError")
    return Retry(
        max_tries=1 + max(0, retries),
        backoff_s=BACKOFF_S,
        backoff_max_s=BACKOFF_MAX_S,
        jitter=0.25,
        retry_on=(StreamCut, TimeoutError, *(getattr(module, name) for name in again)),
    )


class _Calls:
    """What both colours share. `request` of the class behind is the library's own."""

    _everstep_library: Library
    _everstep_options: Options

    def _everstep_effect(self, request: Request) -> EffectClass:
        library, options = self._everstep_library, self._everstep_options
        return options.effect_of(_short(request), library.effect(request.method, request.path, request.body))

    def _everstep_step(
        self, request: Request, body: Callable[..., Any], template: Step[..., Any], *, stream: bool = False
    ) -> Step[..., Any]:
        """The step of one request. Only a stream has signs of life, its chunks, so only it can fall silent."""
        library, options = self._everstep_library, self._everstep_options
        step = copy.copy(template)
        step.fn = body
        step.name = f"{options.name or library.name}.{_short(request)}"
        step.effect = self._everstep_effect(request)
        step.timeout_s, step.total_timeout_s = options.timeout_s, options.total_timeout_s
        step.heartbeat_timeout_s = options.heartbeat_timeout_s if stream else None
        step.retry = options.retry or retry_of(
            library.name, int(cast(Any, self).max_retries)
        )  # a client's own attribute
        step.reserve = options.reserve or (lambda *_: reserve_of(request.body))
        step.on_uncertain = options.on_uncertain_of(step.effect)
        return step

    def _everstep_told(self, answer: object) -> Json:
        """The answer as JSON; tells what it used."""
        dump = getattr(answer, "model_dump", None)
        data = dump(mode="json", by_alias=True, exclude_unset=True, warnings=False) if dump is not None else answer
        report(self._everstep_library, data)
        return data

    def _everstep_made(self, data: Json, cast_to: Any, options: Any) -> Any:  # the library's own types
        """The library's own model of an answer, after its own parser."""
        made = data
        if data is not None and cast_to not in (type(None), str, dict, object):
            construct = importlib.import_module(f"{type(self).__module__.partition('.')[0]}._models").construct_type
            made = construct(type_=cast_to, value=data)
        parser = getattr(options, "post_parser", None)
        return parser(made) if callable(parser) else made

    def _everstep_few(
        self, shape: "type[Shape]", body: Json, kind: Any, final: Json
    ) -> list[object]:  # a type of chunks
        """A final message as a few chunks."""
        return [self._everstep_made(chunk, kind, None) for chunk in shape.few(final, body)]

    def _everstep_error(self, error: BaseException) -> BaseException:
        return self._everstep_raised(error) if isinstance(error, StepFailed) else error

    def _everstep_raised(self, failed: StepFailed) -> BaseException:
        """The library's own error for a failure that was journaled."""
        return rebuilt_error(self._everstep_library.name, failed, cast(Any, self))


def _short(request: Request) -> str:
    """`chat.completions` for /v1/chat/completions."""
    return ".".join(part for part in request.path.split("/") if part and part != "v1")[:100]


def report(library: Library, data: Json) -> None:
    """Report an answer's usage, in a step's body."""
    used_in, used_out = library.usage(data)
    if used_in or used_out:
        model = data.get("model")
        report_usage(input_tokens=used_in, output_tokens=used_out, model=model if isinstance(model, str) else "")


class _AsyncCalls(_Calls):
    async def request(
        self, cast_to: Any, options: Any, *, stream: bool = False, stream_cls: Any = None, **more: Any
    ) -> Any:
        """In agent scope a step; else the library's own. The types are the library's."""
        own = super().request  # type: ignore[misc]  # of the client's class, which follows in the order of resolution
        if SCOPE.get() is None:
            if passes():
                return await own(cast_to, options, stream=stream, stream_cls=stream_cls, **more)
            refuse_outside(self._everstep_library.name)
        request = request_of(options, cast_to, self._everstep_library.name)
        if stream:
            return self._everstep_stream(own, request, cast_to, options, stream_cls)
        effect = self._everstep_effect(request)

        async def body(method: str, path: str, query: Any, body: Any) -> Any:  # JSON
            with told_errors(self._everstep_library.name, effect):
                return self._everstep_told(await own(cast_to, once(options, body), **more))

        step = cast("AsyncStep[..., Any]", self._everstep_step(request, body, _ASYNC))
        try:
            data = await step(request.method, request.path, request.query, request.body)
        except StepFailed as failed:
            raise self._everstep_raised(failed) from failed
        return self._everstep_made(data, cast_to, options)

    def _everstep_stream(
        self, own: Any, request: Request, cast_to: Any, options: Any, stream_cls: Any
    ) -> Any:  # its types
        """A stream as a step: its final message is the result. Gives the library's kind of stream."""
        library, scope = self._everstep_library, SCOPE.get()
        assert scope is not None
        shape, effect = shape_of(library, request), self._everstep_effect(request)

        async def body(method: str, path: str, query: Any, body: Any) -> Any:  # JSON
            channel.begin_try()
            try:
                with told_errors(self._everstep_library.name, effect):
                    stream = await own(cast_to, once(options, body), stream=True, stream_cls=stream_cls)
                    try:
                        collector = shape(request.body)
                        async for chunk in stream:
                            take(collector, chunk)
                            channel.put(chunk)
                            faults.reach("in_stream")
                        final = collector.final()
                    finally:
                        await stream.close()
            except BaseException:
                channel.try_failed()
                raise
            report(library, final)
            return final

        step = self._everstep_step(request, body, _ASYNC, stream=True)
        if scope.engine.sync_agent:
            step.scope(sync_agent=False)  # raises what an async step in a sync agent raises
        chunk_type = typing.get_args(stream_cls)[0]
        few = functools.partial(self._everstep_few, shape, request.body, chunk_type)
        live = self._everstep_options.live
        channel = Channel(scope.engine, step.name, few, self._everstep_error, live=live)
        step.retry = channel.retry(step.retry)
        scope.engine.call_step(scope, step, (request.method, request.path, request.query, request.body), {}, channel)
        return streams.async_stream(typing.get_origin(stream_cls) or stream_cls, channel)


class _SyncCalls(_Calls):
    def request(self, cast_to: Any, options: Any, *, stream: bool = False, stream_cls: Any = None, **more: Any) -> Any:
        """As of the async client."""
        own = super().request  # type: ignore[misc]  # as above
        if SCOPE.get() is None:
            if passes():
                return own(cast_to, options, stream=stream, stream_cls=stream_cls, **more)
            refuse_outside(self._everstep_library.name)
        request = request_of(options, cast_to, self._everstep_library.name)
        if stream:
            return self._everstep_stream(own, request, cast_to, options, stream_cls)
        effect = self._everstep_effect(request)

        def body(method: str, path: str, query: Any, body: Any) -> Any:  # JSON
            with told_errors(self._everstep_library.name, effect):
                return self._everstep_told(own(cast_to, once(options, body), **more))

        step = cast("SyncStep[..., Any]", self._everstep_step(request, body, _SYNC))
        try:
            data = step(request.method, request.path, request.query, request.body)
        except StepFailed as failed:
            raise self._everstep_raised(failed) from failed
        return self._everstep_made(data, cast_to, options)

    def _everstep_stream(
        self, own: Any, request: Request, cast_to: Any, options: Any, stream_cls: Any
    ) -> Any:  # its types
        """As of the async client, but the agent's own thread reads the stream as the step's body: the agent has its chunks when
        all are there. Whoever watches the run sees them as they come."""
        library = self._everstep_library
        shape, effect = shape_of(library, request), self._everstep_effect(request)

        def body(method: str, path: str, query: Any, body: Any) -> Any:  # JSON
            with told_errors(self._everstep_library.name, effect):
                stream = own(cast_to, once(options, body), stream=True, stream_cls=stream_cls)
                try:
                    collector = shape(request.body)
                    for chunk in stream:
                        take(collector, chunk)
                        faults.reach("in_stream")
                    final = collector.final()
                finally:
                    stream.close()
            report(library, final)
            return final

        step = cast("SyncStep[..., Any]", self._everstep_step(request, body, _SYNC, stream=True))
        try:
            final = step(request.method, request.path, request.query, request.body)
        except StepFailed as failed:
            raise self._everstep_raised(failed) from failed
        chunks = self._everstep_few(shape, request.body, typing.get_args(stream_cls)[0], final)
        return streams.sync_stream(typing.get_origin(stream_cls) or stream_cls, chunks)


def shape_of(library: Library, request: Request) -> "type[Shape]":
    """How streams of this request look. Raises BadCall for one that is not known."""
    shape = library.shape(request.path)
    if shape is None:
        raise BadCall(f"{library.name}: how a stream of {request.path} ends is not known here. {_CURE}")
    return shape


def take(collector: "Shape", chunk: Any) -> None:  # a chunk of either library
    """Add one chunk to the final message, and its text to the live stream. A sign of life, too."""
    heartbeat()
    text = collector.add(as_json(chunk))
    if text:
        say(text)


def request_of(options: Any, cast_to: Any, library: str) -> Request:  # the library's own types
    """What of a request is journaled. Raises BadCall for what cannot be a step."""
    headers = options.headers if isinstance(options.headers, Mapping) else {}
    if any(name.lower() in RAW_HEADERS for name in headers):
        raise BadCall(
            f"{library}: with_raw_response and with_streaming_response give a response that cannot be journaled. {_CURE}"
        )
    if options.files or getattr(options, "content", None) is not None:
        raise BadCall(f"{library}: {options.url} uploads a file, which is no plain data. {_CURE}")
    origin = getattr(cast_to, "__origin__", cast_to)
    data = origin in (type(None), str, dict, list, object) or hasattr(origin, "model_fields")
    if not data:
        raise BadCall(f"{library}: the answer of {options.url} ({cast_to!r}) cannot be journaled. {_CURE}")
    body = options.json_data
    if options.extra_json:
        body = {**body, **options.extra_json} if isinstance(body, Mapping) else dict(options.extra_json)
    return Request(options.method.lower(), str(options.url), as_json(dict(options.params or {})), as_json(body))


def as_json(value: object) -> Json:
    """What the library would send: without what was not given, its models as JSON."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {k: as_json(v) for k, v in value.items() if type(v).__name__ not in _NOT_GIVEN}
    if (dump := getattr(value, "model_dump", None)) is not None:
        return dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Iterable) and not isinstance(value, bytes | bytearray):
        return [as_json(item) for item in value]
    return value


_NOT_GIVEN = ("NotGiven", "Omit")
_CURE = 'Call it in the body of a step: a function with @everstep.step(effect="read" | "idempotent" | "at_most_once")'


def once(options: Any, body: Json) -> Any:  # the library's own type
    """In a step's body, the same request: with the body that was journaled, the step's idempotency key, and without the client's
    own retries, which the journal would not see, and its parser, which runs on what comes back from the journal."""
    inner = options.model_copy()
    inner.json_data, inner.extra_json = body, None
    inner.idempotency_key = idempotency_key()
    inner.max_retries = 0
    if callable(getattr(inner, "post_parser", None)):
        inner.post_parser = type(inner).model_fields["post_parser"].default
    return inner


class told_errors:  # noqa: N801  # reads as a function
    """Gives the library's errors the data that the journal keeps of them: status and body. A request that must happen once and
    whose connection broke is not failed but in doubt."""

    def __init__(self, library: str, effect: EffectClass) -> None:
        self._lost = importlib.import_module(library).APIConnectionError if effect == "at_most_once" else ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, self._lost) or (self._lost and isinstance(error, StreamCut)):
            raise MaybeDone(f"the request broke off: {type(error).__name__}: {error}") from error
        status = getattr(error, "status_code", None)
        if isinstance(error, Exception) and isinstance(status, int):
            error.data = {"status": status, "body": getattr(error, "body", None)}  # type: ignore[attr-defined]  # read by errordata


def rebuilt_error(library: str, failed: StepFailed, client: Any) -> BaseException:  # a client of either library
    """The library's exception of that name, if it is one of its API errors; else the failure itself."""
    module = importlib.import_module(library)
    kind: Any = getattr(module, failed.type, None)  # an exception class of the library
    base = module.APIError
    if not _is_class_of(kind, base):
        return failed
    tops = (c.__module__.partition(".")[0] for c in type(client._client).__mro__)
    http = importlib.import_module(
        next(top for top in tops if top.startswith("httpx"))
    )  # httpx, or httpx2 where there is one
    request = http.Request("POST", str(client.base_url))
    if _is_class_of(kind, module.APIStatusError) and isinstance(failed.data, dict):
        response = http.Response(int(failed.data.get("status") or 0), request=request)
        return cast(BaseException, kind(failed.message, response=response, body=failed.data.get("body")))
    if _is_class_of(kind, module.APITimeoutError):
        return cast(BaseException, kind(request=request))
    if _is_class_of(kind, module.APIConnectionError):
        return cast(BaseException, kind(message=failed.message, request=request))
    return failed


def _is_class_of(kind: object, base: type) -> bool:
    return inspect.isclass(kind) and issubclass(kind, base)


# Only their signature is used: it is that of every request's step, whose body is put in its place (`_everstep_step`).
async def _declared(method: str, path: str, query: Any, body: Any) -> Any:  # JSON
    raise NotImplementedError


def _declared_sync(method: str, path: str, query: Any, body: Any) -> Any:  # JSON
    raise NotImplementedError


def _template(kind: type[Step[..., Any]], fn: Callable[..., Any]) -> Step[..., Any]:
    return kind(fn, effect="read", timeout_s=None, retry=Retry(1), probe=None, on_uncertain="ask", name="request")


_ASYNC = _template(AsyncStep, _declared)
_SYNC = _template(SyncStep, _declared_sync)
