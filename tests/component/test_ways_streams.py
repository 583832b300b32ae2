"""Streams of the real openai and anthropic clients as steps: the journal has the final message, the live stream the words.

C6: what the agent makes of a stream is the same on replay. C55 and C18, their part within one process; see tests/crash, too.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from openai.types.chat import ChatCompletionChunk

import everstep
from everstep import Retry
from everstep.journal.live import LiveEntry, read_live
from everstep.testing import MemoryRun
from tests.support.models import ModelServer, Reply

ASK: Any = [{"role": "user", "content": "How are you?"}]
TEXT = "The quick brown fox jumps over the lazy dog."


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(lambda _body, _number: Reply(TEXT)) as server:
        yield server


def run_of(agent: object, **inputs: object) -> MemoryRun[Any]:
    return MemoryRun(agent, "go", inputs, real_time=True)  # type: ignore[arg-type]  # an agent


def said(run: MemoryRun[Any]) -> list[LiveEntry]:
    async def read() -> list[LiveEntry]:
        return [entry async for entry in read_live(run.store, run.journal_id)]

    return asyncio.run(read())


def test_chat_chunks_come_live_and_the_final_message_is_the_record(server: ModelServer) -> None:
    counts: list[int] = []

    @everstep.agent
    async def ask(goal: str) -> str:
        client = everstep.wrap(openai.AsyncOpenAI(api_key="k", base_url=server.url))
        stream = await client.chat.completions.create(
            model="m", messages=ASK, stream=True, stream_options={"include_usage": True}
        )
        assert isinstance(stream, openai.AsyncStream)
        text, n, tokens = "", 0, 0
        async for chunk in stream:
            assert isinstance(chunk, ChatCompletionChunk)
            n += 1
            text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
            tokens += chunk.usage.completion_tokens if chunk.usage else 0
        counts.append(n)
        return f"{text} {tokens}"

    run = run_of(ask)
    assert run.run() == f"{TEXT} 5"
    run.replay()
    assert len(server.requests) == 1
    assert counts == [12, 3], "word by word at first; the message, its end and the usage on replay"
    result = next(r for r in run.records if r.kind == "result")
    assert result.value["choices"][0]["message"] == {"role": "assistant", "content": TEXT}
    assert result.value["choices"][0]["finish_reason"] == "stop"
    assert result.usage is not None
    assert result.usage["outputTokens"] == 5
    entries = said(run)
    assert [e.kind for e in entries if e.kind != "text"] == ["begin", "end"]
    assert "".join(e.text for e in entries) == TEXT
    assert all(e.key == "0" and e.attempt == 1 and e.name == "openai.chat.completions" for e in entries)
    offset = 0
    for entry in entries[1:]:
        assert entry.offset == offset
        offset += len(entry.text)


def test_a_stream_without_a_finish_reason_is_a_failed_try(server: ModelServer) -> None:
    """Nobody has seen it yet (live=False), so another try may follow; nothing of the first is in the journal."""
    server.script = lambda _body, number: Reply("wrong words", cut=2) if number == 0 else Reply(TEXT)

    @everstep.agent
    async def ask(goal: str) -> str:
        client = everstep.wrap(
            openai.AsyncOpenAI(api_key="k", base_url=server.url), live=False, retry=Retry(3, backoff_s=0.01)
        )
        stream = await client.chat.completions.create(model="m", messages=ASK, stream=True)
        return "".join([c.choices[0].delta.content or "" async for c in stream])

    run = run_of(ask)
    assert run.run() == TEXT
    run.replay()
    assert len(server.requests) == 2
    assert [r.kind for r in run.records] == ["run_started", "intent", "try_failed", "intent", "result", "finished"]
    assert b"wrong" not in b"".join(run.raw_records)
    kinds = [(e.kind, e.tries) for e in said(run) if e.kind != "text"]
    assert kinds == [("begin", 1), ("abandoned", 1), ("begin", 2), ("end", 2)]


@pytest.mark.parametrize("sync", [False, True])
def test_a_stream_that_falls_silent_is_a_failed_try(server: ModelServer, *, sync: bool) -> None:
    """A model that stalls in mid-sentence keeps its connection open: no error of the library would ever come."""
    server.script = lambda _body, number: Reply(TEXT, pause_s=60 if number == 0 else 0.1)

    def client_of(kind: Any) -> Any:
        plain = kind(api_key="k", base_url=server.url)
        return everstep.wrap(plain, live=False, heartbeat_timeout=0.5, total_timeout=30)

    @everstep.agent
    async def ask(goal: str) -> str:
        stream = await client_of(openai.AsyncOpenAI).chat.completions.create(model="m", messages=ASK, stream=True)
        return "".join([c.choices[0].delta.content or "" async for c in stream])

    @everstep.agent
    def ask_sync(goal: str) -> str:
        stream = client_of(openai.OpenAI).chat.completions.create(model="m", messages=ASK, stream=True)
        return "".join([c.choices[0].delta.content or "" for c in stream])

    run = run_of(ask_sync if sync else ask)
    assert run.run() == TEXT, "the second takes more than 1 s in all and is never silent for 0.5 s"
    run.replay()
    assert len(server.requests) == 2
    assert next(r for r in run.records if r.kind == "try_failed").message == "no heartbeat within 0.5 s"


def test_a_stream_that_breaks_after_the_agent_saw_a_part_of_it_fails(server: ModelServer) -> None:
    """A second try would say it twice. What was seen is not journaled, the failure is."""
    server.script = lambda _body, _number: Reply(TEXT, cut=4, pause_s=0.05)

    @everstep.agent
    async def ask(goal: str) -> str:
        client = everstep.wrap(openai.AsyncOpenAI(api_key="k", base_url=server.url))
        text = ""
        try:
            stream = await client.chat.completions.create(model="m", messages=ASK, stream=True)
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
        except everstep.StepFailed as e:
            return e.type
        return text

    run = run_of(ask)
    assert run.run() == "StreamCut"
    run.replay()
    assert len(server.requests) == 1
    assert b"quick" not in b"".join(run.raw_records)


def test_helpers_of_openai_with_tools(server: ModelServer) -> None:
    server.script = lambda _body, _number: Reply(TEXT, tools=(("look", {"at": "sky"}),))
    seen: list[object] = []

    @everstep.agent
    async def ask(goal: str) -> list[object]:
        client = everstep.wrap(openai.AsyncOpenAI(api_key="k", base_url=server.url))
        async with client.chat.completions.stream(model="m", messages=ASK) as stream:
            async for event in stream:
                if event.type == "content.delta":
                    seen.append(event.delta)
            completion = await stream.get_final_completion()
        call = completion.choices[0].message.tool_calls
        assert call is not None
        async with client.responses.stream(model="m", input="x") as events:
            async for _ in events:
                pass
            response = await events.get_final_response()
        return [
            completion.choices[0].message.content,
            call[0].function.name,
            call[0].function.arguments,
            response.output_text,
        ]

    run = run_of(ask)
    assert run.run() == [TEXT, "look", '{"at": "sky"}', TEXT]
    assert len(seen) == 10
    run.replay()
    assert seen[10:] == [TEXT]
    assert len(server.requests) == 2


def test_anthropic_streams(server: ModelServer) -> None:
    server.script = lambda _body, _number: Reply(TEXT, tools=(("look", {"at": "sky"}),))
    texts: list[str] = []

    @everstep.agent
    async def ask(goal: str) -> list[object]:
        claude = everstep.wrap(anthropic.AsyncAnthropic(api_key="k", base_url=server.root))
        async with claude.messages.stream(model="m", max_tokens=9, messages=ASK) as stream:
            texts.append("|".join([text async for text in stream.text_stream]))
            message = await stream.get_final_message()
        tool = message.content[1]
        assert isinstance(tool, anthropic.types.ToolUseBlock)
        raw = await claude.messages.create(model="m", max_tokens=9, messages=ASK, stream=True)
        kinds = {event.type async for event in raw}
        return [message.stop_reason, message.usage.output_tokens, tool.input, sorted(kinds)]

    run = run_of(ask)
    result = run.run()
    assert result[:3] == ["tool_use", 5, {"at": "sky"}]
    run.replay()
    assert len(server.requests) == 2
    assert texts[0].replace("|", "") == texts[1] == TEXT
    assert texts[0].count("|") == 8


def test_streams_in_a_sync_agent(server: ModelServer) -> None:
    @everstep.agent
    def ask(goal: str) -> str:
        client = everstep.wrap(openai.OpenAI(api_key="k", base_url=server.url))
        claude = everstep.wrap(anthropic.Anthropic(api_key="k", base_url=server.root))
        stream = client.chat.completions.create(model="m", messages=ASK, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        with claude.messages.stream(model="m", max_tokens=9, messages=ASK) as messages:
            return text + messages.get_final_text()

    run = run_of(ask)
    assert run.run() == TEXT + TEXT
    run.replay()
    assert len(server.requests) == 2
    assert "".join(e.text for e in said(run)) == TEXT + TEXT


def test_a_step_in_the_middle_of_a_stream_is_refused_and_after_it_runs(server: ModelServer) -> None:
    server.script = lambda _body, _number: Reply(TEXT, pause_s=0.01)

    @everstep.step(effect="read")
    async def note(text: str) -> str:
        return text

    @everstep.agent
    async def ask(goal: str) -> list[str]:
        client = everstep.wrap(openai.AsyncOpenAI(api_key="k", base_url=server.url))
        stream = await client.chat.completions.create(model="m", messages=ASK, stream=True)
        refused = 0
        async for _ in stream:
            for call in (lambda: note("x"), lambda: asyncio.sleep(1)):
                try:
                    await call()
                except everstep.BadCall:
                    refused += 1
        second = await client.chat.completions.create(model="m", messages=ASK, stream=True)
        async for _ in second:
            break
        await second.close()
        return [await note("after"), "refused" if refused else "not refused"]

    run = run_of(ask)
    assert run.run() == ["after", "refused"]
    run.replay()
    assert [r.name for r in run.records if r.kind == "result"] == [
        "openai.chat.completions",
        "openai.chat.completions",
        "note",
    ]


def test_two_streams_at_once_beside_other_steps(server: ModelServer) -> None:
    server.script = lambda _body, number: Reply(TEXT, pause_s=0.005 * (number + 1))

    @everstep.step(effect="read")
    async def tick(n: int) -> int:
        await asyncio.sleep(0.01)
        return n

    @everstep.agent
    async def ask(goal: str) -> list[str]:
        client = everstep.wrap(openai.AsyncOpenAI(api_key="k", base_url=server.url))

        async def read() -> str:
            stream = await client.chat.completions.create(model="m", messages=ASK, stream=True)
            text = "".join([c.choices[0].delta.content or "" async for c in stream])
            await tick(len(text))
            return text

        async def count() -> str:
            return str(sum([await tick(n) for n in range(5)]))

        return list(await asyncio.gather(read(), read(), count()))

    run = run_of(ask)
    assert run.run() == [TEXT, TEXT, "10"]
    run.replay()
    assert len(server.requests) == 2


def test_say_shows_what_a_step_of_ones_own_is_doing() -> None:
    @everstep.step(effect="read", retry=Retry(2, backoff_s=0))
    async def slow(n: int) -> int:
        everstep.say("working ")
        await asyncio.sleep(0.01)
        everstep.say("still")
        if len(tries) == 0:
            tries.append(1)
            raise ValueError("no")
        return n

    @everstep.step(effect="read")
    def in_thread() -> int:
        everstep.say("from a thread")
        return 1

    tries: list[int] = []

    @everstep.agent
    async def agent(goal: str) -> int:
        return await slow(1) + await in_thread.aio()

    run = run_of(agent)
    assert run.run() == 2
    texts: dict[tuple[str, int], str] = {}
    for entry in said(run):
        texts[entry.key, entry.tries] = texts.get((entry.key, entry.tries), "") + entry.text
    assert texts == {("0", 1): "working still", ("0", 2): "working still", ("1", 1): "from a thread"}
    marks = [(e.key, e.tries, e.kind) for e in said(run) if e.kind in ("end", "abandoned")]
    assert marks == [("0", 1, "abandoned"), ("0", 2, "end"), ("1", 1, "end")]
    with pytest.raises(everstep.BadCall):
        everstep.say("outside")


def test_a_crash_at_every_moment_of_a_stream(server: ModelServer) -> None:
    """The result is the same, the message is journaled once, and the words of each lost process are marked."""

    @everstep.step(effect="read")
    async def note(text: str) -> str:
        return text

    @everstep.agent
    async def ask(goal: str) -> str:
        client = everstep.wrap(openai.AsyncOpenAI(api_key="k", base_url=server.url))
        await note("before")
        stream = await client.chat.completions.create(model="m", messages=ASK, stream=True)
        text = "".join([c.choices[0].delta.content or "" async for c in stream])
        return await note(text)

    moment = 1
    while (run := run_of(ask)).attempt(crash_at=f"any:{moment}").kind == "crashed":
        asked = len(server.requests)
        assert run.run() == TEXT, moment
        assert len(server.requests) - asked <= 1
        run.replay()
        assert [r.name for r in run.records if r.kind == "result"].count("openai.chat.completions") == 1
        entries = said(run)
        spoke = {e.attempt for e in entries if e.kind == "text"}
        words = "".join(e.text for e in entries if e.attempt == max(spoke, default=1))
        # What was said in the last moment of a process is lost with it; the message is in the journal.
        assert words == TEXT if len(server.requests) > asked else TEXT.startswith(words), moment
        dead = {e.attempt for e in entries if e.kind == "abandoned"}
        assert spoke - {max(spoke, default=1)} <= dead <= {1}, moment
        moment += 1
    assert moment > 25
