"""An MCP `ClientSession`: each request is a step.

`call_tool` takes its class from the tool's own hints, as the server lists them: readOnlyHint → `read`, idempotentHint →
`idempotent`, anything else, no hints and unknown tools included → `at_most_once`. The list is asked for by a step of its own
before the first tool is called, so the classes are in the journal. Hints are the server's word; `effects={"tool": …}` overrules
them.

What belongs to the connection (initialize, subscriptions, the logging level) is done again in each attempt and is no step.
"""

import asyncio
import contextlib
import contextvars
import importlib
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, cast
from weakref import WeakKeyDictionary

from everstep.errors import BadCall, MaybeDone
from everstep.journal.records import EffectClass, Json
from everstep.run.adhoc import make_step
from everstep.run.apart import per_attempt
from everstep.run.durable import idempotency_key
from everstep.run.heartbeat import heartbeat
from everstep.run.scope import SCOPE
from everstep.run.steps import AsyncStep
from everstep.run.wrap import Options, passes, refuse_outside

RESULTS = {
    "list_tools": "ListToolsResult",
    "list_prompts": "ListPromptsResult",
    "list_resources": "ListResourcesResult",
    "list_resource_templates": "ListResourceTemplatesResult",
    "read_resource": "ReadResourceResult",
    "get_prompt": "GetPromptResult",
    "complete": "CompleteResult",
    "send_ping": "EmptyResult",
    "call_tool": "CallToolResult",
}
"""Requests that are steps, and the model of their answers in mcp.types."""
CONNECTION = ("initialize", "discover", "set_logging_level", "subscribe_resource", "unsubscribe_resource", "adopt")
NOT_JOURNALED = (
    "progress_callback",
    "read_timeout_seconds",
    "input_responses",
    "request_state",
    "allow_input_required",
    "allow_claimed",
)
KEY_META = "everstep.dev/idempotency-key"
"""In the request's `_meta`: the step's idempotency key, for servers that care."""
PAGES_MAX = 100


def wrapped(x: object, options: Options) -> object | None:
    """The session with its requests as steps; None if it is none."""
    if not (hasattr(x, "call_tool") and hasattr(x, "list_tools") and inspect.iscoroutinefunction(type(x).call_tool)):
        return None
    return WrappedSession(x, options)


