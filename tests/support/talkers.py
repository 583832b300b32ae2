"""An agent whose steps say words, at the pace of a file that a test makes."""

import asyncio
import os

import everstep


@everstep.step(effect="read")
async def talk(words: list[str], gate: str) -> int:
    """Says them, and waits before the last for the gate."""
    for n, word in enumerate(words):
        while n == len(words) - 1 and gate and not os.path.exists(gate):  # noqa: ASYNC110, ASYNC240  # another process makes it
            await asyncio.sleep(0.02)
        everstep.say(word + " ")
        await asyncio.sleep(0.12)  # each word an entry of its own
    return len(words)


@everstep.agent
async def run(goal: str, effects: str, gate: str = "") -> int:
    """Two steps, of which the first waits."""
    said = await talk(["one", "two", "three", "\x1b[31mfour"], gate)
    return said + await talk(["five", "six"], "")
