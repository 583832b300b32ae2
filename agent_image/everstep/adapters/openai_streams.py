"""What streams of openai look like: chat completions and responses."""

import copy
from typing import Any

from everstep.adapters.stainless import Shape, cut
from everstep.journal.records import Json


class ChatShape:
    """Chunks with deltas; whole once each choice has its finish reason."""

    def __init__(self, body: Json) -> None:
        self._head: dict[str, Json] = {}
        self._choices: dict[int, dict[str, Json]] = {}

    def add(self, chunk: Json) -> str:
        self._head |= {k: v for k, v in chunk.items() if k != "choices" and v is not None}
        said = ""
        for choice in chunk.get("choices") or ():
            index = choice.get("index", 0)
            have = self._choices.setdefault(
                index, {"index": index, "message": {"role": "assistant", "content": None}, "finish_reason": None}
            )
            delta = choice.get("delta") or {}
            _merge(have["message"], delta)
            if choice.get("finish_reason") is not None:
                have["finish_reason"] = choice["finish_reason"]
            if choice.get("logprobs"):
                _merge(have.setdefault("logprobs", {}), choice["logprobs"])
            if index == 0 and isinstance(delta.get("content"), str):
                said += delta["content"]
        return said

    def final(self) -> Json:
        if not self._choices or any(choice["finish_reason"] is None for choice in self._choices.values()):
            cut("its finish reason")
        choices = [self._choices[index] for index in sorted(self._choices)]
        for choice in choices:
            for call in choice["message"].get("tool_calls") or ():
                call.pop("index", None)
        return {**self._head, "object": "chat.completion", "choices": choices}

    @classmethod
    def few(cls, final: Json, body: Json) -> list[Json]:
        head = {k: v for k, v in final.items() if k not in ("choices", "usage")} | {"object": "chat.completion.chunk"}
        first, last = [], []
        for choice in final["choices"]:
            delta = copy.deepcopy(choice["message"])
            if delta.get("tool_calls"):
                delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(delta["tool_calls"])]
            more = {"logprobs": choice["logprobs"]} if choice.get("logprobs") else {}
            first.append({"index": choice["index"], "delta": delta, "finish_reason": None, **more})
            last.append({"index": choice["index"], "delta": {}, "finish_reason": choice["finish_reason"]})
        chunks = [{**head, "choices": first}, {**head, "choices": last}]
        asked = (body.get("stream_options") or {}).get("include_usage") if isinstance(body, dict) else False
        if asked and final.get("usage"):
            chunks.append({**head, "choices": [], "usage": final["usage"]})
        return chunks


def _merge(have: dict[str, Json], delta: dict[str, Json]) -> None:
    """Add a delta: text goes on, lists with an index are merged item by item, what is a name or a number is set."""
    for name, value in delta.items():
        before = have.get(name)
        if value is None:
            have.setdefault(name, None)
        elif isinstance(value, str) and isinstance(before, str) and name not in ("role", "id", "type", "name"):
            have[name] = before + value
        elif isinstance(value, dict) and isinstance(before, dict):
            _merge(before, value)
        elif isinstance(value, list):
            have[name] = _merged_list(before if isinstance(before, list) else [], value)
        else:
            have[name] = value


def _merged_list(have: list[Any], items: list[Any]) -> list[Any]:  # JSON
    for item in items:
        index = item.get("index") if isinstance(item, dict) else None
        known = (
            next((x for x in have if isinstance(x, dict) and x.get("index") == index), None)
            if index is not None
            else None
        )
        if known is None:
            have.append(copy.deepcopy(item))
        else:
            _merge(known, {k: v for k, v in item.items() if k != "index"})
    return have


class ResponsesShape:
    """Events; the last one carries the whole response."""

    _ENDS = ("response.completed", "response.incomplete", "response.failed")

    def __init__(self, body: Json) -> None:
        self._final: Json = None

    def add(self, chunk: Json) -> str:
        if chunk.get("type") in self._ENDS:
            self._final = chunk["response"]
        delta = chunk.get("delta")
        return delta if chunk.get("type") == "response.output_text.delta" and isinstance(delta, str) else ""

    def final(self) -> Json:
        if self._final is None:
            cut("the response was complete")
        return self._final

    @classmethod
    def few(cls, final: Json, body: Json) -> list[Json]:
        events: list[Json] = []

        def event(kind: str, **more: Json) -> None:
            events.append({"type": f"response.{kind}", "sequence_number": len(events), **more})

        event("created", response={**final, "status": "in_progress", "output": [], "usage": None})
        for i, item in enumerate(final.get("output") or ()):
            at = {"output_index": i, "item_id": item.get("id", "")}
            if item.get("type") == "message":
                event("output_item.added", output_index=i, item={**item, "content": [], "status": "in_progress"})
                for n, part in enumerate(item.get("content") or ()):
                    _part(event, {**at, "content_index": n}, part)
            elif item.get("type") == "function_call":
                event("output_item.added", output_index=i, item={**item, "arguments": "", "status": "in_progress"})
                event("function_call_arguments.delta", **at, delta=item.get("arguments", ""))
                event(
                    "function_call_arguments.done", **at, arguments=item.get("arguments", ""), name=item.get("name", "")
                )
            else:
                event("output_item.added", output_index=i, item=item)
            event("output_item.done", output_index=i, item=item)
        event(final.get("status") if final.get("status") in ("incomplete", "failed") else "completed", response=final)
        return events


def _part(event: Any, at: dict[str, Json], part: dict[str, Json]) -> None:  # a function that takes what an event has
    if part.get("type") != "output_text":
        event("content_part.added", **at, part=part)
        event("content_part.done", **at, part=part)
        return
    event("content_part.added", **at, part={**part, "text": "", "annotations": []})
    event("output_text.delta", **at, delta=part["text"], logprobs=[])
    event("output_text.done", **at, text=part["text"], logprobs=[])
    event("content_part.done", **at, part=part)


SHAPES: dict[str, type[Shape]] = {"/chat/completions": ChatShape, "/responses": ResponsesShape}
"""By the end of the path."""
