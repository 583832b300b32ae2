"""`ScriptedModel`: a language model that says what a script says, as an object like the openai client's or as an HTTP server.

    model = ScriptedModel(["Looking.", tool_call("search", q="refund"), "Refunded."])
    model.chat.completions.create(messages=[…])              # in an async agent's step: await it
    with model.serve() as base_url: OpenAI(base_url=base_url, api_key="test")

Which reply comes next follows from the conversation alone: it is reply n if the messages hold n answers of the assistant. So a
call that is repeated after a crash gets the same answer, as many runs at once as you like. Standard library
only; with the package openai installed its own types come back.
"""

import asyncio
import contextlib
import hashlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

from everstep.journal.records import canonical

CREATED_EPOCH_S = 1_767_225_600
"""Of every answer: 2026-01-01."""


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool that the model asks for. Made by `tool_call`."""

    name: str
    arguments: Mapping[str, object]


def tool_call(name: str, **arguments: object) -> ToolCall:
    """For a script: the model asks for this tool."""
    return ToolCall(name, arguments)


Said = str | ToolCall | Sequence[ToolCall] | BaseException
"""A reply: text, one or several tool calls, or an error. Over HTTP an error is a status: its `status_code`, else 500."""
Messages = list[dict[str, Any]]  # as the API has them
Script = Sequence[Said] | Callable[[Messages], Said]


class ScriptExhausted(AssertionError):
    """The conversation went on after the script's last reply."""


@dataclass
class ScriptedModel:
    """`script` is the replies by turn, or a function from the messages to a reply. `calls` holds every request that came in."""

    script: Script
    name: str = "scripted"
    calls: list[dict[str, Any]] = field(default_factory=list)  # requests as the API has them

    @property
    def chat(self) -> Any:  # like the openai client: `chat.completions.create`
        return SimpleNamespace(completions=SimpleNamespace(create=self._create))

    async def _create(self, *, messages: Messages, stream: bool = False, **request: Any) -> Any:  # as the API has them
        request = {"messages": messages, "stream": stream} | request
        self.calls.append(request)
        await asyncio.sleep(0)
        said = self.says(messages)
        if isinstance(said, BaseException):
            raise said
        return self._stream(request, said) if stream else _typed(self.completion(request, said), "ChatCompletion")

    async def _stream(self, request: dict[str, Any], said: Said) -> AsyncIterator[Any]:  # as the API has them
        for chunk in self.chunks(request, said):
            yield _typed(chunk, "ChatCompletionChunk")

    # --- what it says -------------------------------------------------------------------------------------------

    def says(self, messages: Messages) -> Said:
        """The reply to a conversation. Raises ScriptExhausted."""
        if callable(self.script):
            return self.script(messages)
        turn = sum(1 for m in messages if _role(m) == "assistant")
        if turn >= len(self.script):
            raise ScriptExhausted(
                f"the script has {len(self.script)} replies, and the conversation asks for another; its last message: "
                f"{str(messages[-1])[:200] if messages else 'none'}"
            )
        return self.script[turn]

    def completion(self, request: Mapping[str, Any], said: Said) -> dict[str, Any]:  # as the API has it
        """A chat.completion object."""
        calls = _calls(said)
        message: dict[str, Any] = {"role": "assistant", "content": None if calls else said}
        if calls:
            message["tool_calls"] = _tool_calls(request, calls)
        choice = {"index": 0, "message": message, "finish_reason": _reason(calls), "logprobs": None}
        return self._head(request, "chat.completion") | {"choices": [choice], "usage": _usage(request, said)}

    def chunks(self, request: Mapping[str, Any], said: Said) -> Iterator[dict[str, Any]]:  # as the API has them
        """The same as chat.completion.chunk objects; the last one has the finish reason, and after it comes the usage if the
        request has stream_options.include_usage."""
        head = self._head(request, "chat.completion.chunk")
        calls = _calls(said)
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "" if not calls else None}]
        if calls:
            deltas += [{"tool_calls": [{"index": i} | c]} for i, c in enumerate(_tool_calls(request, calls))]
        else:
            deltas += [{"content": word} for word in _words(str(said))]
        for delta in deltas:
            yield head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        yield head | {"choices": [{"index": 0, "delta": {}, "finish_reason": _reason(calls)}]}
        if (request.get("stream_options") or {}).get("include_usage"):
            yield head | {"choices": [], "usage": _usage(request, said)}

    def _head(self, request: Mapping[str, Any], kind: str) -> dict[str, Any]:  # as the API has it
        identity = "chatcmpl-" + hashlib.sha256(_plain(request.get("messages")).encode()).hexdigest()[:24]
        return {"id": identity, "object": kind, "created": CREATED_EPOCH_S, "model": request.get("model") or self.name}

    # --- over HTTP ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def serve(self) -> Iterator[str]:
        """An OpenAI-compatible server on the loopback interface; gives its base URL (…/v1)."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="scripted model", daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def _handler(model: ScriptedModel) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Speaks for `model`."""

        def do_GET(self) -> None:
            if self.path.rstrip("/").endswith("/models"):
                self._json(200, {"object": "list", "data": [{"id": model.name, "object": "model"}]})
            else:
                self._error(404, f"there is no {self.path} here")

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            if not self.path.rstrip("/").endswith("/chat/completions"):
                self._error(404, f"there is no {self.path} here")
                return
            model.calls.append(request)
            try:
                said = model.says(request.get("messages") or [])
            except ScriptExhausted as e:
                self._error(400, str(e))
                return
            if isinstance(said, BaseException):
                self._error(int(getattr(said, "status_code", 500)), str(said))
            elif request.get("stream"):
                self._events(model.chunks(request, said))
            else:
                self._json(200, model.completion(request, said))

        def _events(self, chunks: Iterator[dict[str, Any]]) -> None:  # as the API has them
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for chunk in chunks:
                self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            self.wfile.write(b"data: [DONE]\n\n")

        def _error(self, status: int, message: str) -> None:
            self._json(status, {"error": {"message": message, "type": "scripted"}})

        def _json(self, status: int, body: object) -> None:
            raw = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, format: str, *args: object) -> None:
            """A test's output is for the test."""

    return Handler


