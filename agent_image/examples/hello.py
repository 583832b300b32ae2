"""The smallest agent: three steps and a nap. Kill it and start it again: `everstep local run hello:run --goal Hello`."""

import asyncio

import everstep


@everstep.step(effect="read")
async def greet(name: str) -> str:
    await asyncio.sleep(1)
    return f"Hello {name}"


@everstep.agent
async def run(goal: str = "Greet everybody") -> str:
    greetings = [await greet(name) for name in ("Ada", "Grace", "Edsger")]
    await asyncio.sleep(2)  # durable: a restart waits only for what is left of it
    return ", ".join(greetings)
