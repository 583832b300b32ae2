"""Runs the trees of everstep's random programs: every operation is plain asyncio, as an agent's author would write it.

What an operation gives is compared between attempts, so it is data; drawn values are kept apart (`drawn`), because a draw that
was lost with its process is rightly drawn anew. Each step's result is checked against its arguments.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import everstep
from everstep import StepFailed
from everstep.errors import BadCall
from tests.property import outside
from tests.property.outside import span_ms
from tests.property.trees import Node

Seen = Any  # JSON of any shape


class Oops(Exception):
    """What `boom` raises."""


def seconds(n: int) -> float:
    return span_ms(n) / 1000


EXPECTED: dict[str, Callable[[int], Seen]] = {
    "look": lambda n: n * 2,
    "put": lambda n: {"n": n},
    "pay": lambda n: n + 1000,
    "slow": lambda n: n + 2000,
    "blind": lambda n: n + 3000,
    "aio": lambda n: n + 4000,
    "fail": lambda n: ["LookupError", f"nothing at {n}"],
}
FAILURES = ("ConnectionError", "StepUncertain")


def checked(kind: str, n: int, got: Seen) -> Seen:
    """A result that belongs to another call is the worst that could happen."""
    failed = isinstance(got, list) and got[0] in FAILURES and kind != "fail"
    if got != EXPECTED[kind](n) and not failed:
        outside.world.wrong.append(f"{kind}({n}) gave {got!r}")
    return got


class Interpreter:
    """Of one async agent."""

    def __init__(self) -> None:
        self.drawn: list[str] = []
        self.log: list[Seen] = []

    async def do(self, node: Node) -> Seen:
        kind, n, children = node
        outside.world.ran.add(kind)
        if kind in EXPECTED:
            return await self.call(kind, n % 100_000)
        act: Callable[[int, list[Node]], Awaitable[Seen]] = getattr(self, kind)
        return await act(n, children)

    async def call(self, kind: str, n: int) -> Seen:
        try:
            got: Seen = await (outside.plain.aio(n) if kind == "aio" else getattr(outside, kind)(n))
        except StepFailed as e:
            got = [e.type, e.message if kind == "fail" else ""]
        return checked(kind, n, got)

    # --- leaves -------------------------------------------------------------------------------------------------

    async def sleep(self, n: int, _children: list[Node]) -> Seen:
        await asyncio.sleep(seconds(n))
        return "slept"

    async def turn(self, _n: int, _children: list[Node]) -> Seen:
        await asyncio.sleep(0)
        return "turned"

    async def value(self, n: int, _children: list[Node]) -> Seen:
        which = n % 3
        if which == 0:
            drawn = int(everstep.random() * 1e9)
            await self.call("look", drawn)
            self.drawn.append(str(drawn))
        else:
            self.drawn.append(str(everstep.uuid4()) if which == 1 else everstep.now().isoformat())
        return "drew"

    async def boom(self, n: int, _children: list[Node]) -> Seen:
        if n % 2:
            await self.call("look", n % 1000)
        raise Oops(str(n))

    # --- combinations -------------------------------------------------------------------------------------------

    async def sequence(self, _n: int, children: list[Node]) -> Seen:
        return [await self.do(child) for child in children]

    async def attempt(self, _n: int, children: list[Node]) -> Seen:
        try:
            return await self.do(children[0])
        except (Oops, ExceptionGroup) as e:
            return ["caught", type(e).__name__, await self.call("look", 5)]
        finally:
            self.log.append(await self.call("look", 6))

    async def gather(self, _n: int, children: list[Node]) -> Seen:
        return await asyncio.gather(*(self.do(child) for child in children))

    async def gather_exceptions(self, _n: int, children: list[Node]) -> Seen:
        return [_shown(r) for r in await asyncio.gather(*map(self.do, children), return_exceptions=True)]

    async def group(self, _n: int, children: list[Node]) -> Seen:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.do(child)) for child in children]
        except BaseExceptionGroup as e:
            return ["broken", len(e.exceptions)]
        return [t.result() for t in tasks]

    async def group_breaks(self, n: int, children: list[Node]) -> Seen:
        return await self.group(n, [*children, ["boom", n | 1, []]])

    async def completed(self, _n: int, children: list[Node]) -> Seen:
        tasks = [asyncio.ensure_future(self.do(child)) for child in children]
        return [await c for c in asyncio.as_completed(tasks)]

    async def completed_coroutines(self, _n: int, children: list[Node]) -> Seen:
        return [await c for c in asyncio.as_completed([self.do(child) for child in children])]

    async def wait_first(self, _n: int, children: list[Node]) -> Seen:
        pending = {asyncio.ensure_future(self.do(child)) for child in children}
        seen: list[Seen] = []
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                seen.append([task.result(), await self.call("look", len(seen))])
        return seen

    async def wait_some(self, n: int, children: list[Node]) -> Seen:
        tasks = {asyncio.ensure_future(self.do(child)) for child in children}
        done, pending = await asyncio.wait(tasks, timeout=seconds(n))
        for task in pending:
            task.cancel()
        rest = await asyncio.gather(*pending, return_exceptions=True)
        return [[_shown(t.exception() or t.result()) for t in done], [_shown(r) for r in rest]]

    async def timeout(self, n: int, children: list[Node]) -> Seen:
        try:
            async with asyncio.timeout(seconds(n)):
                return await self.do(children[0])
        except TimeoutError:
            return "timeout"

    async def wait_for(self, n: int, children: list[Node]) -> Seen:
        try:
            return await asyncio.wait_for(self.do(children[0]), seconds(n))
        except TimeoutError:
            return "late"

    async def cancel(self, n: int, children: list[Node]) -> Seen:
        async def tidy() -> Seen:
            try:
                return await self.do(children[0])
            except asyncio.CancelledError:
                self.log.append(await self.call("look", 99))
                raise

        task = asyncio.ensure_future(tidy())
        await asyncio.sleep(seconds(n) if n % 3 else 0)
        after = await self.do(children[1]) if n % 2 else None
        task.cancel()
        return [_shown((await asyncio.gather(task, return_exceptions=True))[0]), after]

    async def nested(self, _n: int, children: list[Node]) -> Seen:
        async def outer(rest: list[Node]) -> Seen:
            inner = asyncio.create_task(outer(rest[1:])) if rest[1:] else None
            got = await self.do(rest[0])
            return [got, await inner if inner else None]

        return await asyncio.create_task(outer(children))

    async def shield(self, n: int, children: list[Node]) -> Seen:
        task = asyncio.ensure_future(self.do(children[0]))
        try:
            async with asyncio.timeout(seconds(n)):
                await asyncio.shield(task)
        except TimeoutError:
            return ["shielded", await task]
        return task.result()

    async def generator(self, n: int, children: list[Node]) -> Seen:
        async def numbers() -> AsyncIterator[Seen]:
            try:
                for child in children:
                    yield await self.do(child)
            finally:
                self.log.append(await self.call("look", 8))

        seen: list[Seen] = []
        async with contextlib.aclosing(numbers()) as stream:  # type: ignore[type-var]  # an iterator is all that is said
            async for got in stream:
                seen.append(got)
                if n % 2 and len(seen) == len(children) - 1:
                    break
        return seen

    # --- locks and the like -------------------------------------------------------------------------------------

    async def queue(self, n: int, children: list[Node]) -> Seen:
        jobs: asyncio.Queue[Node | None] = asyncio.Queue(maxsize=1)
        seen: list[Seen] = []

        async def work() -> None:
            while (job := await jobs.get()) is not None:
                try:
                    seen.append(await self.do(job))
                except (
                    Oops,
                    ExceptionGroup,
                ) as e:  # without workers the queue would fill up, and the agent stand for ever
                    seen.append(type(e).__name__)

        workers = [asyncio.create_task(work()) for _ in range(1 + n % 2)]
        for job in [*children, *[None] * len(workers)]:
            await jobs.put(job)
        await asyncio.gather(*workers)
        return seen

    async def lock(self, _n: int, children: list[Node]) -> Seen:
        return await self._held(asyncio.Lock(), children)

    async def semaphore(self, n: int, children: list[Node]) -> Seen:
        return await self._held(asyncio.Semaphore(2 + n % 2), children)

    async def _held(self, lock: asyncio.Lock | asyncio.Semaphore, children: list[Node]) -> Seen:
        seen: list[Seen] = []

        async def one(child: Node) -> None:
            async with lock:
                seen.append(await self.do(child))

        await asyncio.gather(*map(one, children))
        return seen

    async def event(self, _n: int, children: list[Node]) -> Seen:
        ready = asyncio.Event()

        async def later() -> Seen:
            await ready.wait()
            return await self.do(children[1])

        task = asyncio.create_task(later())
        got = await self.do(children[0])
        ready.set()
        return [got, await task]

    async def condition(self, _n: int, children: list[Node]) -> Seen:
        changed = asyncio.Condition()
        stock: list[Seen] = []
        seen: list[Seen] = []

        async def make(child: Node) -> None:
            got = await self.do(child)
            async with changed:
                stock.append(got)
                changed.notify_all()

        async def take(who: int) -> None:
            async with changed:
                await changed.wait_for(lambda: bool(stock))
                seen.append([who, stock.pop(0)])

        await asyncio.gather(*(take(i) for i in range(len(children))), *map(make, children))
        return seen


def _shown(result: object) -> Seen:
    return type(result).__name__ if isinstance(result, BaseException) else result


@everstep.agent
async def agent(goal: str, tree: list[Any]) -> dict[str, Any]:
    it = Interpreter()
    seen: list[Seen] = []
    try:
        for child in tree[2]:
            seen.append(await it.do(child))
    except asyncio.CancelledError:
        # CPython before 3.13: a TaskGroup that breaks while it is left keeps its parent's cancel count, so that a time-out
        # around it leaves with CancelledError instead of TimeoutError. As asyncio has it, so has Everstep.
        seen.append("cancelled by its own task group")
    return {"seen": [seen, it.log], "drawn": it.drawn}


# --- agents that go in rounds ------------------------------------------------------------------------------------


@everstep.agent
async def rounds(goal: str, tree: list[Any], carried: dict[str, Any] | None = None) -> dict[str, Any]:
    """After each operation a snapshot, or once the agent begins anew; neither while something is still pending."""
    state = everstep.restored(dict) or carried or {"at": 0, "seen": [], "log": [], "drawn": []}
    if carried:
        outside.world.ran.add("continue")
    it = Interpreter()
    it.log, it.drawn = state["log"], state["drawn"]
    _, n, children = tree
    for i in range(state["at"], len(children)):
        try:
            got = await it.do(children[i])
        except (Oops, ExceptionGroup) as e:
            got = type(e).__name__
        except asyncio.CancelledError:  # as in `agent`
            got = "cancelled by its own task group"
        state["seen"].append(got)
        state["at"] = i + 1
        _round_ends(tree, state, anew=n % 4 > 0 and i == n % (len(children) - 1 or 1))
    return {"seen": [state["seen"], it.log], "drawn": it.drawn}


def _round_ends(tree: list[Any], state: dict[str, Any], *, anew: bool) -> None:
    try:
        if anew:
            everstep.continue_as_new(tree=tree, carried=state)
        everstep.snapshot(state)
        outside.world.ran.add("snapshot")
    except BadCall:  # a task that was left behind is still at work
        state["log"].append("pending")


# --- sync agents -------------------------------------------------------------------------------------------------


@everstep.agent
def sync_agent(goal: str, tree: list[Any]) -> dict[str, Any]:
    drawn: list[str] = []
    outside.world.ran.add("sync_agent")
    return {"seen": [_sync(child, drawn) for child in tree[2]], "drawn": drawn}


def _sync(node: Node, drawn: list[str]) -> Seen:
    kind, n, children = node
    outside.world.ran.add(kind)
    if kind in EXPECTED:
        return _sync_call(kind, n % 100_000)
    if kind == "sleep":
        everstep.sleep(seconds(n))
    elif kind == "value":
        drawn.append(str(everstep.uuid4()) if n % 2 else str(everstep.now()))
    elif kind == "attempt":
        try:
            seen = [_sync(child, drawn) for child in children]
            raise Oops(str(len(seen)))
        except Oops:
            return ["caught", _sync_call("look", 5)]
    return [_sync(child, drawn) for child in children]


def _sync_call(kind: str, n: int) -> Seen:
    try:
        got: Seen = outside.plain(n) if kind == "aio" else getattr(outside, kind).sync(n)
    except StepFailed as e:
        got = [e.type, e.message if kind == "fail" else ""]
    return checked(kind, n, got)


__all__ = ["agent", "rounds", "sync_agent"]
