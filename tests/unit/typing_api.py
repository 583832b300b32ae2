"""Only type-checked, never run: what a user's own mypy --strict says of the public API."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import assert_type

import everstep
from everstep import NOT_DONE, Done, Probed, Retry


@everstep.step(effect="read", timeout=60, retry=Retry(max_tries=5))
async def classify(text: str, *, limit: int = 3) -> dict[str, int]:
    return {text: limit}


@everstep.step(effect="idempotent")
def count(words: list[str]) -> int:
    everstep.report_usage(input_tokens=1, output_tokens=2, cost_micro_usd=3)
    everstep.heartbeat(words)
    assert_type(everstep.heartbeat_details(int), int | None)
    return len(words) + len(everstep.idempotency_key())


@everstep.step(
    effect="read",
    timeout=5,
    total_timeout=60,
    heartbeat_timeout=3,
    retry=Retry(
        max_tries=None,
        retry_if=lambda e: "busy" in str(e),
        max_tries_by={TimeoutError: 2, OSError: 3},
        on_exhausted="ask",
    ),
)
async def bounded(path: str) -> None:
    raise everstep.RetryAfter(3)


async def was_sent(to: str) -> Probed[bool]:
    return Done(True) if to else NOT_DONE


@everstep.step(effect="at_most_once", probe=was_sent, on_uncertain="ask")
async def send(to: str) -> bool:
    return bool(to)


@everstep.agent
async def triage(goal: str, backlog: str) -> str:
    verdict = await classify(goal, limit=2)
    assert_type(verdict, dict[str, int])
    both = await asyncio.gather(classify("a"), send("b"))
    assert_type(both, tuple[dict[str, int], bool])
    assert_type(await classify.map(["a", "b"], concurrency=4, common={"limit": 2}), list[dict[str, int]])
    assert_type(await send.map(["a"], return_exceptions=True), list[bool | everstep.StepFailed])
    assert_type(await count.map_aio([["a"], ["b"]]), list[int])
    which, value = await everstep.first(classify("a"), send("b"), everstep.sleep(3))
    assert_type(which, int)
    assert_type(value, dict[str, int] | bool | None)
    assert_type(await everstep.first(send("a"), ignore_failures=True), everstep.Winner[bool])
    task = asyncio.create_task(send("c"))
    assert_type(await task, bool)
    assert_type(await count.aio(["a"]), int)
    await everstep.sleep(3)
    await everstep.sleep_until(everstep.now())
    assert_type(everstep.random(), float)
    everstep.logger.info("%s %s", everstep.uuid4(), everstep.is_replaying())
    return backlog


class Desk:
    @everstep.step(effect="read")
    async def look(self, n: int) -> str:
        return str(n)

    @everstep.step(effect="read")
    def count(self, words: list[str]) -> int:
        return len(words)


@asynccontextmanager
async def open_session() -> AsyncIterator[Desk]:
    yield Desk()


async def double(n: int) -> int:
    return 2 * n


@everstep.agent
async def ways_in(goal: str) -> None:
    desk = everstep.wrap(Desk(), effects={"look": "read"})
    assert_type(desk, Desk)
    assert_type(await desk.look(3), str)
    assert_type(await desk.count.aio(["a"]), int)
    async with everstep.resource(open_session) as session:
        assert_type(session, Desk)
    assert_type(await everstep.run_step("double", double, 2, effect="read"), int)
    assert_type(everstep.run_step("len", len, "ab", effect="read"), int)
    assert_type(await everstep.run_step.aio("len", len, "ab", effect="read"), int)
    assert_type(await everstep.per_attempt(double, 2), int)
    assert_type(everstep.per_attempt(len, "ab"), int)


@everstep.agent
def plain(goal: str) -> int:
    assert_type(send.sync("x"), bool)
    everstep.sleep(1)
    assert_type(count.map([["a"]], concurrency=2), list[int])
    assert_type(send.map_sync(["a"], return_exceptions=True), list[bool | everstep.StepFailed])
    return count(["a"])


assert_type(everstep.run(triage, goal="x", backlog="b.json", run_id="monday"), str)
assert_type(everstep.run(plain, goal="x"), int)


async def in_a_loop() -> None:
    assert_type(await everstep.run_async(triage, goal="x", backlog="b.json", run_id="monday"), str)
    assert_type(await everstep.run_async(plain, goal="x"), int)


# What must be rejected; an unused ignore is an error in strict mode, so each of these is a test.
everstep.step(effect="write")  # type: ignore[arg-type]  # no such effect class
send(3)  # type: ignore[arg-type]  # wants text
count(words=["a"], more=1)  # type: ignore[call-arg]  # no such argument
send.map([3])  # type: ignore[list-item]  # items are text
count.map_sync([["a"]])  # type: ignore[attr-defined]  # sync steps: map and map_aio
Retry(on_exhausted="cry")  # type: ignore[arg-type]  # fail or ask
send.aio("x")  # type: ignore[attr-defined]  # async steps are awaited as they are
count.sync(["a"])  # type: ignore[attr-defined]  # sync steps are called as they are


@everstep.step  # type: ignore[arg-type]  # names no effect class
async def bare() -> None: ...
