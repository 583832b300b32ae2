"""Resources, per_attempt, steps on the spot, methods as steps, and any object wrapped."""

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

import everstep
from everstep import NOT_DONE, Done, Probed, Retry
from everstep.testing import MemoryRun, for_every_crash


class Session:
    """A client of something; it knows in which task it was opened."""

    def __init__(self) -> None:
        self.calls = 0
        self.closed = False

    async def ask(self, text: str) -> str:
        assert not self.closed
        self.calls += 1
        await asyncio.sleep(0.01)
        return text.upper()


def test_a_resource_is_opened_once_per_attempt_and_closed_at_its_end() -> None:
    opened: list[Session] = []

    @asynccontextmanager
    async def make() -> AsyncIterator[Session]:
        await asyncio.sleep(0.5)  # takes its time, outside the journal
        session = Session()
        opened.append(session)
        task = asyncio.current_task()
        yield session
        assert asyncio.current_task() is task, "closed in the task that opened it"
        session.closed = True

    @everstep.agent
    async def agent(goal: str) -> str:
        async with everstep.resource(make) as session:
            first = await everstep.run_step("ask", session.ask, "a", effect="read")
            return first + await everstep.run_step("ask", session.ask, "b", effect="read")

    run = MemoryRun[str](agent)
    assert run.attempt(crash_at="after_effect:2").kind == "crashed"
    assert run.run() == "AB"
    assert len(opened) == 2
    assert opened[1].closed
    assert opened[1].calls == 1, "the recorded one was not called again"
    assert not any(r.kind == "timer" for r in run.records)
    run.replay()
    assert len(opened) == 3
    assert opened[2].calls == 0


def test_a_resource_of_module_level_serves_one_block_after_another() -> None:
    opened = 0

    def make() -> Session:
        nonlocal opened
        opened += 1
        return Session()

    shared = everstep.resource(make)

    @everstep.agent
    async def agent(goal: str) -> str:
        async with shared as first:
            text = await everstep.run_step("ask", first.ask, "a", effect="read")
            with pytest.raises(everstep.BadCall, match="entered twice"):
                await shared.__aenter__()
        async with shared as second:
            return text + await everstep.run_step("ask", second.ask, "b", effect="read")

    run = MemoryRun[str](agent)
    assert run.attempt(crash_at="after_effect:1").kind == "crashed"
    assert run.run() == "AB"
    assert opened == 3


def test_agent_code_stands_still_while_a_resource_opens() -> None:
    order: list[str] = []

    @asynccontextmanager
    async def slow() -> AsyncIterator[int]:
        await asyncio.sleep(5)
        yield 1

    @everstep.step(effect="read")
    async def quick(n: int) -> int:
        return n

    async def opener() -> int:
        async with everstep.resource(slow) as one:
            order.append("open")
            return await quick(one)

    async def other() -> int:
        order.append("other")
        got = await quick(2)
        order.append("other again")
        return got

    @everstep.agent
    async def agent(goal: str) -> list[int]:
        return list(await asyncio.gather(opener(), other()))

    run = MemoryRun[list[int]](agent)
    assert run.run() == [1, 2]
    first = list(order)
    order.clear()
    run.replay()
    assert order == first
    assert first == ["other", "open", "other again"]


def test_what_cannot_be_opened_ends_the_attempt_and_not_the_run() -> None:
    attempts = 0
    unwound = False

    @asynccontextmanager
    async def flaky() -> AsyncIterator[int]:
        nonlocal attempts
        attempts += 1
        if attempts < 2:
            raise ConnectionError("nobody there")
        yield 1

    @everstep.agent
    async def agent(goal: str) -> int:
        nonlocal unwound
        try:
            async with everstep.resource(flaky) as one:
                return one
        except Exception:
            unwound = True
            raise

    run = MemoryRun[int](agent)
    ended = run.attempt()
    assert ended.kind == "stopped"
    assert isinstance(ended.error, everstep.ResourceFailed)
    assert "flaky" in ended.message
    assert "nobody there" in ended.message
    assert not unwound
    assert run.run() == 1


