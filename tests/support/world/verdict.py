"""A deterministic stand-in for the model: reads a ticket out of a prompt and triages it by its words.

The same prompt always gets the same answer, so that two runs can be compared; the answer follows the JSON schema that
`examples/triage.py` asks for. Tokens are estimated at four characters each, as people do who have no tokenizer at hand.
"""

import json
import re
from dataclasses import dataclass

_TICKET = re.compile(r"^Ticket:?\s+(\S+)\s*$", re.MULTILINE)
_FROM = re.compile(r"^From:.*?([\w.+-]+@[\w.-]+)", re.MULTILINE)
_SUBJECT = re.compile(r"^Subject:\s*(.+?)\s*$", re.MULTILINE)

# First match wins, so the order is the order of urgency.
_RULES: tuple[tuple[str, str, str], ...] = (
    ("spam", "low", r"\bunsubscribe\b|seo ranking|guest post|crypto|limited offer|buy followers|lottery"),
    ("security", "urgent", r"vulnerab|\bxss\b|phish|leaked|api key .* public|breach|security (hole|issue|report)"),
    (
        "outage",
        "urgent",
        r"outage|\bdown\b since|502|503|cannot (log|sign) in at all|nobody can|all of our users|data loss",
    ),
    ("duplicate", "low", r"same as t-\d+|duplicate of|asked this (last|already)|follow-?up to my ticket"),
    ("billing", "normal", r"invoice|refund|charged|credit card|\bvat\b|billing|subscription|purchase order"),
    ("feature", "low", r"would be (great|nice|lovely)|feature request|wish|could you add|please add|any plans"),
    ("bug", "high", r"error|crash|stack ?trace|exception|broken|does not work|doesn't work|wrong|bug|freez|fails"),
)
_MAILED = {"security", "outage", "billing"}
"""Categories whose sender gets a mail: people who wait for money or for their service to come back."""


@dataclass(frozen=True)
class Reading:
    """What the prompt said about the ticket."""

    ticket: str
    sender: str
    subject: str
    text: str


def read_prompt(prompt: str) -> Reading:
    """Find ticket id, sender and subject in a prompt; a missing one is ""."""

    def first(pattern: re.Pattern[str]) -> str:
        found = pattern.search(prompt)
        return found.group(1) if found else ""

    return Reading(first(_TICKET), first(_FROM), first(_SUBJECT), prompt)


def judge(reading: Reading) -> dict[str, object]:
    """The verdict as `examples/triage.py` wants it: category, priority, title, reply ("" = no mail)."""
    ticket_text = reading.text[reading.text.find("Ticket") :].lower()
    category, priority = next(
        ((name, urgency) for name, urgency, words in _RULES if re.search(words, ticket_text)), ("question", "normal")
    )
    title = f"[{category}] {reading.subject or 'No subject'}"[:120]
    reply = _reply(category, reading) if category in _MAILED and reading.sender else ""
    return {"category": category, "priority": priority, "title": title, "reply": reply}


def _reply(category: str, reading: Reading) -> str:
    what = {
        "security": "Our security team has your report and will answer within four hours.",
        "outage": "We are looking into this right now; the status page is updated every 15 minutes.",
        "billing": "Our accounts team checks this and comes back to you within one working day.",
    }[category]
    return f"Thank you for writing to us about “{reading.subject}” ({reading.ticket}). {what}"


def completion(model: str, prompt: str, number: int, created_epoch_s: int) -> dict[str, object]:
    """A `chat.completion` object as an OpenAI-compatible endpoint returns it. `number` makes its id unique."""
    content = json.dumps(judge(read_prompt(prompt)), ensure_ascii=False)
    prompt_tokens, completion_tokens = 9 + len(prompt) // 4, 4 + len(content) // 4
    return {
        "id": f"chatcmpl-world-{number:06d}",
        "object": "chat.completion",
        "created": created_epoch_s,
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": content, "refusal": None},
                "finish_reason": "stop",
                "logprobs": None,
            }
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        },
    }
