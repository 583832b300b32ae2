"""Calls that are refused, with place and cure: outside a run, in the wrong colour, inside a body, reaching outside."""

import asyncio
import importlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

import everstep
from everstep import BadCall, BadStep, NotInRun, OutsideStep, Retry
from everstep.run import process
from everstep.run.agents import Agent
from everstep.testing import MemoryRun


@everstep.step(effect="read")
async def a_step(n: int = 1) -> int:
    return n


@everstep.step(effect="read")
def s_step(n: int = 1) -> int:
    return n


@everstep.agent
async def nothing(goal: str) -> None: ...


def async_agent(body: Callable[[], Awaitable[Any]]) -> Agent[..., Any]:
    @everstep.agent
    async def run(goal: str) -> Any:
        return await body()

    return run


def sync_agent(body: Callable[[], Any]) -> Agent[..., Any]:
    @everstep.agent
    def run(goal: str) -> Any:
        return body()

    return run


def fails(agent: Agent[..., Any]) -> str:
    ended: Any = MemoryRun[Any](agent, "go").attempt()
    assert ended.kind == "failed", ended
    return f"{type(ended.error).__name__}: {ended.message}"


# --- declarations ------------------------------------------------------------------------------------------------------


def test_a_bare_step_explains_the_three_effect_classes_at_import() -> None:
    with pytest.raises(BadStep) as e:

        @everstep.step  # type: ignore[arg-type]  # wrong on purpose
        async def undeclared() -> None: ...

    for word in ("undeclared", 'effect="read"', 'effect="idempotent"', 'effect="at_most_once"'):
        assert word in str(e.value)
    with pytest.raises(BadStep, match="Name one of the three"):
        everstep.step()
    with pytest.raises(BadStep, match="'write' is none of the three"):
        everstep.step(effect="write")  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: everstep.step(effect="read", probe=lambda: everstep.UNKNOWN), 'are for effect="at_most_once"'),
        (lambda: everstep.step(effect="idempotent", on_uncertain="fail"), 'are for effect="at_most_once"'),
        (lambda: everstep.step(effect="read", timeout=0), "timeout must be more than 0"),
        (lambda: everstep.step(effect="at_most_once", on_uncertain=cast(Any, "guess")), 'must be "ask" or "fail"'),
        (lambda: everstep.step(effect="read")(lambda: (yield)), "cannot be a step"),
        (lambda: everstep.step(effect="read")(print), "cannot be a step"),
        (lambda: everstep.agent(a_step), "is a step"),
        (lambda: everstep.agent(lambda *rest: None), "has no name to give an input by"),
        (lambda: Retry(max_tries=0), "at least 1"),
        (lambda: Retry(jitter=2), "between 0 and 1"),
        (lambda: Retry(factor=0.5), "at least 1"),
    ],
)
def test_wrong_declarations_are_refused_at_import(declare: Callable[[], object], message: str) -> None:
    with pytest.raises(BadStep, match=message):
        declare()


def test_outside_a_run_a_step_is_an_error_not_silently_undurable() -> None:
    for call in (lambda: a_step(1), lambda: s_step(1), lambda: a_step.sync(1), lambda: s_step.aio(1)):
        with pytest.raises(NotInRun, match=r"\.fn\("):
            call()
    for what in (everstep.now, everstep.uuid4, everstep.random, lambda: everstep.sleep(1)):
        with pytest.raises(NotInRun):
            what()
    with pytest.raises(NotInRun, match=r"everstep\.run"):
        nothing(goal="x").close()
    with pytest.raises(BadCall, match="belongs into a step's body"):
        everstep.idempotency_key()
    assert asyncio.run(a_step.fn(3)) == 3
    assert s_step.fn(3) == 3


def test_the_wrong_colour_names_the_right_call() -> None:
    async def sync_plainly() -> int:
        return s_step(1)

    async def async_synced() -> int:
        return a_step.sync(1)

    assert "write await s_step.aio(…)" in fails(async_agent(sync_plainly))
    assert "write await a_step(…)" in fails(async_agent(async_synced))
    assert "write a_step.sync(…)" in fails(sync_agent(lambda: a_step(1)))
    assert "write s_step(…)" in fails(sync_agent(lambda: s_step.aio(1)))


def test_a_step_inside_a_steps_body_is_refused() -> None:
    @everstep.step(effect="read")
    async def outer() -> int:
        return await a_step(1)

    @everstep.step(effect="read")
    async def asks_time() -> str:
        return str(everstep.now())

    assert "inside the body of step outer" in fails(async_agent(outer))
    assert "use the plain function" in fails(async_agent(asks_time))


def test_an_agent_may_call_another_as_a_part_of_itself() -> None:
    @everstep.agent
    async def part(goal: str) -> int:
        return await a_step(4)

    async def whole() -> int:
        return await part("sub") + await a_step(1)

    run: MemoryRun[int] = MemoryRun(async_agent(whole), "go")
    assert run.run() == 5
    assert sorted(run.bodies) == ["0", "1"]


# --- reaching outside --------------------------------------------------------------------------------------------------


async def opens_a_socket() -> None:
    socket.socket().close()


async def resolves() -> None:
    socket.getaddrinfo("localhost", 80)


async def connects() -> None:
    await asyncio.open_connection("127.0.0.1", 9)


async def starts_a_process() -> None:
    subprocess.run([sys.executable, "-V"], check=False)  # noqa: ASYNC221 - what is refused


async def starts_an_async_process() -> None:
    await asyncio.create_subprocess_exec(sys.executable, "-V")


async def starts_a_shell() -> None:
    os.system("true")  # noqa: ASYNC221 - what is refused


async def starts_a_thread() -> None:
    threading.Thread(target=print).start()


