"""An MCP session over stdio to a real server: each request is a step, the tools' hints say which class."""

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import ClientSession, StdioServerParameters, stdio_client
from mcp.types import CallToolResult, ListToolsResult, TextContent

import everstep
from everstep.testing import MemoryRun
from tests.support.mcp_tools import effects

Opener = Callable[[], AbstractAsyncContextManager[ClientSession]]


@pytest.fixture
def done(tmp_path: Path) -> Path:
    return tmp_path / "effects"


@pytest.fixture
def open_tools(done: Path) -> Opener:
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "tests.support.mcp_tools", str(done)],
        env={"PYTHONPATH": ":".join(sys.path)},
    )

    @asynccontextmanager
    async def open_it() -> AsyncIterator[ClientSession]:
        async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
            await session.initialize()
            yield session

    return open_it


def run_of(agent: object) -> MemoryRun[Any]:
    return MemoryRun(agent, "go", real_time=True)  # type: ignore[arg-type]  # an agent


def text_of(result: CallToolResult) -> str:
    first = result.content[0]
    assert isinstance(first, TextContent)
    return first.text


def test_each_call_is_a_step_of_the_class_the_tool_hints_at(open_tools: Opener, done: Path) -> None:
    @everstep.agent
    async def agent(goal: str) -> list[Any]:
        async with everstep.wrap(everstep.resource(open_tools)) as tools:
            assert isinstance(tools, ClientSession)
            looked = await tools.call_tool("look", {"what": "sky"})
            assert isinstance(looked, CallToolResult)
            filed = await tools.call_tool("file_ticket", {"title": "fire"})
            await tools.call_tool("pay", {"amount": 3})
            await tools.call_tool("shout", {"text": "hey"})
            wrong = await tools.call_tool("pay", {"amount": "much"})
            listed = await tools.list_tools()
            assert isinstance(listed, ListToolsResult)
            return [text_of(looked), filed.structured_content, wrong.is_error, len(listed.tools)]

    run = run_of(agent)
    assert run.attempt(crash_at="after_effect:3").kind == "crashed"
    assert run.run() == ["sky seen", {"ticket": "FIRE"}, True, 6]
    run.replay()
    assert effects(done) == [
        ("look", "sky"),
        ("file_ticket", "fire"),
        ("file_ticket", "fire"),  # the same idempotency key; its result was lost with the process
        ("pay", "3"),
        ("shout", "hey"),
    ]
    assert [(r.name, r.effect) for r in run.records if r.kind == "intent"] == [
        ("mcp.list_tools", "read"),
        ("mcp.look", "read"),
        ("mcp.file_ticket", "idempotent"),
        ("mcp.file_ticket", "idempotent"),
        ("mcp.pay", "at_most_once"),
        ("mcp.shout", "at_most_once"),
        ("mcp.pay", "at_most_once"),
        ("mcp.list_tools", "read"),
    ]


def test_a_call_without_hints_that_was_in_flight_asks_a_person(open_tools: Opener, done: Path) -> None:
    @everstep.agent
    async def agent(goal: str) -> str:
        async with everstep.wrap(everstep.resource(open_tools)) as tools:
            return text_of(await tools.call_tool("pay", {"amount": 3}))

    run = run_of(agent)
    assert run.attempt(crash_at="after_effect:2").kind == "crashed"
    ended = run.attempt()
    assert ended.kind == "parked"
    assert ended.waits[0].name == "mcp.pay"
    run.settle(ended.waits[0].key, "done", {"content": [{"type": "text", "text": "paid by hand"}]})
    assert run.run() == "paid by hand"
    assert effects(done) == [("pay", "3")]


def test_a_connection_that_breaks_in_mid_call_leaves_a_doubt_and_no_failure(open_tools: Opener, done: Path) -> None:
    @everstep.agent
    async def agent(goal: str) -> str:
        async with everstep.wrap(everstep.resource(open_tools)) as tools:
            return text_of(await tools.call_tool("break_off", {"text": "x"}))

    run = run_of(agent)
    ended = run.attempt()
    assert ended.kind == "parked", ended
    assert ended.waits[0].kind == "uncertain"
    assert "broke off" in ended.waits[0].reason
    run.settle(ended.waits[0].key, "fail", reason="it broke")
    ended = run.attempt()
    assert isinstance(ended.error, everstep.StepFailed)
    assert effects(done) == [("break_off", "x")]


def test_the_user_knows_better_than_the_server(open_tools: Opener, done: Path) -> None:
    @everstep.agent
    async def agent(goal: str) -> str:
        async with everstep.resource(open_tools) as plain:
            tools = everstep.wrap(plain, effects={"shout": "read", "look": "at_most_once"}, name="house")
            await tools.call_tool("shout", {"text": "x"})
            with pytest.raises(everstep.BadCall, match="progress_callback"):
                await tools.call_tool("shout", {"text": "x"}, progress_callback=_progress)
            return text_of(await tools.call_tool("look", {"what": "sky"}))

    run = run_of(agent)
    assert run.run() == "sky seen"
    run.replay()
    assert [(r.name, r.effect) for r in run.records if r.kind == "intent"] == [
        ("house.shout", "read"),
        ("house.look", "at_most_once"),
    ]
    assert effects(done) == [("shout", "x"), ("look", "sky")]


def test_a_tool_that_tells_of_no_progress_any_more_is_called_again(open_tools: Opener, done: Path) -> None:
    @everstep.agent
    async def agent(goal: str) -> str:
        async with everstep.resource(open_tools) as plain:
            retry = everstep.Retry(2, backoff_s=0)
            tools = everstep.wrap(plain, effect="read", heartbeat_timeout=1, total_timeout=60, retry=retry)
            await tools.list_tools()  # tells of nothing and is not bound
            return text_of(await tools.call_tool("dig", {"depth": 12, "every_s": 0.15}))

    run = run_of(agent)
    assert run.run() == "12 deep"
    run.replay()
    assert effects(done) == [("dig", "12"), ("dig", "12")]
    failed = next(r for r in run.records if r.kind == "try_failed")
    assert failed.message == "no heartbeat within 1 s"
    assert failed.time - next(r for r in run.records if r.name == "mcp.dig").time > 1800


async def _progress(_done: float, _total: float | None, _said: str | None) -> None:
    return None


def test_in_a_body_it_is_the_plain_session(open_tools: Opener, done: Path) -> None:
    @everstep.agent
    async def agent(goal: str) -> str:
        async with everstep.wrap(everstep.resource(open_tools)) as tools:

            async def twice(what: str) -> str:
                await tools.call_tool("look", {"what": what})
                return text_of(await tools.call_tool("look", {"what": what + "!"}))

            return await everstep.run_step("twice", twice, "sky", effect="read")

    run = run_of(agent)
    assert run.run() == "sky! seen"
    assert [r.name for r in run.records if r.kind == "result"] == ["twice"]
    assert effects(done) == [("look", "sky"), ("look", "sky!")]
