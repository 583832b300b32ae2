"""The scripted agent for what steps may be told: bounds, heartbeats, retries that ask a person."""

import asyncio

import everstep
from everstep import Retry
from tests.crash.agents import effect, happened, put

PARTS = 4


@everstep.step(effect="idempotent", heartbeat_timeout=0.4, total_timeout=60, retry=Retry(max_tries=3, backoff_s=0.01))
async def fetch(effects: str, name: str) -> str:
    """Falls silent after two of its parts the first time, and goes on there."""
    first = everstep.heartbeat_details(int) or 0
    effect(effects, name)
    for part in range(first, PARTS):
        if part == 2 and happened(effects, everstep.idempotency_key()) == 1:
            await asyncio.sleep(30)
        await asyncio.sleep(0.05)
        everstep.heartbeat(part + 1)
    return name.upper()


@everstep.step(
    effect="idempotent",
    retry=Retry(max_tries=5, backoff_s=0.01, max_tries_by={ConnectionError: 2}, on_exhausted="ask"),
)
async def stubborn(effects: str, name: str) -> str:
    """Its first two calls ever fail, which is all it has; then a person lets it try again."""
    effect(effects, name)
    if happened(effects, everstep.idempotency_key()) <= 2:
        raise ConnectionError("the first two calls always fail")
    return name


@everstep.step(effect="read", retry=Retry(max_tries=3, backoff_s=0.01))
async def limited(effects: str, name: str) -> str:
    """Told once to come back after a while that is long enough for the run to park."""
    effect(effects, name)
    if happened(effects, everstep.idempotency_key()) == 1:
        raise everstep.RetryAfter(0.8)
    return name


@everstep.step(effect="idempotent")
async def note(name: str, effects: str) -> str:
    effect(effects, name)
    await asyncio.sleep(0.02)
    return name


@everstep.step(effect="read")
async def never(name: str) -> str:
    """The loser of any race."""
    await asyncio.sleep(60)
    return name


@everstep.agent
async def script(goal: str, effects: str) -> list[object]:
    """Heartbeats, a long wait for the next try, exhausted tries, a map, a race."""
    out: list[object] = [
        await fetch(effects, "a"),
        await limited(effects, "b"),
        await stubborn(effects, "c"),
        await put(effects, "d"),
    ]
    out.extend(await note.map(["e", "f", "g"], concurrency=2, common={"effects": effects}))
    out.extend(await everstep.first(never("h"), note("i", effects)))
    return out


SCRIPT_RESULT = ["A", "b", "c", "D", "e", "f", "g", 1, "i"]
SCRIPT_EFFECTS = ("a", "b", "c", "d", "e", "f", "g", "i")
STEPS_ENTRYPOINT = "tests.crash.agents_steps:script"


@everstep.step(effect="read", retry=Retry(max_tries=10_000, backoff_s=0))
async def fails(effects: str, name: str) -> str:
    everstep.heartbeat({"try": name, "more": "x" * 4000})
    raise ConnectionError("y" * 5000)


@everstep.agent
async def ten_thousand(goal: str, effects: str) -> str:
    """C57: tries without end."""
    try:
        return await fails(effects, "a")
    except everstep.StepFailed as e:
        return e.type