async def uses_a_thread() -> None:
    await asyncio.to_thread(print)


async def uses_an_executor() -> None:
    await asyncio.get_running_loop().run_in_executor(None, print)


async def watches_a_file() -> None:
    asyncio.get_running_loop().add_reader(0, print)


async def stops_the_loop() -> None:
    asyncio.get_running_loop().stop()


OUTSIDE = [
    opens_a_socket, resolves, connects, starts_a_process, starts_an_async_process, starts_a_shell, starts_a_thread, uses_a_thread,
    uses_an_executor, watches_a_file, stops_the_loop,
]  # fmt: skip


@pytest.mark.parametrize("body", OUTSIDE, ids=lambda f: f.__name__)
def test_reaching_outside_in_agent_code_is_refused_with_line_and_cure(body: Callable[[], Awaitable[None]]) -> None:
    message = fails(async_agent(body))
    line = body.__code__.co_firstlineno + 1
    assert message.startswith("OutsideStep: "), message
    assert f"{__file__}:{line}" in message
    assert "@everstep.step(effect=" in message


def test_a_client_library_is_not_blamed_but_the_line_that_calls_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "http_client_here.py").write_text(
        "import socket\n\ndef get():\n    socket.socket().close()\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    client = importlib.import_module("http_client_here")

    async def body() -> None:
        client.get()

    message = fails(async_agent(body))
    assert f"{__file__}:{body.__code__.co_firstlineno + 1}: 'client.get()' opens a socket" in message

    async def in_a_task_of_the_library() -> None:
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def call() -> None:
            try:
                client.get()
            except OutsideStep as e:
                done.set_exception(e)

        loop.call_soon(call)
        await done

    assert f"{__file__}:" in fails(async_agent(in_a_task_of_the_library))


def test_the_refusal_inside_a_librarys_own_errors_is_found() -> None:
    inner = OutsideStep("agents.py:3 opens a socket")
    wrapped = ConnectionError("Connection error.")
    wrapped.__cause__ = ExceptionGroup("unhandled errors in a TaskGroup", [ValueError("x"), inner])
    assert process._behind(RuntimeError("gave up"), OutsideStep) is None
    assert process._behind(ExceptionGroup("more", [wrapped]), OutsideStep) is inner
    loop = ValueError("its own context")
    loop.__context__ = KeyError("k")
    loop.__context__.__context__ = loop
    assert process._behind(loop, OutsideStep) is None


@pytest.mark.parametrize("body", [opens_a_socket, starts_a_process, starts_a_thread], ids=lambda f: f.__name__)
def test_reaching_outside_in_a_sync_agent_is_refused(body: Callable[[], Awaitable[None]]) -> None:
    def run() -> None:
        asyncio_free = body()
        asyncio_free.send(None)  # type: ignore[attr-defined]  # a coroutine that never waits

    assert fails(sync_agent(run)).startswith("OutsideStep: ")


def test_the_same_in_a_steps_body_is_allowed() -> None:
    @everstep.step(effect="read")
    async def outside() -> str:
        socket.socket().close()
        await asyncio.to_thread(len, "x")
        command = [sys.executable, "-c", "print(1)"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: ASYNC221 - allowed here

    async def body() -> str:
        return await outside()

    assert MemoryRun[str](async_agent(body), "go").run() == "1\n"


def test_an_agent_may_handle_the_refusal() -> None:
    async def body() -> str:
        try:
            socket.socket()
        except OutsideStep:
            return "understood"
        return "?"

    assert MemoryRun[str](async_agent(body), "go").run() == "understood"


def test_an_import_that_probes_the_system_is_no_offence(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "probing_module.py").write_text("import socket\nsocket.socket().close()\nvalue = 5\n")
    monkeypatch.syspath_prepend(tmp_path)

    async def body() -> int:
        import probing_module  # type: ignore[import-not-found]  # made above

        return int(probing_module.value)

    assert MemoryRun[int](async_agent(body), "go").run() == 5


def test_the_logger_is_silent_during_replay(caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> int:
        everstep.logger.info("before")
        n = await a_step(1)
        everstep.logger.info("between, replaying: %s", everstep.is_replaying())
        n += await a_step(2)
        everstep.logger.info("after")
        return n

    run: MemoryRun[int] = MemoryRun(async_agent(body), "go")
    with caplog.at_level("INFO", "everstep.agent"):
        run.attempt(crash_at="in_body:2")
        assert caplog.messages == ["before", "between, replaying: False"]
        caplog.clear()
        run.run()
        assert caplog.messages == ["after"]


def test_inputs_are_named_checked_and_explained() -> None:
    @everstep.agent
    async def takes(goal: str, backlog: str, limit: int = 5) -> str:
        return f"{goal} {backlog} {limit}"

    assert MemoryRun[str](takes, "go", {"backlog": "b"}).run() == "go b 5"
    for inputs, message in (
        ({}, "needs the input backlog"),
        ({"backlog": "b", "limt": 3}, "no input limt; did you mean limit"),
        ({"backlog": "b", "limit": "many"}, "input limit does not fit"),
        ({"backlog": "b", "goal": "x"}, "takes no input goal"),
    ):
        with pytest.raises(everstep.ConfigError, match=message):
            MemoryRun(takes, "go", inputs)


def test_a_steps_body_may_use_all_of_asyncio() -> None:
    @everstep.step(effect="read")
    async def uses() -> str:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "print(2)", stdout=subprocess.PIPE)
        out, _ = await process.communicate()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(asyncio.sleep(0.01, "slept"))
        async with asyncio.timeout(5):
            await asyncio.sleep(0)
        return out.decode().strip() + task.result()

    async def body() -> str:
        return await uses()

    assert MemoryRun[str](async_agent(body), "go", real_time=True).run() == "2slept"
