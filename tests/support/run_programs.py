"""Random agent programs for the engine's property tests: everything plain asyncio offers, from one seed.

A program is a tree of operations drawn from its seed alone; how long steps take is drawn from another source at each attempt,
so that a replay meets other races than the first run did. Effects go into a `World` that outlives the attempts and counts them.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import everstep
from everstep import NOT_DONE, Done, Probed, Retry, StepFailed
from everstep.run.steps import AsyncStep


@dataclass
class World:
    """The outside: what was done, by idempotency key, and how often."""

    latency: random.Random = field(default_factory=random.Random)
    effects: Counter[str] = field(default_factory=Counter)
    at_most_once: Counter[str] = field(default_factory=Counter)
    done: dict[str, int] = field(default_factory=dict)

    async def act(self, value: int) -> int:
        key = everstep.idempotency_key()
        await asyncio.sleep(self.latency.choice([0, 0.001, 0.01, 0.05, 0.3]) * self.latency.random())
        self.effects[key] += 1
        self.done[key] = value
        await asyncio.sleep(self.latency.choice([0, 0.001, 0.02]) * self.latency.random())
        return value


world = World()


@everstep.step(effect="read")
async def look(n: int) -> int:
    return await world.act(n * 2)


@everstep.step(effect="idempotent", retry=Retry(max_tries=3, backoff_s=0.01))
async def put(n: int) -> dict[str, int]:
    value = await world.act(n)
    if world.latency.random() < 0.15:
        raise ConnectionError("try again")
    return {"n": value}


@everstep.step(effect="read")
async def fail(n: int) -> int:
    await world.act(n)
    raise LookupError(f"nothing at {n}")


async def was_done(n: int) -> Probed[int]:
    key = everstep.idempotency_key()
    return Done(world.done[key]) if key in world.done else NOT_DONE


@everstep.step(effect="at_most_once", probe=was_done)
async def pay(n: int) -> int:
    world.at_most_once[everstep.idempotency_key()] += 1
    return await world.act(n + 1000)


@everstep.step(effect="at_most_once", timeout=0.02, probe=was_done)
async def pay_fast(n: int) -> int:
    world.at_most_once[everstep.idempotency_key()] += 1
    return await world.act(n + 2000)


Op = Callable[[], Coroutine[Any, Any, Any]]  # what an operation gives is only compared


class Program:
    """One tree; `main` runs it and returns everything it saw."""

    def __init__(self, seed: int, size: int = 14) -> None:
        self.rng = random.Random(seed)
        self.left = size
        self.log: list[Any] = []  # any result
        self.ops = [self.op(0) for _ in range(self.rng.randint(2, 5))]

    async def main(self) -> list[Any]:  # as log
        for op in self.ops:
            self.log.append(await op())
        return self.log

    def op(self, depth: int) -> Op:
        self.left -= 1
        leaf: list[Callable[[int], Op]] = [self.call, self.call, self.call, self.sleep, self.value]
        if depth >= 3 or self.left <= 0:
            return self.rng.choice(leaf)(depth)
        inner: list[Callable[[int], Op]] = [
            self.gather, self.task_group, self.as_completed, self.as_completed_coroutines, self.wait_first, self.timeout,
            self.wait_for, self.cancelled, self.queue, self.lock, self.event, self.shield, self.sequence, self.set_of_tasks,
        ]  # fmt: skip
        return self.rng.choice(leaf + inner + inner)(depth)

    def many(self, depth: int) -> list[Op]:
        return [self.op(depth + 1) for _ in range(self.rng.randint(2, 4))]

    def seconds(self) -> float:
        return self.rng.choice([0.0005, 0.005, 0.02, 0.1, 1.0])

    # --- leaves -------------------------------------------------------------------------------------------------

    def call(self, _depth: int) -> Op:
        steps: list[AsyncStep[[int], Any]] = [look, look, put, fail, pay, pay_fast]  # any result
        step = self.rng.choice(steps)
        n = self.rng.randrange(100)

        async def run() -> Any:  # any step's result
            try:
                return await step(n)
            except StepFailed as e:
                return [e.type, e.message]

        return run

    def sleep(self, _depth: int) -> Op:
        seconds = self.rng.choice([0, 0.001, 0.05, 2.0])

        async def run() -> Any:
            await asyncio.sleep(seconds)
            return "slept"

        return run

    def value(self, _depth: int) -> Op:
        which = self.rng.randrange(3)

        async def run() -> Any:
            if which == 0:
                return await look(int(everstep.random() * 1e9))
            return str(everstep.uuid4()) if which == 1 else everstep.now().isoformat()

        return run

    # --- combinations -------------------------------------------------------------------------------------------

    def sequence(self, depth: int) -> Op:
        ops = self.many(depth)

        async def run() -> Any:
            return [await op() for op in ops]

        return run

    def gather(self, depth: int) -> Op:
        ops = self.many(depth)

        async def run() -> Any:
            return await asyncio.gather(*(op() for op in ops))

        return run

    def task_group(self, depth: int) -> Op:
        ops = self.many(depth)
        breaks = self.rng.random() < 0.4

        async def boom() -> None:
            await look(7)
            raise KeyError("boom")

        async def run() -> Any:
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(op()) for op in ops]
                    if breaks:
                        group.create_task(boom())
            except BaseExceptionGroup as e:
                return ["broken", len(e.exceptions)]
            return [t.result() for t in tasks]

        return run

    def as_completed(self, depth: int) -> Op:
        ops = self.many(depth)

        async def run() -> Any:
            return [await c for c in asyncio.as_completed([asyncio.ensure_future(op()) for op in ops])]

        return run

    def as_completed_coroutines(self, depth: int) -> Op:
        ops = self.many(depth)

        async def run() -> Any:
            return [await c for c in asyncio.as_completed([op() for op in ops])]

        return run

    def wait_first(self, depth: int) -> Op:
        ops = self.many(depth)

        async def run() -> Any:
            pending = {asyncio.ensure_future(op()) for op in ops}
            seen: list[Any] = []  # any result
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    seen.append([task.result(), await look(len(seen))])
            return seen

        return run

    def set_of_tasks(self, depth: int) -> Op:
        ops = self.many(depth)
        seconds = self.seconds()

        async def run() -> Any:
            tasks = {asyncio.ensure_future(op()) for op in ops}
            done, pending = await asyncio.wait(tasks, timeout=seconds)
            for task in pending:
                task.cancel()
            rest = await asyncio.gather(*pending, return_exceptions=True)
            return [[t.result() for t in done], [_shown(r) for r in rest]]

        return run

    def timeout(self, depth: int) -> Op:
        op, seconds = self.op(depth + 1), self.seconds()

        async def run() -> Any:
            try:
                async with asyncio.timeout(seconds):
                    return await op()
            except TimeoutError:
                return "timeout"

        return run

    def wait_for(self, depth: int) -> Op:
        op, seconds = self.op(depth + 1), self.seconds()

        async def run() -> Any:
            try:
                return await asyncio.wait_for(op(), seconds)
            except TimeoutError:
                return "late"

        return run

    def cancelled(self, depth: int) -> Op:
        op, other, seconds = self.op(depth + 1), self.op(depth + 1), self.seconds()

        async def tidy() -> Any:
            try:
                return await op()
            except asyncio.CancelledError:
                self.log.append(await look(99))
                raise

        async def run() -> Any:
            task = asyncio.ensure_future(tidy())
            if seconds < 0.01:
                await asyncio.sleep(0)
            else:
                await asyncio.sleep(seconds)
            after = await other()
            task.cancel()
            return [_shown((await asyncio.gather(task, return_exceptions=True))[0]), after]

        return run

    def queue(self, depth: int) -> Op:
        ops = self.many(depth)
        workers = self.rng.randint(1, 2)

        async def run() -> Any:
            jobs: asyncio.Queue[Op | None] = asyncio.Queue(maxsize=1)
            seen: list[Any] = []  # any result

            async def work() -> None:
                while (job := await jobs.get()) is not None:
                    seen.append(await job())

            tasks = [asyncio.create_task(work()) for _ in range(workers)]
            for op in [*ops, *[None] * workers]:
                await jobs.put(op)
            await asyncio.gather(*tasks)
            return seen

        return run

    def lock(self, depth: int) -> Op:
        ops, width = self.many(depth), self.rng.randint(1, 2)

        async def run() -> Any:
            lock: asyncio.Semaphore = asyncio.Semaphore(width)
            seen: list[Any] = []  # any result

            async def one(op: Op) -> None:
                async with lock:
                    seen.append(await op())

            await asyncio.gather(*(one(op) for op in ops))
            return seen

        return run

    def event(self, depth: int) -> Op:
        first, second = self.op(depth + 1), self.op(depth + 1)

        async def run() -> Any:
            ready = asyncio.Event()

            async def later() -> Any:
                await ready.wait()
                return await second()

            task = asyncio.create_task(later())
            got = await first()
            ready.set()
            return [got, await task]

        return run

    def shield(self, depth: int) -> Op:
        op, seconds = self.op(depth + 1), self.seconds()

        async def run() -> Any:
            task = asyncio.ensure_future(op())
            try:
                async with asyncio.timeout(seconds):
                    await asyncio.shield(task)
            except TimeoutError:
                return ["shielded", await task]
            return task.result()

        return run


def _shown(result: object) -> object:
    return type(result).__name__ if isinstance(result, BaseException) else result


@everstep.agent
async def program(goal: str, seed: int) -> list[Any]:
    tree = Program(seed)
    try:
        return await tree.main()
    except asyncio.CancelledError:
        # CPython before 3.13: a TaskGroup that breaks while it is left keeps its parent's cancel count, so that a time-out
        # around it lets CancelledError through. The same without Everstep; it must only come out the same on replay.
        return [*tree.log, "cancelled"]
