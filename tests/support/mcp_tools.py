"""An MCP server on stdio whose tools leave a line in a file each: `python -m tests.support.mcp_tools FILE`.

Tools: look (read only), file_ticket (idempotent), pay (destructive), shout (no hints), break_off (ends the server in mid-call),
dig (read only; tells of its progress, and the first time falls silent).
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from mcp.server.mcpserver import Context, MCPServer
from mcp.types import ToolAnnotations


def main(path: str) -> None:
    """Serve until the other side closes."""
    server = MCPServer("tools")

    def effect(name: str, what: str) -> None:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(handle, (json.dumps({"tool": name, "what": what}) + "\n").encode())
        os.close(handle)

    @server.tool(annotations=ToolAnnotations(readOnlyHint=True))
    def look(what: str) -> str:
        effect("look", what)
        return f"{what} seen"

    @server.tool(annotations=ToolAnnotations(readOnlyHint=False, destructiveHint=False, idempotentHint=True))
    def file_ticket(title: str) -> dict[str, str]:
        effect("file_ticket", title)
        return {"ticket": title.upper()}

    @server.tool(annotations=ToolAnnotations(destructiveHint=True))
    def pay(amount: int) -> str:
        effect("pay", str(amount))
        return f"paid {amount}"

    @server.tool()
    def shout(text: str) -> str:
        effect("shout", text)
        return text

    @server.tool()
    def break_off(text: str) -> str:
        effect("break_off", text)
        os._exit(3)

    @server.tool(annotations=ToolAnnotations(readOnlyHint=True))
    async def dig(context: Context, depth: int, every_s: float) -> str:
        first = not any(tool == "dig" for tool, _ in effects(Path(path)))
        effect("dig", str(depth))
        for i in range(depth):
            await asyncio.sleep(every_s)
            await context.report_progress(i, depth)
        if first:
            await asyncio.sleep(60)
        return f"{depth} deep"

    server.run("stdio")


def effects(path: Path) -> list[tuple[str, str]]:
    """What the tools did so far."""
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [(line["tool"], line["what"]) for line in lines]


if __name__ == "__main__":
    main(sys.argv[1])
