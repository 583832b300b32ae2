"""A model service on loopback that speaks OpenAI's chat completions, responses and embeddings, and Anthropic's messages.

It answers from a script, word by word when a stream is asked for, counts what was asked, and can cut a stream, refuse, or take
its time.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

Json = dict[str, Any]


@dataclass
class Reply:
    """One answer. `tools`: (name, arguments) the model wants called. `cut`: end a stream after that many chunks, without a finish
    reason. `status`: refuse with it. `pause_s`: between two chunks."""

    text: str = "All is well."
    tools: tuple[tuple[str, Json], ...] = ()
    cut: int | None = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    pause_s: float = 0.0


Script = Callable[[Json, int], Reply]
"""From a request's body and its number (0 is the first) to the answer."""


class ModelServer:
    """A context manager. `url` ends in /v1 for openai; anthropic takes `root`."""

    def __init__(self, script: Script = lambda _body, _number: Reply()) -> None:
        self.script = script
        self.requests: list[tuple[str, Json]] = []
        self.headers: list[dict[str, str]] = []
        self.chunks_sent = 0
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)))
                outer._answer(self, body)

            def log_message(self, format: str, *args: object) -> None:
                return None

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.root = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.url = f"{self.root}/v1"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> "ModelServer":
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.shutdown()
        self.server.server_close()

    def _answer(self, handler: BaseHTTPRequestHandler, body: Json) -> None:
        with self._lock:
            number = len(self.requests)
            self.requests.append((handler.path, body))
            self.headers.append({k.lower(): v for k, v in handler.headers.items()})
        reply = self.script(body, number)
        if reply.status != 200:
            error = {"error": {"message": "the model is busy", "type": "overloaded", "code": "busy"}}
            self._send(handler, reply.status, json.dumps(error).encode(), reply.headers)
            return
        shape = _SHAPES[handler.path.partition("?")[0]]
        if body.get("stream"):
            self._stream(handler, shape.events(body, reply, number), reply)
        else:
            self._send(handler, 200, json.dumps(shape.whole(body, reply, number)).encode(), reply.headers)

    def _send(self, handler: BaseHTTPRequestHandler, status: int, raw: bytes, headers: dict[str, str]) -> None:
        handler.send_response(status)
        handler.close_connection = True  # a test's loop ends with its run, and so must its connections
        plain = {"content-type": "application/json", "content-length": str(len(raw)), "connection": "close"}
        for name, value in {**plain, **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(raw)

    def _stream(self, handler: BaseHTTPRequestHandler, events: Iterator[Json], reply: Reply) -> None:
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.send_header("connection", "close")
        handler.end_headers()
        handler.close_connection = True
        try:
            for i, event in enumerate(events):
                if reply.cut is not None and i >= reply.cut:
                    return
                name = f"event: {event['type']}\n" if "type" in event else ""
                handler.wfile.write(f"{name}data: {json.dumps(event)}\n\n".encode())
                handler.wfile.flush()
                self.chunks_sent += 1
                time.sleep(reply.pause_s)
            if handler.path.startswith("/v1/chat/"):
                handler.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            return  # the client is gone


def words(text: str) -> list[str]:
    """The text in pieces that add up to it."""
    return [w + " " for w in text.split(" ")[:-1]] + text.split(" ")[-1:] if text else []


class _Chat:
    def whole(self, body: Json, reply: Reply, number: int) -> Json:
        message: Json = {"role": "assistant", "content": reply.text}
        if reply.tools:
            message["tool_calls"] = [
                {"id": f"call-{number}-{i}", "type": "function", "function": {"name": n, "arguments": json.dumps(a)}}
                for i, (n, a) in enumerate(reply.tools)
            ]
        return {
            "id": f"chat-{number}",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if reply.tools else "stop"}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12},
        }

    def events(self, body: Json, reply: Reply, number: int) -> Iterator[Json]:
        whole = self.whole(body, reply, number)
        base = {"id": whole["id"], "object": "chat.completion.chunk", "created": 1, "model": body["model"]}

        def chunk(delta: Json, finish: str | None = None) -> Json:
            return {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

        yield chunk({"role": "assistant", "content": ""})
        for word in words(reply.text):
            yield chunk({"content": word})
        for i, call in enumerate(whole["choices"][0]["message"].get("tool_calls", ())):
            arguments = call["function"]["arguments"]
            yield chunk(
                {"tool_calls": [{**call, "index": i, "function": {"name": call["function"]["name"], "arguments": ""}}]}
            )
            for part in (arguments[:4], arguments[4:]):
                yield chunk({"tool_calls": [{"index": i, "function": {"arguments": part}}]})
        yield chunk({}, whole["choices"][0]["finish_reason"])
        if (body.get("stream_options") or {}).get("include_usage"):
            yield {**base, "choices": [], "usage": whole["usage"]}


class _Responses:
    def whole(self, body: Json, reply: Reply, number: int) -> Json:
        text = {"type": "output_text", "text": reply.text, "annotations": []}
        output: list[Json] = [
            {"type": "message", "id": f"msg-{number}", "role": "assistant", "status": "completed", "content": [text]}
        ]
        output += [
            {
                "type": "function_call",
                "id": f"fc-{number}-{i}",
                "call_id": f"call-{number}-{i}",
                "name": n,
                "arguments": json.dumps(a),
                "status": "completed",
            }
            for i, (n, a) in enumerate(reply.tools)
        ]
        return {
            "id": f"resp-{number}",
            "object": "response",
            "created_at": 1,
            "model": body["model"],
            "status": "completed",
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": {
                "input_tokens": 7,
                "output_tokens": 5,
                "total_tokens": 12,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens_details": {"reasoning_tokens": 0},
            },
        }

    def events(self, body: Json, reply: Reply, number: int) -> Iterator[Json]:
        whole = self.whole(body, reply, number)
        n = iter(range(10_000))

        def event(kind: str, **more: Any) -> Json:  # of any shape
            return {"type": f"response.{kind}", "sequence_number": next(n), **more}

        yield event("created", response={**whole, "status": "in_progress", "output": [], "usage": None})
        for i, item in enumerate(whole["output"]):
            if item["type"] != "message":
                yield event(
                    "output_item.added", output_index=i, item={**item, "arguments": "", "status": "in_progress"}
                )
                yield event(
                    "function_call_arguments.delta", output_index=i, item_id=item["id"], delta=item["arguments"]
                )
                yield event("output_item.done", output_index=i, item=item)
                continue
            at = {"output_index": i, "item_id": item["id"], "content_index": 0}
            part = item["content"][0]
            yield event("output_item.added", output_index=i, item={**item, "content": [], "status": "in_progress"})
            yield event("content_part.added", **at, part={**part, "text": ""})
            for word in words(reply.text):
                yield event("output_text.delta", **at, delta=word, logprobs=[])
            yield event("output_text.done", **at, text=reply.text, logprobs=[])
            yield event("content_part.done", **at, part=part)
            yield event("output_item.done", output_index=i, item=item)
        yield event("completed", response=whole)


