"""The scripted agents that the crash tier kills. Each effect is one line in an append-only file, written by the effect itself.

A line tells which step made it (`idem`, the idempotency key, is also in the step's intents) and in which attempt and process.
"""

import asyncio
import json
import os
import signal
import time
from pathlib import Path

import everstep
from everstep import NOT_DONE, Done, Probed, Retry


def effect(path: str, name: str) -> None:
    """Do the effect: one line, one write, on disk before it returns."""
    line = {
        "name": name,
        "idem": everstep.idempotency_key(),
        "attempt": int(os.environ["EVERSTEP_ATTEMPT"]),
        "pid": os.getpid(),
    }
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, (json.dumps(line) + "\n").encode())
    finally:
        os.close(handle)


def happened(path: str, idem: str) -> int:
    """How often the effect of this key was done so far."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return 0
    return sum(json.loads(line)["idem"] == idem for line in text.splitlines())


@everstep.step(effect="read")
async def look(effects: str, name: str) -> int:
    effect(effects, name)
    return len(name)


@everstep.step(effect="idempotent")
async def put(effects: str, name: str) -> str:
    effect(effects, name)
    await asyncio.sleep(0.01)
    return name.upper()


@everstep.step(effect="idempotent")
def put_in_thread(effects: str, name: str) -> str:
    """A sync step."""
    effect(effects, name)
    return name.title()


@everstep.step(effect="read", retry=Retry(max_tries=6, backoff_s=0.01))
async def flaky(effects: str, name: str) -> str:
    """Its first two calls ever fail."""
    effect(effects, name)
    if happened(effects, everstep.idempotency_key()) <= 2:
        raise ConnectionError("the first two calls always fail")
    return name


async def was_told(effects: str, name: str) -> Probed[str]:
    """Looks into the file of effects."""
    return Done(name) if happened(effects, everstep.idempotency_key()) else NOT_DONE


@everstep.step(effect="at_most_once", probe=was_told)
async def tell(effects: str, name: str) -> str:
    effect(effects, name)
    return name


@everstep.step(effect="at_most_once")
async def shout(effects: str, name: str) -> str:
    """Nobody can tell whether it was done."""
    effect(effects, name)
    return name


async def _errand(effects: str, name: str) -> str:
    first = await look(effects, f"{name}-look")
    return f"{await put(effects, f'{name}-put')}{first}"


@everstep.agent
async def script(goal: str, effects: str) -> list[object]:
    """All effect classes, one after the other, gathered, in tasks with scopes of their own; a short timer, and one that parks."""
    out: list[object] = [goal]
    out.append(await look(effects, "a"))
    out.append(await put(effects, "b"))
    out.append(await tell(effects, "c"))
    out.extend(await asyncio.gather(look(effects, "d"), put(effects, "e"), tell(effects, "f")))
    await asyncio.sleep(0.02)
    out.append(await flaky(effects, "g"))
    async with asyncio.TaskGroup() as group:
        errands = [group.create_task(_errand(effects, name)) for name in ("h", "i")]
    out.extend(task.result() for task in errands)
    await asyncio.sleep(1.0)
    out.append(await put_in_thread.aio(effects, "j"))
    out.append(await shout(effects, "k"))
    out.append(await look(effects, "l"))
    return out


SCRIPT_RESULT = ["go", 1, "B", "c", 1, "E", "f", "g", "H-PUT6", "I-PUT6", "J", "k", 1]
"""What `script` returns, however often it was killed."""
SCRIPT_EFFECTS = ("a", "b", "c", "d", "e", "f", "g", "h-look", "h-put", "i-look", "i-put", "j", "k", "l")
AT_MOST_ONCE = {"c", "f", "k"}
FLAKY = "g"


async def always_not_done(effects: str, name: str) -> Probed[str]:
    """A probe that lies."""
    return NOT_DONE


@everstep.step(effect="at_most_once", probe=always_not_done)
async def tell_twice(effects: str, name: str) -> str:
    effect(effects, name)
    return name


@everstep.agent
async def canary(goal: str, effects: str) -> str:
    """Breaks a promise when it is killed after its effect; the judge must see it."""
    return await tell_twice(effects, "a")


@everstep.step(effect="idempotent")
async def slow(effects: str, name: str, seconds: float) -> str:
    """Says that it began by doing its effect, then takes its time."""
    effect(effects, name)
    await asyncio.sleep(seconds)
    return name


@everstep.agent
async def two_slow_steps(goal: str, effects: str, seconds: float) -> str:
    """For SIGTERM in mid-step."""
    return await slow(effects, "first", seconds) + await slow(effects, "second", 0.0)


@everstep.step(effect="idempotent")
async def deaf(effects: str, name: str) -> str:
    """In the first attempt it blocks its whole process, and so cannot be asked to stop."""
    effect(effects, name)
    if os.environ["EVERSTEP_ATTEMPT"] == "1":
        time.sleep(60)  # noqa: ASYNC251 - blocking the loop is what this step is for
    return name


@everstep.agent
async def deaf_agent(goal: str, effects: str) -> str:
    """For SIGTERM while the process does not listen (C12, C34)."""
    return await deaf(effects, "first") + await look_name(effects, "second")


@everstep.step(effect="read")
async def look_name(effects: str, name: str) -> str:
    effect(effects, name)
    return name


@everstep.step(effect="idempotent")
async def leave_with_zero(effects: str, name: str) -> str:
    """A tool that ends the process with exit code 0 on SIGTERM, as many do (C27)."""
    effect(effects, name)
    if os.environ["EVERSTEP_ATTEMPT"] == "1":
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        await asyncio.sleep(60)
    return name


@everstep.agent
async def polite_agent(goal: str, effects: str) -> str:
    """For C27."""
    return await leave_with_zero(effects, "first") + await look_name(effects, "second")
