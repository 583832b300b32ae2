"""Agents with a budget, and a scripted model that keeps its own books: one line per call in the file of effects."""

import asyncio

import everstep
from everstep import Reserve
from tests.crash.agents import effect

TOKENS = 10
"""What each call of the model costs, exactly what is reserved for it."""
LIMIT = 75


@everstep.step(effect="read", reserve=Reserve(tokens=TOKENS))
async def think(effects: str, name: str) -> str:
    """One call of the model."""
    effect(effects, name)
    await asyncio.sleep(0.005)
    everstep.report_usage(input_tokens=TOKENS - 3, output_tokens=3)
    return name


@everstep.step(effect="idempotent")
async def note(effects: str, name: str) -> str:
    """Costs nothing."""
    effect(effects, name)
    return name


@everstep.agent
async def runaway(goal: str, effects: str, rounds: int = 40) -> int:
    """C59: asks in threes, again and again; 120 calls if nobody stops it."""
    done = 0
    for n in range(rounds):
        answers = await asyncio.gather(*(think(effects, f"{n}-{i}") for i in range(3)))
        await note(effects, f"{n}-note")
        done += len(answers)
    return done