def test_a_resource_that_does_not_open_in_time() -> None:
    @asynccontextmanager
    async def never() -> AsyncIterator[int]:
        await asyncio.Event().wait()
        yield 1

    @everstep.agent
    async def agent(goal: str) -> int:
        async with everstep.resource(never, name="the tracker", timeout=3) as one:
            return one

    ended = MemoryRun[int](agent).attempt()
    assert isinstance(ended.error, everstep.ResourceFailed)
    assert "the tracker" in ended.message


def test_resources_of_a_sync_agent() -> None:
    events: list[str] = []

    @contextmanager
    def make() -> Iterator[str]:
        events.append("open")
        yield "x"
        events.append("close")

    class Closes:
        def close(self) -> None:
            events.append("closed")

    @everstep.agent
    def agent(goal: str) -> str:
        with everstep.resource(make) as x, everstep.resource(Closes):
            return everstep.run_step("upper", str.upper, x, effect="read")

    run = MemoryRun[str](agent, real_time=True)
    assert run.run() == "X"
    assert events == ["open", "closed", "close"]


def test_per_attempt_runs_again_and_what_it_leaks_into_a_step_is_named() -> None:
    n = 0

    def which() -> int:
        nonlocal n
        n += 1
        return n

    async def which_async() -> int:
        await asyncio.sleep(1)
        return which()

    @everstep.step(effect="read")
    async def note(x: int) -> int:
        return x

    @everstep.agent
    async def harmless(goal: str) -> int:
        everstep.per_attempt(which)
        await everstep.per_attempt(which_async)
        return await note(7)

    run = MemoryRun[int](harmless)
    assert run.run() == 7
    run.replay()
    assert n == 4
    assert [r.kind for r in run.records] == ["run_started", "intent", "result", "finished"]

    @everstep.agent
    async def leaky(goal: str) -> int:
        return await note(everstep.per_attempt(which))

    leaking = MemoryRun[int](leaky)
    leaking.run()
    with pytest.raises(everstep.Diverged, match=r"per_attempt gave values of this attempt alone \(which\)"):
        leaking.replay()


def test_per_attempt_that_fails_ends_the_attempt() -> None:
    def fail() -> None:
        raise OSError("no such file")

    @everstep.agent
    async def agent(goal: str) -> None:
        try:
            everstep.per_attempt(fail)
        except Exception:
            pytest.fail("agent code saw what the journal does not know")

    @everstep.agent
    def sync_agent(goal: str) -> None:
        everstep.per_attempt(fail)

    for made in (agent, sync_agent):
        ended = MemoryRun[None](made, real_time=True).attempt()
        assert isinstance(ended.error, everstep.ResourceFailed), ended
        assert "no such file" in ended.message


def test_run_step_takes_any_callable() -> None:
    class Adder:
        def __init__(self, by: int) -> None:
            self.by = by

        async def __call__(self, n: int) -> int:
            return n + self.by

        def twice(self, n: int) -> int:
            return 2 * n

    async def add(a: int, *, b: int) -> int:
        return a + b

    adder = Adder(10)

    @everstep.agent
    async def agent(goal: str) -> list[object]:
        return [
            await everstep.run_step("add", add, 1, b=2, effect="read"),
            await everstep.run_step("call", adder, 1, effect="idempotent", timeout=5, retry=Retry(2)),
            await everstep.run_step("partial", functools.partial(add, b=5), 1, effect="read"),
            await everstep.run_step.aio("twice", adder.twice, 4, effect="read"),
            await everstep.run_step.aio("max", max, [3, 9], effect="read"),
        ]

    run = MemoryRun[list[object]](agent, real_time=True)
    assert run.run() == [3, 11, 6, 8, 9]
    run.replay()
    with pytest.raises(everstep.BadStep, match="does not say"):
        everstep.run_step("add", add, 1)  # type: ignore[call-overload]  # no effect class


