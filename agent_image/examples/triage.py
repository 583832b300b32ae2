"""Triage a support backlog: a model reads each ticket, the tracker gets it, and whoever waits for help gets a mail.

    everstep local run triage:run --goal "Triage the support backlog"

Every call to the outside is a step. A step says what its effect is, and that alone decides what happens when the process is
killed while it is in flight:

    read           ask again                                       (the model, the file)
    idempotent     do it again under the same key                  (the tracker knows the key and files once)
    at_most_once   look whether it was done; if nobody can tell,   (a mail cannot be unsent)
                   wait for a person

Steps that were recorded are never run again: a new process gets their results from the journal and goes on from there.

Environment: OPENAI_BASE_URL and OPENAI_API_KEY (any OpenAI-compatible endpoint), TRACKER_URL, MAIL_URL.
"""

import json
import os
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Literal

import httpx
from openai import AsyncOpenAI
from pydantic import BaseModel

import everstep
from everstep import NOT_DONE, Done, Probed, Retry


class Ticket(BaseModel):
    id: str
    sender: str
    subject: str
    body: str


class Verdict(BaseModel):
    """What the model decides; also the JSON schema it is asked to keep to."""

    category: Literal["outage", "security", "billing", "bug", "feature", "question", "duplicate", "spam"]
    priority: Literal["urgent", "high", "normal", "low"]
    title: str
    reply: str
    """A mail to the sender; empty if none is needed."""


INSTRUCTIONS = """You triage a support backlog. Goal: {goal}
Choose a category and a priority, and write a title an engineer understands without the ticket.
Write a short reply only if the sender waits for help or money; otherwise leave it empty."""


@cache
def model() -> AsyncOpenAI:
    return AsyncOpenAI(max_retries=0)  # a step retries by itself, and records that it did


@cache
def web() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=30)


@everstep.step(effect="read")
async def load_backlog(path: str) -> list[Ticket]:
    entries = json.loads((Path(__file__).parent / path).read_text(encoding="utf-8"))
    return [Ticket(id=e["id"], sender=e["from"], subject=e["subject"], body=e["body"]) for e in entries]


@everstep.step(effect="read", timeout=60, retry=Retry(max_tries=5))
async def classify(ticket: Ticket, goal: str, model_name: str) -> Verdict:
    completion = await model().chat.completions.parse(
        model=model_name,
        response_format=Verdict,
        messages=[
            {"role": "system", "content": INSTRUCTIONS.format(goal=goal)},
            {
                "role": "user",
                "content": f"Ticket: {ticket.id}\nFrom: {ticket.sender}\nSubject: {ticket.subject}\n\n{ticket.body}",
            },
        ],
    )
    if usage := completion.usage:
        everstep.report_usage(input_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens)
    verdict = completion.choices[0].message.parsed
    if verdict is None:
        raise ValueError(f"the model gave no verdict: {completion.choices[0].message.refusal}")
    return verdict


@everstep.step(effect="idempotent", timeout=30, retry=Retry(max_tries=5))
async def file_ticket(ticket: Ticket, verdict: Verdict) -> str:
    reply = await web().post(
        os.environ["TRACKER_URL"] + "/tickets",
        headers={"Idempotency-Key": everstep.idempotency_key()},
        json={
            "source": ticket.id,
            "title": verdict.title,
            "body": ticket.body,
            "labels": [verdict.category, verdict.priority],
        },
    )
    reply.raise_for_status()
    number: str = reply.json()["id"]
    return number


async def was_mail_sent(ticket: Ticket, text: str) -> Probed[None]:
    """Asked only after a loss in mid-send: did the gateway see this mail?"""
    reply = await web().get(f"{os.environ['MAIL_URL']}/mails/{everstep.idempotency_key()}")
    if reply.status_code == 404:
        return NOT_DONE
    reply.raise_for_status()
    return Done(None)


@everstep.step(effect="at_most_once", timeout=30, probe=was_mail_sent)
async def send_mail(ticket: Ticket, text: str) -> None:
    reply = await web().post(
        os.environ["MAIL_URL"] + "/mails",
        headers={"Idempotency-Key": everstep.idempotency_key()},
        json={"source": ticket.id, "to": ticket.sender, "subject": f"Re: {ticket.subject}", "text": text},
    )
    reply.raise_for_status()


@everstep.agent
async def run(goal: str, backlog: str = "data/backlog.json", model_name: str = "gpt-4o-mini") -> str:
    categories: Counter[str] = Counter()
    mails = 0
    for ticket in await load_backlog(backlog):
        verdict = await classify(ticket, goal, model_name)
        categories[verdict.category] += 1
        if verdict.category != "spam":
            number = await file_ticket(ticket, verdict)
            if verdict.reply:
                await send_mail(ticket, f"{verdict.reply}\n\nYour ticket: {number}")
                mails += 1
    counted = ", ".join(f"{count} {category}" for category, count in categories.most_common())
    return f"{categories.total()} tickets triaged ({counted}), {mails} mails sent"
