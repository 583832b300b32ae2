"""A model that calls tools until it has an answer: the loop most agents are, with the openai client and tools over MCP.

before/plain_loop.py is how one writes it. plain_loop.py is the same program, durable: five lines differ. Kill it at any moment
and start it again: what the model said is not asked again, no recorded tool call is repeated, and a tool that says nothing of
itself is never called twice without somebody having said that it may.

    OPENAI_API_KEY=… TOOLS_COMMAND="python my_mcp_server.py" python plain_loop.py "Sort out the backlog"
"""

import asyncio
import json
import os
import shlex
import sys
from contextlib import asynccontextmanager

from mcp import ClientSession, StdioServerParameters, stdio_client
from openai import AsyncOpenAI

client = AsyncOpenAI()


@asynccontextmanager
async def open_tools():
    command, *args = shlex.split(os.environ["TOOLS_COMMAND"])
    server = StdioServerParameters(command=command, args=args, env=dict(os.environ))
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        yield session


async def run(goal: str) -> str:
    async with open_tools() as tools:
        listed = (await tools.list_tools()).tools
        offered = [
            {
                "type": "function",
                "function": {"name": t.name, "description": t.description or "", "parameters": t.input_schema},
            }
            for t in listed
        ]
        messages = [{"role": "user", "content": goal}]
        while True:
            answer = await client.chat.completions.create(model="gpt-5", messages=messages, tools=offered)
            message = answer.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                return message.content or ""
            for call in message.tool_calls:
                result = await tools.call_tool(call.function.name, json.loads(call.function.arguments))
                text = "\n".join(part.text for part in result.content if part.type == "text")
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})


if __name__ == "__main__":
    print(asyncio.run(run(sys.argv[1])))
