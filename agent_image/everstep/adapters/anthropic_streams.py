"""What streams of anthropic look like: the events of one message."""

import copy
import json

from everstep.adapters.stainless import Shape, cut
from everstep.journal.records import Json

_APPENDED = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


class MessageShape:
    """Events; whole after message_stop, with a stop reason."""

    def __init__(self, body: Json) -> None:
        self._message: Json = None
        self._raw: dict[int, str] = {}
        """Pieces of a tool's input, by block."""
        self._stopped = False

    def add(self, chunk: Json) -> str:
        kind = chunk.get("type")
        if kind == "message_start":
            self._message = copy.deepcopy(chunk["message"])
            self._message["content"] = []
        elif self._message is None:
            return ""
        elif kind == "content_block_start":
            self._message["content"].append(copy.deepcopy(chunk["content_block"]))
        elif kind == "content_block_delta":
            return self._delta(chunk["index"], chunk["delta"])
        elif kind == "content_block_stop" and chunk["index"] in self._raw:
            raw = self._raw.pop(chunk["index"])
            self._message["content"][chunk["index"]]["input"] = json.loads(raw) if raw else {}
        elif kind == "message_delta":
            self._message |= {k: v for k, v in chunk["delta"].items() if v is not None}
            self._message["usage"] = {
                **(self._message.get("usage") or {}),
                **{k: v for k, v in (chunk.get("usage") or {}).items() if v is not None},
            }
        elif kind == "message_stop":
            self._stopped = True
        return ""

    def _delta(self, index: int, delta: Json) -> str:
        block, kind = self._message["content"][index], delta.get("type")
        if kind == "input_json_delta":
            self._raw[index] = self._raw.get(index, "") + delta["partial_json"]
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or []), delta["citation"]]
        elif kind in _APPENDED:
            name = _APPENDED[kind]
            block[name] = (block.get(name) or "") + delta[name]
        return str(delta["text"]) if kind == "text_delta" else ""

    def final(self) -> Json:
        if self._message is None or not self._stopped or self._message.get("stop_reason") is None:
            cut("its stop reason")
        return self._message

    @classmethod
    def few(cls, final: Json, body: Json) -> list[Json]:
        start = {**final, "content": [], "stop_reason": None, "stop_sequence": None}
        events: list[Json] = [{"type": "message_start", "message": start}]
        for i, block in enumerate(final["content"]):
            empty, deltas = _taken_apart(block)
            events.append({"type": "content_block_start", "index": i, "content_block": empty})
            events += [{"type": "content_block_delta", "index": i, "delta": delta} for delta in deltas]
            events.append({"type": "content_block_stop", "index": i})
        stop = {"stop_reason": final["stop_reason"], "stop_sequence": final.get("stop_sequence")}
        events.append({"type": "message_delta", "delta": stop, "usage": final.get("usage") or {"output_tokens": 0}})
        events.append({"type": "message_stop"})
        return events


def _taken_apart(block: Json) -> tuple[Json, list[Json]]:
    """A block as it begins, and the deltas that fill it."""
    empty, deltas = dict(block), []
    if block.get("type") == "text":
        empty |= {"text": ""}
        citations = empty.pop("citations", None) or ()
        deltas = [{"type": "text_delta", "text": block["text"]}]
        deltas += [{"type": "citations_delta", "citation": c} for c in citations]
    elif block.get("type") == "thinking":
        empty |= {"thinking": "", "signature": ""}
        deltas = [{"type": "thinking_delta", "thinking": block.get("thinking") or ""}]
        deltas += [{"type": "signature_delta", "signature": block["signature"]}] if block.get("signature") else []
    elif block.get("type") in ("tool_use", "server_tool_use"):
        empty |= {"input": {}}
        raw = json.dumps(block.get("input") or {}, ensure_ascii=False)
        deltas = [{"type": "input_json_delta", "partial_json": raw}]
    return empty, deltas


SHAPES: dict[str, type[Shape]] = {"/v1/messages": MessageShape}
"""By path."""