def _calls(said: Said) -> list[ToolCall]:
    if isinstance(said, ToolCall):
        return [said]
    return [] if isinstance(said, str | BaseException) else list(said)


def _reason(calls: list[ToolCall]) -> str:
    return "tool_calls" if calls else "stop"


def _tool_calls(request: Mapping[str, Any], calls: list[ToolCall]) -> list[dict[str, Any]]:  # as the API has them
    turn = len(request.get("messages") or [])
    return [
        {
            "id": f"call_{turn}_{i}",
            "type": "function",
            "function": {"name": call.name, "arguments": canonical(dict(call.arguments)).decode()},
        }
        for i, call in enumerate(calls)
    ]


def _usage(request: Mapping[str, Any], said: Said) -> dict[str, int]:  # requests as the API has them
    asked, given = len(_plain(request.get("messages"))) // 4, len(str(said)) // 4 + 1
    return {"prompt_tokens": asked, "completion_tokens": given, "total_tokens": asked + given}


def _words(text: str) -> list[str]:
    words = text.split(" ")
    return [word + " " for word in words[:-1]] + words[-1:]


def _role(message: object) -> object:
    return message.get("role") if isinstance(message, Mapping) else getattr(message, "role", None)


def _plain(messages: object) -> str:
    return json.dumps(messages, default=str, sort_keys=True)


class _Plain(SimpleNamespace):
    """Reads like openai's types: what is absent is None, and model_dump gives the data again."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)

    def model_dump(self, *, exclude_none: bool = False, **_: object) -> dict[str, Any]:  # JSON
        return {k: _dumped(v, exclude_none) for k, v in vars(self).items() if not (exclude_none and v is None)}


def _dumped(value: object, exclude_none: bool) -> object:
    if isinstance(value, _Plain):
        return value.model_dump(exclude_none=exclude_none)
    return [_dumped(v, exclude_none) for v in value] if isinstance(value, list) else value


def _typed(data: dict[str, Any], kind: str) -> Any:  # openai's type, or an object that reads alike
    try:
        from openai.types import chat
    except ImportError:
        return json.loads(json.dumps(data), object_hook=lambda d: _Plain(**d))
    return getattr(chat, kind).model_validate(data)


__all__ = ["ScriptExhausted", "ScriptedModel", "ToolCall", "tool_call"]