class Shop:
    """An object with state that is no plain data."""

    def __init__(self) -> None:
        self.orders: list[str] = []
        self.lock = asyncio.Lock()
        self.currency = "EUR"

    async def find(self, what: str) -> str:
        return what.title()

    async def buy(self, what: str) -> int:
        self.orders.append(what)
        return len(self.orders)

    def label(self) -> str:
        return self.currency.lower()

    async def other(self) -> None:
        return None


def test_any_object_by_its_methods_effects() -> None:
    shop = Shop()
    wrapped = everstep.wrap(shop, effects={"find": "read", "buy": "at_most_once", "label": None})
    assert isinstance(wrapped, Shop)
    assert wrapped.currency == "EUR"

    @everstep.agent
    async def agent(goal: str) -> list[object]:
        with pytest.raises(everstep.BadStep, match=r"Shop\.other has no effect class"):
            await wrapped.other()
        return [await wrapped.find("tea"), await wrapped.buy("tea"), wrapped.label()]

    run = MemoryRun[list[object]](agent)
    assert run.run() == ["Tea", 1, "eur"]
    run.replay()
    assert shop.orders == ["tea"]
    assert [(r.name, r.effect) for r in run.records if r.kind == "intent"] == [
        ("Shop.find", "read"),
        ("Shop.buy", "at_most_once"),
    ]
    with pytest.raises(everstep.BadStep, match="has no sell"):
        everstep.wrap(shop, effects={"sell": "read"})
    with pytest.raises(everstep.BadStep, match="does not know Shop"):
        everstep.wrap(shop)
    with pytest.raises(everstep.BadStep, match="none of the three"):
        everstep.wrap(shop, effects={"find": "write"})  # type: ignore[dict-item]  # no such class

    async def outside() -> None:
        await wrapped.find("tea")

    with pytest.raises(everstep.NotInRun):
        asyncio.run(outside())


def test_a_wrapped_function_is_a_step() -> None:
    async def ask(question: str) -> str:
        return question + "!"

    wrapped = everstep.wrap(ask, effect="read")

    @everstep.agent
    async def agent(goal: str) -> str:
        return await wrapped("why")

    run = MemoryRun[str](agent)
    assert run.run() == "why!"
    assert [r.name for r in run.records if r.kind == "result"] == ["ask"]
    with pytest.raises(everstep.BadStep, match="does not say"):
        everstep.wrap(ask)
    with pytest.raises(everstep.BadStep, match="a step already"):
        everstep.wrap(wrapped, effect="read")


class Desk:
    """Methods as steps: the desk is made anew in each attempt and is no part of the journal."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.lock = asyncio.Lock()

    async def was_sent(self, to: str) -> Probed[int]:
        return Done(self.sent.index(to) + 1) if to in self.sent else NOT_DONE

    @everstep.step(effect="at_most_once", probe=was_sent)
    async def send(self, to: str) -> int:
        self.sent.append(to)
        return len(self.sent)

    @everstep.step(effect="read")
    def count(self, words: list[str]) -> int:
        return len(words)


def test_methods_are_steps() -> None:
    """A crash anywhere: each mail once, by the probe, which sees the object too."""
    desks: list[Desk] = []

    def make() -> MemoryRun[int]:
        desk = Desk()
        desks.append(desk)

        @everstep.agent
        async def agent(goal: str) -> int:
            return await desk.send("ann") + await desk.send("bob") + await desk.count.aio(["a", "b"])

        return MemoryRun[int](agent, real_time=True)

    for at, _run, ended in for_every_crash(make):
        assert ended.value == 5, at
        assert desks[-1].sent == ["ann", "bob"], at
    assert asyncio.run(Desk.send.fn(Desk(), "ann")) == 1
