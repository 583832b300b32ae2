"""The clients of the `openai` package: OpenAI, AsyncOpenAI, and those of Azure."""

from everstep.adapters import stainless
from everstep.adapters.openai_streams import SHAPES
from everstep.journal.records import EffectClass, Json
from everstep.run.wrap import Options

_ASKS = (
    "/chat/completions",
    "/completions",
    "/embeddings",
    "/responses",
    "/responses/compact",
    "/responses/input_tokens",
    "/moderations",
    "/images/generations",
)
"""Requests that answer and change nothing which anybody else sees."""


class OpenAILibrary:
    """See `everstep.adapters.stainless.Library`."""

    name = "openai"

    def effect(self, method: str, path: str, body: Json) -> EffectClass:
        """Asking is `read`. A response that joins a conversation, or may call tools of a server by itself, happens once."""
        if method == "get":
            return "read"
        if method == "delete":
            return "idempotent"
        if not path.endswith(_ASKS):
            return "at_most_once"
        if isinstance(body, dict):
            tools = body.get("tools") or ()
            acts = any(isinstance(tool, dict) and tool.get("type") == "mcp" for tool in tools)
            if body.get("conversation") or body.get("background") or acts:
                return "at_most_once"
        return "read"

    def usage(self, answer: Json) -> tuple[int, int]:
        used = answer.get("usage") if isinstance(answer, dict) else None
        if not isinstance(used, dict):
            return 0, 0
        given = used.get("prompt_tokens", used.get("input_tokens"))
        made = used.get("completion_tokens", used.get("output_tokens"))
        return int(given or 0), int(made or 0)

    def shape(self, path: str) -> type[stainless.Shape] | None:
        return next((shape for end, shape in SHAPES.items() if path.endswith(end)), None)


LIBRARY = OpenAILibrary()


def wrapped(x: object, options: Options) -> object | None:
    """The client with its calls as steps; None if it is no client."""
    if not (hasattr(x, "request") and hasattr(x, "max_retries") and hasattr(x, "base_url")):
        return None
    return stainless.wrapped(x, LIBRARY, options)
