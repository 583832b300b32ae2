"""One agent before and after a change that `patched` guards; the crash tier kills the first and goes on with the second."""

import asyncio
from collections.abc import Callable

import everstep
from tests.crash.agents import look, put, tell


async def _errand(effects: str, name: str, new: bool) -> str:
    """Both ways have the same effects under different steps, so that a wrong turn is a divergence or an effect too many."""
    if new:
        return await put(effects, name)
    return str(await look(effects, name)) + await tell(effects, f"{name}-told")


async def _errands(effects: str, way: Callable[[str], bool]) -> list[str]:
    out = [str(await look(effects, "a"))]
    out.append(await _errand(effects, "b", way("b")))
    await asyncio.sleep(0.02)

    async def child(name: str) -> str:
        await put(effects, f"{name}-put")
        return await _errand(effects, name, way(name))

    out += await asyncio.gather(child("c"), child("d"))
    return [*out, str(await look(effects, "e"))]


@everstep.agent
async def before(goal: str, effects: str) -> list[str]:
    """As it was."""
    return await _errands(effects, lambda _: False)


@everstep.agent
async def after(goal: str, effects: str) -> list[str]:
    """As it is now."""
    return await _errands(effects, everstep.patched)
