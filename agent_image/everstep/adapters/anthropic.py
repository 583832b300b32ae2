"""The clients of the `anthropic` package: Anthropic, AsyncAnthropic, and those of Bedrock and Vertex."""

from everstep.adapters import stainless
from everstep.adapters.anthropic_streams import SHAPES
from everstep.journal.records import EffectClass, Json
from everstep.run.wrap import Options

_ASKS = ("/v1/messages", "/v1/messages/count_tokens", "/v1/complete")
"""Requests that answer and change nothing which anybody else sees."""


class AnthropicLibrary:
    """See `everstep.adapters.stainless.Library`."""

    name = "anthropic"

    def effect(self, method: str, path: str, body: Json) -> EffectClass:
        """Asking is `read`. A message that may call tools of MCP servers by itself happens once."""
        path = path.partition("?")[0]
        if method == "get":
            return "read"
        if method == "delete":
            return "idempotent"
        if not path.endswith(_ASKS) or (isinstance(body, dict) and body.get("mcp_servers")):
            return "at_most_once"
        return "read"

    def usage(self, answer: Json) -> tuple[int, int]:
        used = answer.get("usage") if isinstance(answer, dict) else None
        if not isinstance(used, dict):
            return 0, 0
        names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        return sum(int(used.get(name) or 0) for name in names), int(used.get("output_tokens") or 0)

    def shape(self, path: str) -> type[stainless.Shape] | None:
        return SHAPES.get(path.partition("?")[0])


LIBRARY = AnthropicLibrary()


def wrapped(x: object, options: Options) -> object | None:
    """The client with its calls as steps; None if it is no client."""
    if not (hasattr(x, "request") and hasattr(x, "max_retries") and hasattr(x, "base_url")):
        return None
    return stainless.wrapped(x, LIBRARY, options)
