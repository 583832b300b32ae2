"""What the world remembers: every request, the tickets and mails that came of them, and which requests it holds.

A request is counted when it arrives, before anything is done about it, so a caller that dies in mid-request is counted too.
With a path given, each request is also a line in an append-only file, from which a restarted world goes on counting.
"""

import asyncio
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

Kind = Literal["model", "ticket", "mail", "probe"]
Moment = Literal["before", "after"]
KINDS: tuple[Kind, ...] = ("model", "ticket", "mail", "probe")


@dataclass
class Request:
    """One request as it was seen."""

    kind: Kind
    ticket: str
    """The backlog's id of the ticket that it is about; "" if the caller did not say."""
    key: str
    """The caller's idempotency key; "" for model calls, which have none."""
    at_epoch_ms: int
    caller: str = ""
    """The caller's address: on a cluster each attempt is a pod with one of its own."""
    done: bool = False
    """The effect happened (False while held before it, or if the caller was gone by then)."""
    deduplicated: bool = False
    """The key was known, so nothing new was made."""


@dataclass
class Hold:
    """Requests of one kind (and ticket) wait here: "before" their effect, or "after" it, before the reply (M3).

    One whose caller is gone when it is released "before" its effect is dropped, as if it had been lost on its way."""

    kind: Kind
    ticket: str
    """"" matches every ticket."""
    moment: Moment
    times: int
    """How many more requests it catches."""
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: int = 0
    """How many requests wait at this moment."""

    def describe(self) -> dict[str, object]:
        return {
            "kind": self.kind, "ticket": self.ticket, "moment": self.moment, "left": self.times, "waiting": self.waiting
        }  # fmt: skip


class World:
    """All state. Its methods are called from one event loop."""

    def __init__(self, log_path: Path | None = None) -> None:
        self.requests: list[Request] = []
        self.tickets: dict[str, dict[str, object]] = {}
        """By idempotency key."""
        self.mails: dict[str, list[dict[str, object]]] = {}
        """By key, every mail that went out: a second one under the same key is not held back."""
        self.holds: list[Hold] = []
        self.latency_ms: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        self._log_path = log_path
        if log_path is not None and log_path.exists():
            for line in log_path.read_text(encoding="utf-8").splitlines():
                self._replay(json.loads(line))

    def arrived(self, kind: Kind, ticket: str, key: str, at_epoch_ms: int, caller: str = "") -> Request:
        """Count a request."""
        request = Request(kind, ticket, key, at_epoch_ms, caller)
        self.requests.append(request)
        self._write({"arrived": asdict(request)})
        return request

    def file_ticket(self, request: Request, body: dict[str, object]) -> dict[str, object]:
        """Make a ticket, or return the one that this key made before."""
        request.done = True
        request.deduplicated = request.key in self.tickets
        if not request.deduplicated:
            self.tickets[request.key] = {"id": f"DESK-{1001 + len(self.tickets)}", **body}
            self._write({"ticket": [request.key, self.tickets[request.key]]})
        return self.tickets[request.key]

    def send_mail(self, request: Request, body: dict[str, object]) -> dict[str, object]:
        """Send a mail, always."""
        request.done = True
        mail = {"id": f"<{sum(map(len, self.mails.values())) + 1}@world>", **body}
        self.mails.setdefault(request.key, []).append(mail)
        self._write({"mail": [request.key, mail]})
        return mail

    async def pause(self, moment: Moment, request: Request) -> bool:
        """Wait if a hold catches this request; whether one did."""
        for hold in self.holds:
            if hold.times > 0 and (hold.kind, hold.moment) == (request.kind, moment):
                if hold.ticket and hold.ticket != request.ticket:
                    continue
                hold.times -= 1
                hold.waiting += 1
                try:
                    await hold.gate.wait()
                finally:
                    hold.waiting -= 1
                return True
        return False

    def release(self) -> int:
        """Let all held requests go on and forget the holds. Returns how many requests waited."""
        freed = sum(hold.waiting for hold in self.holds)
        for hold in self.holds:
            hold.gate.set()
        self.holds.clear()
        return freed

    def counts(self) -> dict[str, object]:
        """Everything for a judge: totals, the highest number of requests and effects per key, and each request."""
        totals: dict[str, dict[str, int]] = {}
        for kind in KINDS:
            of_kind = [r for r in self.requests if r.kind == kind]
            per_key: dict[str, int] = {}
            for request in of_kind:
                name = request.key or request.ticket
                per_key[name] = per_key.get(name, 0) + 1
            totals[kind] = {
                "requests": len(of_kind),
                "keys": len(per_key),
                "max_per_key": max(per_key.values(), default=0),
                "deduplicated": sum(r.deduplicated for r in of_kind),
            }
        return {
            "totals": totals,
            "tickets_filed": len(self.tickets),
            "mails_sent": sum(map(len, self.mails.values())),
            "max_mails_per_key": max(map(len, self.mails.values()), default=0),
            "requests": [asdict(r) for r in self.requests],
        }

    def reset(self) -> None:
        """Forget everything, release whoever waits."""
        self.release()
        self.requests.clear()
        self.tickets.clear()
        self.mails.clear()
        if self._log_path is not None:
            self._log_path.write_text("", encoding="utf-8")

    def _write(self, entry: dict[str, object]) -> None:
        if self._log_path is not None:
            with self._log_path.open("a", encoding="utf-8") as out:
                out.write(json.dumps(entry, ensure_ascii=False) + "\n")

    def _replay(self, entry: dict[str, object]) -> None:
        match entry:
            case {"arrived": dict(fields)}:
                self.requests.append(Request(**fields))
            case {"ticket": [str(key), dict(ticket)]}:
                self.tickets[key] = ticket
            case {"mail": [str(key), dict(mail)]}:
                self.mails.setdefault(key, []).append(mail)
