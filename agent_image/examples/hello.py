"""The smallest agent. Kill it and start it again: `everstep local run hello:run --goal rivers --run-id monday`."""

import asyncio

import everstep


@everstep.step(effect="read")
async def think(topic: str) -> str:
    await asyncio.sleep(1)  # a model takes its time
    return f"three facts about {topic}"


@everstep.step(effect="idempotent")
async def publish(text: str) -> str:
    return f"published under {everstep.idempotency_key()[:8]}: {text}"


@everstep.agent
async def run(goal: str) -> str:
    facts = await think(goal)
    await asyncio.sleep(2)  # durable: after a crash it waits only for what is left
    return await publish(facts)
