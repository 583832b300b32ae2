"""The agents whose journals are kept here. Their code is frozen: a change of it is a change of what the journals mean."""

import asyncio

import everstep
from everstep import NOT_DONE, Probed, Reserve, Retry, StepFailed

calls = 0


@everstep.step(effect="read")
async def look(n: int, seconds: float = 0.0) -> int:
    await asyncio.sleep(seconds)
    return 2 * n


@everstep.step(effect="idempotent", retry=Retry(max_tries=3, backoff_s=0.5, jitter=0))
async def flaky(n: int) -> dict[str, tuple[int, ...]]:
    global calls  # noqa: PLW0603  # fails the first time only
    calls += 1
    if calls == 1:
        raise ConnectionError("busy")
    return {"n": (n, n)}


@everstep.step(effect="read")
async def broken(n: int) -> None:
    raise LookupError(f"nothing at {n}")


async def never_sent(text: str) -> Probed[int]:
    return NOT_DONE


@everstep.step(effect="at_most_once", probe=never_sent)
async def send(text: str) -> int:
    await asyncio.sleep(0.1)
    return len(text)


@everstep.step(effect="at_most_once")
async def mail(text: str) -> int:
    await asyncio.sleep(0.1)
    return len(text)


@everstep.step(effect="read")
async def large(size: int) -> str:
    return "x" * size


@everstep.agent
async def everything(goal: str, n: int) -> list[object]:
    """Every form of asyncio and every kind of record in one agent."""
    seen: list[object] = [goal]
    seen.append(await asyncio.gather(*(look(i, 0.5 - 0.1 * i) for i in range(n))))
    seen.append([await c for c in asyncio.as_completed([look(10 + i, 0.3 - 0.1 * i) for i in range(3)])])
    pending = {asyncio.ensure_future(look(20 + i, 0.1 * (i % 2))) for i in range(4)}
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        seen.append([t.result() for t in done])
    try:
        async with asyncio.timeout(0.2):
            await look(30, 60)
    except TimeoutError:
        seen.append("timeout")
    try:
        await broken(1)
    except StepFailed as e:
        seen.append([e.type, e.message])
    async with asyncio.TaskGroup() as group:
        a = group.create_task(send("hello"))
        b = group.create_task(asyncio.sleep(5, "slept"))
    seen += [a.result(), b.result(), (await flaky(7))["n"], await mail("world")]
    seen += [everstep.now().isoformat(), str(everstep.uuid4()), everstep.random()]
    await everstep.sleep(3600)
    seen.append(await look(40))
    return seen


@everstep.agent
async def leaves(goal: str) -> str:
    """Cancelled by a person while it waits, with clean-up."""
    try:
        await look(1)
        await asyncio.sleep(20)
    finally:
        await look(2)
    return "never"


@everstep.agent
def plainly(goal: str) -> list[object]:
    """A sync agent."""
    first = look.sync(1)
    everstep.sleep(2)
    return [first, look.sync(first), everstep.random() < 1, everstep.now().year]


@everstep.agent
async def ledger(goal: str, number: int = 0, seen: list[int] | None = None) -> list[object]:
    """Two segments, with snapshots in each; steps, a gather, a timer, a value and clean-up in all of them."""
    state = everstep.restored(dict[str, list[int]])
    if state is None:
        state = {"seen": [*(seen or []), await look(number)]}
    while len(state["seen"]) < 4 * (number + 1):
        state["seen"] += await asyncio.gather(look(len(state["seen"])), send(f"{number}"))
        await asyncio.sleep(1)
        everstep.random()
        everstep.snapshot(state)
    if number == 1:
        return [goal, state["seen"], await look(91)]
    try:
        everstep.continue_as_new(number=number + 1, seen=state["seen"])
    finally:
        await look(90)


@everstep.agent
async def renamed(goal: str, n: int) -> list[object]:
    """`everything` after a careless change: its first steps are called in another order."""
    return [goal, await look(99), n]


# The change of an agent, in two versions: journals of both are kept, and both replay with `patched_new`.


async def _changed(way: bool) -> list[int]:
    return [await look(5), await look(6)] if way else [await look(7)]


@everstep.agent
async def patched_old(goal: str) -> list[object]:
    """Before the change."""
    return [await look(1), await _changed(False), await look(2)]


@everstep.agent
async def patched_new(goal: str) -> list[object]:
    """After it."""
    return [await look(1), await _changed(everstep.patched("more")), await look(2)]


@everstep.agent
async def patched_last(goal: str) -> list[object]:
    """With the old way gone."""
    everstep.deprecate_patch("more")
    return [await look(1), await _changed(True), await look(2)]


@everstep.step(effect="read", retry=Retry(max_tries=3, backoff_s=0.5, jitter=0), heartbeat_timeout=30)
async def far(n: int) -> int:
    """Fails half way once, and goes on from what its heartbeat told."""
    done = everstep.heartbeat_details(int) or 0
    for i in range(done, n):
        everstep.heartbeat(i + 1)
        await asyncio.sleep(20)
        if i == 1 and done == 0:
            raise ConnectionError("gone")
    return n - done


@everstep.step(effect="read", reserve=Reserve(tokens=60))
async def think(n: int) -> int:
    everstep.report_usage(input_tokens=40, output_tokens=10)
    return n


@everstep.agent
async def busy(goal: str) -> list[object]:
    """Heartbeats, maps and races."""
    seen: list[object] = [goal, await far(4)]
    seen.append(await look.map([3, 1, 2], concurrency=2))
    which, value = await everstep.first(look(1, 5.0), look(2, 0.5))
    return [*seen, which, value, await look(9)]


@everstep.agent
async def capped(goal: str) -> list[int]:
    """Waits for a larger budget."""
    return [await think(n) for n in range(4)]


@everstep.agent
async def epochs(goal: str, part: int = 0) -> list[object]:
    """Snapshots, and a second segment with its own."""
    begun = everstep.restored(list[int]) or []
    for n in range(len(begun), 3):
        begun = [*begun, await look(10 * part + n)]
        everstep.snapshot(begun)
    if part == 0:
        everstep.continue_as_new(part=1)
    return [goal, part, *begun, everstep.patched("late")]
