"""`everstep.wrap` with the real clients of openai and anthropic, against a model service on loopback.

The journal is in memory; requests are counted by the service. C6: the first run and a replay see the same.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from openai.types.chat import ChatCompletion
from pydantic import BaseModel

import everstep
from everstep.testing import MemoryRun
from tests.support.models import ModelServer, Reply

ASK: Any = [{"role": "user", "content": "How are you?"}]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


def openai_client(server: ModelServer, **more: object) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="k", base_url=server.url, **more)  # type: ignore[arg-type]  # of any setting


def run_of(agent: object, **inputs: object) -> MemoryRun[object]:
    return MemoryRun(agent, "go", inputs, real_time=True)  # type: ignore[arg-type]  # an agent


def test_a_chat_completion_is_a_step_and_comes_back_as_the_librarys_model(server: ModelServer) -> None:
    seen: list[ChatCompletion] = []

    @everstep.agent
    async def ask(goal: str) -> str:
        client = everstep.wrap(openai_client(server))
        assert isinstance(client, openai.AsyncOpenAI)
        first = await client.chat.completions.create(model="m", messages=ASK)
        seen.append(first)
        again = [*ASK, first.choices[0].message, {"role": "user", "content": "Sure?"}]
        second = await client.chat.completions.create(model="m", messages=again)
        return f"{first.choices[0].message.content}/{second.choices[0].message.content}"

    run = run_of(ask)
    assert run.attempt(crash_at="after_effect:2").kind == "crashed"
    assert run.run() == "All is well./All is well."
    run.replay()
    assert len(server.requests) == 3, "one, and the second twice: its result was lost with the process"
    assert [r.name for r in run.records if r.kind == "result"] == ["openai.chat.completions"] * 2
    assert all(isinstance(answer, ChatCompletion) and answer == seen[0] for answer in seen)
    assert len(seen) == 3
    usage = [r.usage for r in run.records if r.kind == "result"]
    assert [{k: v for k, v in u.items() if k.endswith("Tokens")} for u in usage if u] == [
        {"inputTokens": 7, "outputTokens": 5}
    ] * 2


def test_a_client_of_module_level_and_its_other_calls(server: ModelServer) -> None:
    client = everstep.wrap(openai_client(server))

    class Mood(BaseModel):
        mood: str

    server.script = lambda body, _n: Reply('{"mood": "fine"}')

    @everstep.agent
    async def ask(goal: str) -> list[object]:
        embedded = await client.embeddings.create(model="e", input="x")
        response = await client.responses.create(model="m", input="x")
        parsed = await client.chat.completions.parse(model="m", messages=ASK, response_format=Mood)
        mood = parsed.choices[0].message.parsed
        assert mood is not None
        return [embedded.data[0].embedding, response.output_text, mood.mood]

    run = run_of(ask)
    assert run.run() == [[1.0, 2.0], '{"mood": "fine"}', "fine"]
    run.replay()
    assert [r.name for r in run.records if r.kind == "result"] == [
        "openai.embeddings",
        "openai.responses",
        "openai.chat.completions",
    ]
    assert len(server.requests) == 3


def test_tries_are_the_journals_and_the_error_is_the_librarys(server: ModelServer) -> None:
    server.script = lambda _body, number: Reply(status=503 if number < 2 else 400)
    caught: list[str] = []

    @everstep.agent
    async def ask(goal: str) -> str:
        client = everstep.wrap(openai_client(server))
        try:
            await client.chat.completions.create(model="m", messages=ASK)
        except openai.BadRequestError as e:
            caught.append(f"{e.status_code} {e.body}")
            return "refused"
        return "answered"

    run = run_of(ask)
    assert run.run() == "refused"
    run.replay()
    assert len(server.requests) == 3
    assert [r.kind for r in run.records].count("try_failed") == 2, "each of them is in the journal"
    assert len(caught) == 2
    assert caught[0] == caught[1]
    assert caught[0].startswith("400 {")


def test_sync_clients_in_a_sync_agent(server: ModelServer) -> None:
    @everstep.agent
    def ask(goal: str) -> str:
        client = everstep.wrap(openai.OpenAI(api_key="k", base_url=server.url))
        claude = everstep.wrap(anthropic.Anthropic(api_key="k", base_url=server.root))
        one = client.chat.completions.create(model="m", messages=ASK)
        two = claude.messages.create(model="m", max_tokens=9, messages=ASK)
        block = two.content[0]
        assert isinstance(block, anthropic.types.TextBlock)
        return f"{one.choices[0].message.content}{block.text}"

    run = run_of(ask)
    assert run.run() == "All is well.All is well."
    run.replay()
    assert len(server.requests) == 2


def test_anthropic_in_parallel(server: ModelServer) -> None:
    claude = everstep.wrap(anthropic.AsyncAnthropic(api_key="k", base_url=server.root))
    assert isinstance(claude, anthropic.AsyncAnthropic)

    @everstep.agent
    async def ask(goal: str) -> int:
        asks = [claude.messages.create(model="m", max_tokens=9, messages=ASK) for _ in range(3)]
        return sum(m.usage.output_tokens for m in await asyncio.gather(*asks))

    run = run_of(ask)
    assert run.run() == 15
    run.replay()
    assert len(server.requests) == 3


def test_a_request_that_acts_is_not_called_read(server: ModelServer) -> None:
    @everstep.agent
    async def ask(goal: str) -> None:
        client = everstep.wrap(openai_client(server))
        await client.responses.create(model="m", input="x", conversation="conv-1")
        override = everstep.wrap(openai_client(server), effects={"responses": "idempotent"}, name="mine")
        await override.responses.create(model="m", input="x", conversation="conv-1")

    run = run_of(ask)
    run.run()
    assert [(r.name, r.effect) for r in run.records if r.kind == "intent"] == [
        ("openai.responses", "at_most_once"),
        ("mine.responses", "idempotent"),
    ]


def test_outside_and_inside(server: ModelServer) -> None:
    client = everstep.wrap(openai_client(server))

    @everstep.step(effect="read")
    async def summary(text: str) -> str | None:
        answer = await client.chat.completions.create(model="m", messages=ASK)
        return answer.choices[0].message.content

    @everstep.agent
    async def ask(goal: str) -> str | None:
        with pytest.raises(everstep.BadCall, match="with_raw_response"):
            await client.chat.completions.with_raw_response.create(model="m", messages=ASK)
        return await summary("x")

    run = run_of(ask)
    assert run.run() == "All is well."
    assert [r.name for r in run.records if r.kind == "intent"] == ["summary"], "in a body it is the plain client"

    async def outside() -> None:
        await client.chat.completions.create(model="m", messages=ASK)

    with pytest.raises(everstep.NotInRun):
        asyncio.run(outside())


def test_a_budget_counts_what_a_wrapped_client_uses(server: ModelServer) -> None:
    """An unknown model under a limit of money stops before it is asked; a known one is reserved for and settled."""

    @everstep.agent
    async def ask(goal: str) -> str | None:
        client = everstep.wrap(openai_client(server))
        answer = await client.chat.completions.create(model=goal, messages=ASK, max_completion_tokens=100)
        return answer.choices[0].message.content

    budget = everstep.Budget(max_cost_micro_usd=1_000_000, prices={"known": (1, 2)})
    run: MemoryRun[Any] = MemoryRun(ask, "unknown", real_time=True)
    assert run.attempt(budget=budget).kind == "parked"
    assert server.requests == []
    run = MemoryRun(ask, "known", real_time=True)
    assert run.run(budget=budget) == "All is well."
    intent = next(r for r in run.records if r.kind == "intent")
    assert intent.reserve is not None
    assert 100 < intent.reserve["tokens"] < 150
    result = next(r for r in run.records if r.kind == "result")
    assert result.usage == {"inputTokens": 7, "outputTokens": 5, "costMicroUSD": 17}
