"""The judge must be right: the outside world answers as the real services do, counts every request and holds them on demand."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from tests.support.world.client import WorldClient, world_on_loopback


class Verdict(BaseModel):
    category: str
    priority: str
    title: str
    reply: str


PROMPT = "Ticket: T-7\nFrom: Ann Example <ann@example.org>\nSubject: Charged twice\n\nPlease refund the second payment."


@pytest.fixture(scope="module")
def shared_world() -> Iterator[WorldClient]:
    with world_on_loopback() as world:
        yield world


@pytest.fixture
def world(shared_world: WorldClient) -> WorldClient:
    shared_world.reset()
    return shared_world


async def test_the_official_client_gets_a_typed_verdict_and_usage(world: WorldClient) -> None:
    async with AsyncOpenAI(base_url=f"{world.url}/v1", api_key="any", max_retries=0) as client:
        answers = [
            await client.chat.completions.parse(
                model="any", response_format=Verdict, messages=[{"role": "user", "content": PROMPT}]
            )
            for _ in range(2)
        ]
    first, second = (answer.choices[0].message.parsed for answer in answers)
    assert first == second, "the same prompt gets the same verdict"
    assert first is not None
    assert (first.category, bool(first.reply)) == ("billing", True)
    assert answers[0].usage is not None
    assert answers[0].usage.total_tokens == answers[0].usage.prompt_tokens + answers[0].usage.completion_tokens > 20
    assert world.counts()["totals"]["model"] == {"requests": 2, "keys": 1, "max_per_key": 2, "deduplicated": 0}


async def post(world: WorldClient, path: str, key: str) -> httpx.Response:
    body = {"source": "T-7", "to": "ann@example.org", "title": "x"}
    async with httpx.AsyncClient(timeout=10) as client:
        return await client.post(world.url + path, json=body, headers={"Idempotency-Key": key})


async def test_tickets_are_deduplicated_and_mails_are_not(world: WorldClient) -> None:
    tickets = [(await post(world, "/tickets", "k")).json()["id"] for _ in range(2)]
    assert tickets[0] == tickets[1]
    for _ in range(2):
        await post(world, "/mails", "k")
    counts = world.counts()
    assert (counts["tickets_filed"], counts["mails_sent"], counts["max_mails_per_key"]) == (1, 2, 2)
    assert [r["deduplicated"] for r in counts["requests"]] == [False, True, False, False]


async def test_the_probe_tells_whether_a_mail_went_out(world: WorldClient) -> None:
    async with httpx.AsyncClient() as client:
        assert (await client.get(f"{world.url}/mails/k")).status_code == 404
        await post(world, "/mails", "k")
        assert (await client.get(f"{world.url}/mails/k")).json()["sent"] == 1


async def test_held_after_its_effect_a_request_counts_and_its_caller_waits(world: WorldClient) -> None:
    world.hold("mail", ticket="T-7", moment="after")
    caller = asyncio.create_task(post(world, "/mails", "k"))
    await asyncio.to_thread(world.wait_until_held)
    assert world.counts()["mails_sent"] == 1
    assert not caller.done()
    assert world.release() == 1
    assert (await caller).status_code == 201


async def test_held_before_its_effect_and_abandoned_a_request_has_none(world: WorldClient) -> None:
    world.hold("mail", moment="before")
    caller = asyncio.create_task(post(world, "/mails", "k"))
    await asyncio.to_thread(world.wait_until_held)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    await asyncio.sleep(0.1)  # the closing of its connection arrives
    world.release()
    await post(world, "/mails", "other")
    counts = world.counts()
    assert (counts["totals"]["mail"]["requests"], counts["mails_sent"]) == (2, 1)


@pytest.mark.parametrize("path", ["/tickets", "/v1/chat/completions", "/latency"])
async def test_nonsense_is_refused_with_a_reason(world: WorldClient, path: str) -> None:
    async with httpx.AsyncClient() as client:
        method = "PUT" if path == "/latency" else "POST"
        for content in ("[1", '{"colour": "red"}'):
            reply = await client.request(method, world.url + path, content=content)
            assert reply.status_code == 400
            assert reply.json()["error"]["message"]


def test_a_world_with_a_log_goes_on_counting_after_a_restart(tmp_path: Path) -> None:
    for expected in (1, 2):
        with world_on_loopback(log_path=tmp_path / "log") as world:
            world.call("POST", "/mails", {"to": "x", "source": "T-1"})
            assert world.counts()["totals"]["mail"]["requests"] == expected
            assert world.counts()["mails_sent"] == expected
