"""The agent of the failure scenarios: per ticket a model call, a filed ticket and a mail, all counted by the outside world.

It is mounted into the pods from a ConfigMap, so that a scenario needs no image of its own.
"""

import os

import httpx

import everstep

WORLD = os.environ["WORLD_URL"]
CHANGED = os.environ.get("EVERSTEP_IMAGE", "").endswith(":other-code")
"""Stands for an image with other code in it: the same steps in another order."""


async def call(method: str, path: str, body: dict[str, object] | None = None, key: str = "") -> httpx.Response:
    """One HTTP request to the outside world."""
    headers = {"Idempotency-Key": key} if key else {}
    async with httpx.AsyncClient(timeout=20) as http:
        return await http.request(method, WORLD + path, json=body, headers=headers)


@everstep.step(effect="read", timeout=30)
async def think(ticket: str) -> str:
    """A model call."""
    prompt = f"Ticket {ticket}\nSubject: cannot log in\n\nThe login page answers 500 since this morning."
    body: dict[str, object] = {"model": "scripted-1", "messages": [{"role": "user", "content": prompt}]}
    reply = await call("POST", "/v1/chat/completions", body)
    return str(reply.raise_for_status().json()["choices"][0]["message"]["role"])


@everstep.step(effect="idempotent", timeout=30)
async def file_ticket(ticket: str) -> str:
    """Deduplicated by key on the other side."""
    reply = await call("POST", "/tickets", {"source": ticket, "title": ticket}, everstep.idempotency_key())
    return str(reply.raise_for_status().json()["id"])


async def was_mail_sent(ticket: str) -> everstep.Probed[str]:
    """The probe: asks the outside world whether this mail went out."""
    reply = await call("GET", f"/mails/{everstep.idempotency_key()}")
    return everstep.Done(ticket) if reply.status_code == 200 else everstep.NOT_DONE


@everstep.step(effect="at_most_once", probe=was_mail_sent, timeout=30)
async def send_mail(ticket: str) -> str:
    """Never deduplicated on the other side."""
    body: dict[str, object] = {"to": "ops@example.org", "text": ticket, "source": ticket}
    (await call("POST", "/mails", body, everstep.idempotency_key())).raise_for_status()
    return ticket


@everstep.step(effect="at_most_once", timeout=30)
async def send_letter(ticket: str) -> str:
    """Like send_mail, but nobody can be asked whether it went out."""
    body: dict[str, object] = {"to": "ops@example.org", "text": ticket, "source": ticket}
    (await call("POST", "/mails", body, everstep.idempotency_key())).raise_for_status()
    return ticket


@everstep.agent
async def run(
    goal: str,
    tickets: int = 4,
    sleep_after: int = -1,
    sleep_s: float = 0,
    pace_s: float = 0,
    letters: bool = False,
) -> str:
    """Work through `tickets` tickets named <goal>-<n>, one every `pace_s`; before `sleep_after` sleep for `sleep_s`."""
    for n in range(tickets):
        if n == sleep_after:
            await everstep.sleep(sleep_s)
        elif pace_s:
            await everstep.sleep(pace_s)
        ticket = f"{goal}-{n}"
        for step in (file_ticket, think) if CHANGED else (think, file_ticket):
            await step(ticket)
        await (send_letter(ticket) if letters else send_mail(ticket))
    return f"{tickets} tickets done"