class WrappedSession:
    """Stands for a ClientSession, for isinstance() too."""

    _everstep_session: Any  # a ClientSession
    _everstep_options: Options
    _everstep_tools: "WeakKeyDictionary[object, dict[str, Json]]"
    """By run (its engine): what the journal tells of the tools' hints."""

    def __init__(self, session: object, options: Options) -> None:
        for name, value in (("session", session), ("options", options), ("tools", WeakKeyDictionary())):
            object.__setattr__(self, f"_everstep_{name}", value)

    def __getattribute__(self, name: str) -> Any:  # the session's own attribute
        session = object.__getattribute__(self, "_everstep_session")
        if name == "__class__":
            return type(session)
        if name.startswith("_everstep"):
            return object.__getattribute__(self, name)
        value = getattr(session, name)
        if name.startswith("_") or not inspect.iscoroutinefunction(value):
            return value
        request = object.__getattribute__(self, "_everstep_request")

        async def call(*args: object, **kwargs: object) -> object:
            return await request(name, value, args, kwargs)

        return call

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._everstep_session, name, value)

    async def __aenter__(self) -> Any:  # the session's own type
        raise BadCall("open an MCP session with everstep.resource(…) or everstep.wrap(everstep.resource(…))")

    async def __aexit__(self, *_: object) -> None:
        return None

    async def _everstep_request(
        self, name: str, method: Callable[..., Awaitable[Any]], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        """One call of agent code, or of a step's body."""
        if SCOPE.get() is None:
            if passes():
                return await method(*args, **kwargs)
            refuse_outside(f"mcp.{name}")
        if name in CONNECTION:
            return await per_attempt(cast(Any, method), *args, **kwargs)
        if name not in RESULTS:
            raise BadCall(f"{name} of an MCP session is no request with an answer; call it in the body of a step")
        given = inspect.signature(method).bind(*args, **kwargs).arguments
        apart = [word for word in NOT_JOURNALED if given.get(word)]
        if apart and apart != ["read_timeout_seconds"]:
            raise BadCall(f"{name}: {', '.join(apart)} cannot be journaled; call it in the body of a step")
        plain = {word: _json(value) for word, value in given.items() if word not in NOT_JOURNALED}
        label, effect = name, self._everstep_options.effect_of(name, "read")
        if name == "call_tool":
            label = str(given.get("name"))
            effect = await self._everstep_effect(label)
        data = await self._everstep_step(name, label, effect, method, given, plain)
        if name == "list_tools":
            self._everstep_learn(data)
        return _types(self._everstep_session, RESULTS[name]).model_validate(data)

    async def _everstep_step(
        self,
        name: str,
        label: str,
        effect: EffectClass,
        method: Callable[..., Awaitable[Any]],
        given: dict[str, Any],  # the session's own types
        plain: dict[str, Json],
    ) -> Json:
        options = self._everstep_options
        accepts = inspect.signature(method).parameters if name == "call_tool" else {}
        beats = "progress_callback" in accepts and options.heartbeat_timeout_s is not None

        async def body(arguments: dict[str, Any]) -> Any:  # JSON
            more: dict[str, Any] = {}
            if "meta" in accepts:
                more["meta"] = {**(given.get("meta") or {}), KEY_META: idempotency_key()}
            if beats:
                more["progress_callback"] = _beating()
            try:
                answer = await method(**{**given, **more})
            except Exception as e:
                if effect == "at_most_once" and not _answered(e):
                    raise MaybeDone(f"the call of {label} broke off: {type(e).__name__}: {e}") from e
                raise
            return answer.model_dump(mode="json", by_alias=True, exclude_none=True)

        step = make_step(
            body,
            f"{options.name or 'mcp'}.{label}",
            effect,
            timeout=options.timeout_s,
            total_timeout=options.total_timeout_s,
            heartbeat_timeout=options.heartbeat_timeout_s if beats else None,
            retry=options.retry,
            on_uncertain=options.on_uncertain if effect == "at_most_once" else None,
            reserve=options.reserve,
        )
        return await cast("AsyncStep[..., Any]", step)(plain)

    # --- what the server says of its tools ------------------------------------------------------------------------

    async def _everstep_effect(self, tool: str) -> EffectClass:
        """The class of a tool: as the user says, or as the journal tells what the server says."""
        options = self._everstep_options
        if said := options.effects.get(tool) or options.effects.get("call_tool") or options.effect:
            return said
        if tool not in self._everstep_known():
            await self._everstep_list()
        hints = self._everstep_known().get(tool) or {}
        if hints.get("readOnlyHint") is True:
            return "read"
        return "idempotent" if hints.get("idempotentHint") is True else "at_most_once"

    def _everstep_known(self) -> dict[str, Json]:
        scope = SCOPE.get()
        assert scope is not None
        return self._everstep_tools.setdefault(scope.engine, {})

    async def _everstep_list(self) -> None:
        """All pages."""
        session = self._everstep_session
        accepts = inspect.signature(session.list_tools).parameters
        cursor: str | None = None
        for _ in range(PAGES_MAX):
            given: dict[str, Any] = {}
            if cursor is not None and "params" in accepts:
                given["params"] = _types(session, "PaginatedRequestParams")(cursor=cursor)
            elif cursor is not None:
                given["cursor"] = cursor
            data = await self._everstep_step(
                "list_tools", "list_tools", "read", session.list_tools, given, {k: _json(v) for k, v in given.items()}
            )
            self._everstep_learn(data)
            cursor = data.get("nextCursor")
            if not cursor:
                return

    def _everstep_learn(self, data: Json) -> None:
        known = self._everstep_known()
        for tool in data.get("tools") or ():
            known[tool["name"]] = tool.get("annotations")


def _beating() -> Callable[..., Awaitable[None]]:
    """A callback for notices of progress, which come in a task of the session's: signs of life of the body that asks now."""
    context = contextvars.copy_context()

    async def told(_progress: float, _total: float | None, _message: str | None) -> None:
        with contextlib.suppress(asyncio.CancelledError):  # meant for the body, which is over; the session goes on
            context.run(heartbeat)

    return told


def _answered(error: Exception) -> bool:
    """Whether the server itself said no: then nothing is in doubt. A broken connection, or time that ran out, says nothing."""
    code = getattr(getattr(error, "error", None), "code", None)
    return isinstance(code, int) and code not in _NO_ANSWER


_NO_ANSWER = (-32000, -32001, 408)
"""Codes with which the client's own side says that the connection was closed or that no answer came in time."""


def _json(value: object) -> Json:
    dump = getattr(value, "model_dump", None)
    return value if dump is None else dump(mode="json", by_alias=True, exclude_none=True)


def _types(session: object, name: str) -> Any:  # a model of mcp
    return getattr(importlib.import_module("mcp.types"), name)
