"""An agent that reads streams of a model; killed by test_streams."""

from typing import Any

from openai import AsyncOpenAI

import everstep
from tests.crash.agents import look


@everstep.agent
async def reader(goal: str, effects: str, url: str) -> list[str]:
    """A step, a stream read as it comes, and a step with what it said."""
    client = everstep.wrap(AsyncOpenAI(api_key="k", base_url=url))
    messages: Any = [{"role": "user", "content": goal}]
    await look(effects, "before")
    stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    await look(effects, text)
    return [text]