class _Embeddings:
    def whole(self, body: Json, reply: Reply, number: int) -> Json:
        return {
            "object": "list",
            "model": body["model"],
            "data": [{"object": "embedding", "index": 0, "embedding": "AACAPwAAAEA="}],  # 1.0, 2.0 as base64 of floats
            "usage": {"prompt_tokens": 3, "total_tokens": 3},
        }

    def events(self, body: Json, reply: Reply, number: int) -> Iterator[Json]:
        raise AssertionError("embeddings do not stream")


class _Messages:
    def whole(self, body: Json, reply: Reply, number: int) -> Json:
        content: list[Json] = [{"type": "text", "text": reply.text}] if reply.text else []
        content += [
            {"type": "tool_use", "id": f"toolu-{number}-{i}", "name": n, "input": a}
            for i, (n, a) in enumerate(reply.tools)
        ]
        return {
            "id": f"msg-{number}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": content,
            "stop_reason": "tool_use" if reply.tools else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 7, "output_tokens": 5},
        }

    def events(self, body: Json, reply: Reply, number: int) -> Iterator[Json]:
        whole = self.whole(body, reply, number)
        start = {**whole, "content": [], "stop_reason": None, "usage": {"input_tokens": 7, "output_tokens": 1}}
        yield {"type": "message_start", "message": start}
        for i, block in enumerate(whole["content"]):
            if block["type"] == "text":
                yield {"type": "content_block_start", "index": i, "content_block": {"type": "text", "text": ""}}
                deltas = [{"type": "text_delta", "text": w} for w in words(block["text"])]
            else:
                yield {"type": "content_block_start", "index": i, "content_block": {**block, "input": {}}}
                raw = json.dumps(block["input"])
                deltas = [{"type": "input_json_delta", "partial_json": part} for part in (raw[:4], raw[4:])]
            for delta in deltas:
                yield {"type": "content_block_delta", "index": i, "delta": delta}
            yield {"type": "content_block_stop", "index": i}
        stop = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
        yield {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 5}}
        yield {"type": "message_stop"}


_SHAPES: dict[str, Any] = {
    "/v1/chat/completions": _Chat(),
    "/v1/responses": _Responses(),
    "/v1/embeddings": _Embeddings(),
    "/v1/messages": _Messages(),
}
