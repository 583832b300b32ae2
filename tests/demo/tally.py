"""Adds up what the outside world saw and says what is wrong with it.

The expectation is computed from the backlog alone: one verdict per ticket, one filed ticket for each that is not spam, one mail
for each verdict with a reply. A loss can catch one step in flight, so model and tracker may see one more request per loss; of
mails the gateway must have seen one request per key.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from tests.support.world.verdict import judge, read_prompt

EXAMPLES = Path(__file__).resolve().parents[2] / "agent_image" / "examples"
BACKLOG = EXAMPLES / "data" / "backlog.json"
EFFECTS = {"model": "read", "ticket": "idempotent", "mail": "at_most_once"}
WHAT = {"model": "model calls", "ticket": "tickets filed", "mail": "mails sent"}


@dataclass(frozen=True)
class Expected:
    """What the backlog must lead to. `steps` counts the one that loads the file, too."""

    tickets: int
    filed: int
    mails: int

    @property
    def steps(self) -> int:
        return 1 + self.tickets + self.filed + self.mails

    def of(self, kind: str) -> int:
        return {"model": self.tickets, "ticket": self.filed, "mail": self.mails}[kind]


def expected(backlog: Path = BACKLOG) -> Expected:
    """From the file and the world's own judgement."""
    entries = json.loads(backlog.read_text(encoding="utf-8"))
    verdicts = [
        judge(read_prompt(f"Ticket: {e['id']}\nFrom: {e['from']}\nSubject: {e['subject']}\n\n{e['body']}"))
        for e in entries
    ]
    filed = [v for v in verdicts if v["category"] != "spam"]
    return Expected(len(entries), len(filed), sum(bool(v["reply"]) for v in filed))


@dataclass
class Loss:
    """One thing that was taken away."""

    what: str
    at_epoch_ms: int
    steps_before: int = 0
    """Steps with an outcome when it happened."""
    resumed_epoch_ms: int | None = None
    """The first new step of a later attempt began; None while there is none."""
    needs_resume: bool = True
    """False for what the run should not even notice (the operator)."""

    @property
    def resumed_after_s(self) -> float | None:
        return None if self.resumed_epoch_ms is None else (self.resumed_epoch_ms - self.at_epoch_ms) / 1000


@dataclass
class Tally:
    """The end of a demo: everything that is shown, and every count that is wrong."""

    expected: Expected
    counts: dict[str, Any]
    losses: list[Loss]
    steps_recorded: int
    steps_replayed: int
    attempts: int
    model_calls_saved: int
    problems: list[str] = field(default_factory=list)

    def check(self) -> "Tally":
        """Fill `problems`."""
        want, counts, hits = self.expected, self.counts, len([x for x in self.losses if x.needs_resume])
        self._equal("steps recorded", self.steps_recorded, want.steps)
        self._equal("tickets filed", counts["tickets_filed"], want.filed)
        self._equal("mails sent", counts["mails_sent"], want.mails)
        self._equal("mails per key at most", counts["max_mails_per_key"], 1 if want.mails else 0)
        self._equal("requests to send a mail", counts["totals"]["mail"]["requests"], want.mails)
        extra = 0
        for kind in ("model", "ticket"):
            total = counts["totals"][kind]
            self._equal(f"different keys of {WHAT[kind]}", total["keys"], want.of(kind))
            extra += total["requests"] - want.of(kind)
        if extra > hits:
            self.problems.append(f"{extra} repeated requests, but only {hits} losses could catch a step in flight")
        for loss in self.losses:
            if loss.needs_resume and loss.resumed_epoch_ms is None:
                self.problems.append(f"no new step after: {loss.what}")
        return self

    def _equal(self, what: str, got: int, want: int) -> None:
        if got != want:
            self.problems.append(f"{what}: {got} instead of {want}")

    def effects_table(self) -> Table:
        """Requests per effect."""
        table = Table(title="What the outside world saw", title_justify="left")
        for name in ("effect", "class"):
            table.add_column(name)
        for name in ("wanted", "requests", "most per key", "came of it"):
            table.add_column(name, justify="right")
        done = {
            "model": self.counts["totals"]["model"]["keys"],
            "ticket": self.counts["tickets_filed"],
            "mail": self.counts["mails_sent"],
        }
        for kind, effect in EFFECTS.items():
            total = self.counts["totals"][kind]
            row = [str(v) for v in (self.expected.of(kind), total["requests"], total["max_per_key"], done[kind])]
            table.add_row(WHAT[kind], effect, *row)
        return table

    def losses_table(self) -> Table:
        """Seconds from each loss to the next new step."""
        table = Table(title="What was taken away", title_justify="left")
        table.add_column("loss")
        table.add_column("at step", justify="right")
        table.add_column("to the next new step", justify="right")
        for loss in self.losses:
            after = loss.resumed_after_s
            shown = "not noticed" if not loss.needs_resume else "never" if after is None else f"{after:.1f} s"
            table.add_row(loss.what, str(loss.steps_before), shown)
        return table

    def summary(self) -> str:
        """One line."""
        return (
            f"{self.attempts} attempts · {self.steps_recorded} steps recorded, {self.steps_replayed} of them replayed by the "
            f"last attempt · {self.model_calls_saved} model calls saved over all losses"
        )
