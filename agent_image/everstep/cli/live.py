"""What `everstep local run` prints while it works: one line per step, read from the journal; lines about attempts and waits.

Whole lines only: the agent prints to the same terminal.
"""

import json
from collections.abc import Sequence
from typing import TextIO

from everstep.cli import budgets, text
from everstep.cli.history import History, Row
from everstep.clock import Clock
from everstep.contract import ExitCode, Termination
from everstep.ids import Attempt
from everstep.journal.progress import Progress
from everstep.journal.records import Park, Record, Uncertain
from everstep.local import losses
from everstep.local.losses import ChildEnd

SLOW_MS = 5_000
"""A step that runs for longer is announced before it ends, so that nobody wonders."""
_NAME_MIN = 12


class LiveOutput:
    """A `Listener` of the supervisor. `resume` is the command that goes on with the run."""

    def __init__(self, out: TextIO, run: str, journal: str, resume: str, clock: Clock) -> None:
        from rich.console import Console  # here: only this command needs it

        self._console = Console(file=out, highlight=False, soft_wrap=True, markup=False, emoji=False)
        self.run = run
        self.journal = journal
        self.resume = resume
        self.clock = clock
        self.history = History(forget=True)
        self._shown = 0
        self._width = _NAME_MIN
        self._attempt = 0
        self._headed = True
        self._stopping = False
        self._replay_ms: int | None = None
        self._in_flight: list[Row] = []
        self._announced: set[str] = set()
        self._warned = ""
        self.ran_here = 0

    def opened(self, history: Sequence[Record]) -> None:
        """The journal is proved whole."""
        self.history.add(history)
        self._shown = self.history.recorded()

    def attempt_started(self, attempt: Attempt) -> None:
        """A process was started; the line about a resumed run waits until it told how long replay took."""
        self._attempt, self._replay_ms, self._headed = attempt, None, False
        self._in_flight = self.history.in_flight()
        self._announced.clear()
        if self.history.records == 0:
            self._head()

    def progress(self, progress: Progress) -> None:
        """Take in how long replay took; announce a step that takes long."""
        if progress.replay_ms is not None and not self._headed:
            self._replay_ms = progress.replay_ms
            self._head()

        if progress.warning and progress.warning != self._warned:
            self._warned = progress.warning
            self.say(f"{progress.warning}; at the bound the run fails · docs/long-runs.md", "yellow")

    def idle(self) -> None:
        """Nothing new came: announce steps that are running for long."""
        now = self.clock.now_epoch_ms()
        for row in self.history.in_flight():
            mark = f"{row.key}/{row.attempt}/{row.tries}"
            if row.attempt == self._attempt and now - row.last_epoch_ms > SLOW_MS and mark not in self._announced:
                self._announced.add(mark)
                self._line("·", row.name, row.key, "running", "dim")

    def records(self, records: Sequence[Record]) -> None:
        """One line for each outcome."""
        for record in records:
            self._head()
            before = self.history.rows.get(record.key)
            had_outcome = before is not None and before.has_outcome
            self.history.add([record])
            row = self.history.rows.get(record.key)
            if row is not None and record.kind not in ("intent", "value"):
                self._outcome(row, record, had_outcome)

    def _outcome(self, row: Row, record: Record, had_outcome: bool) -> None:
        if record.kind == "timer":
            if row.due is not None and row.due - record.time > SLOW_MS:
                until = text.clock_time(row.due, self.clock.now_epoch_ms())
                self._line("·", row.name or "sleep", row.key, f"until {until}", "dim")
            return
        if record.kind == "try_failed":
            self._line("·", row.name, row.key, f"try {record.tries} failed: {text.clean(row.note, 200)}", "yellow")
            return
        if isinstance(record, Uncertain):
            self._line("?", row.name, row.key, f"{row.state}: {text.clean(record.reason, 200)}", "yellow")
            return
        if not row.is_step or not row.has_outcome or had_outcome:
            return
        self._shown += 1
        self.ran_here += 1
        tries = f"   try {row.tries}" if row.tries > 1 else ""
        if row.state == "result":
            used = f"   {text.tokens(row.tokens)} tokens" if any(row.tokens) else ""
            self._line(str(self._shown), row.name, row.key, f"{text.took(row.took_ms)}{used}{tries}", "")
        elif row.state == "done":
            self._line(str(self._shown), row.name, row.key, text.clean(row.note, 200), "")
        else:
            word = {"failure": "failed", "fail": "failed"}.get(row.state, row.state)
            self._line(str(self._shown), row.name, row.key, f"{word}: {text.clean(row.note, 200)}{tries}", "red")

    def attempt_ended(self, attempt: Attempt, end: ChildEnd, said: Termination | None, follows: losses.Next) -> None:
        """Say why another attempt follows; the end of the run has its own line."""
        if not self._headed and self.history.last_attempt >= attempt:
            self._head()
        if isinstance(follows, losses.Restart) and not self._stopping:
            why = f"{end}" + (
                f" ({said.reason.value}: {text.clean(said.message, 200)})" if said and end.status > 0 else ""
            )
            when = "starting again" + (f" in {follows.after_s:.0f} s" if follows.after_s else "")
            count = ""
            if follows.loss is losses.LossClass.APPLICATION:
                count = f" (crash {follows.losses.application} of at most {losses.MAX_APPLICATION} without progress)"
            self.say(f"run {self.run} · attempt {attempt} lost · {why} · {when}{count}", "yellow")

    def waiting(self, park: Park) -> None:
        """What it waits for, and how to answer."""
        now = self.clock.now_epoch_ms()
        for wait in park.waits:
            label = f"{text.clean(wait.name or 'sleep', 60)} #{wait.key}"
            if wait.kind == "budget":
                self.say(f"run {self.run} · waiting · {label} · {text.clean(wait.reason, 400)}", "yellow")
                self.say(f"  raise it    {budgets.cure(self.run, wait.reason)}")
                continue
            if wait.kind == "timer":
                if wait.due is not None:
                    left = text.took(max(0, wait.due - now))
                    at = text.clock_time(wait.due, now)
                    self.say(f"run {self.run} · waiting · {label} until {at}, {left} from now", "magenta")
                continue
            what = "failed in all tries" if wait.kind == "exhausted" else "may have happened"
            self.say(f"run {self.run} · waiting · {label} {what}: {text.clean(wait.reason, 300)}", "yellow")
            if wait.arguments is not None:
                self.say(f"  arguments   {text.clean(json.dumps(wait.arguments, ensure_ascii=False), 300)}")
            self.say(f"  settle it   everstep local settle {self.run} {wait.key} --done VALUE | --again | --fail")

    def stopping(self, grace_s: float) -> None:
        """A stop was asked for."""
        self._stopping = True
        self.say(f"stopping · the step in flight has {grace_s:.0f} s to finish; Ctrl-C again ends it now", "yellow")

    def stopped(self) -> None:
        """Stopped before the end."""
        self.say(f"run {self.run} · stopped · {text.plural(self.history.recorded(), 'step')} recorded · go on with")
        self.say(f"  {self.resume}")

    def refused(self, status: int, said: Termination | None) -> None:
        """The agent said that another attempt is useless."""
        reason = said.reason.value if said else f"exit {status}"
        message = said.message if said else "the agent process left no message"
        self.say(f"run {self.run} · stopped · {reason}", "red")
        for line in message.splitlines():
            self.say(f"  {text.clean(line, 500)}")
        if status == ExitCode.JOURNAL_REFUSED:
            self.say(f"  look        everstep local verify {self.run}; everstep local steps {self.run}")
            self.say(f"  start over  everstep local delete {self.run}, or another --run-id")

    def given_up(self, status: int) -> None:
        """Too many crashes without progress."""
        self.say(
            f"run {self.run} · given up · crashed {losses.MAX_APPLICATION + 1} times without progress, last "
            f"{ChildEnd(status)}; what the agent printed says why · nothing is lost, the same command tries again",
            "red",
        )

    def finished(self) -> None:
        """The closing line, with counts from the journal alone."""
        history = self.history
        end = history.finished
        if end is None:
            return
        last = history.last_attempt
        replayed, run, steps = history.replayed(last), history.run_by(last), history.recorded()
        parts = [f"run {self.run}", end.outcome if self._attempt else f"{end.outcome} already"]
        if end.outcome != "succeeded" and end.type:
            parts.append(text.clean(f"{end.type}: {end.message}", 300))
        before = f", {steps - replayed - run} before" if steps > replayed + run else ""
        parts.append(f"{text.plural(steps, 'step')}, {replayed} replayed, {run} run{before}")
        parts.append(text.plural(history.last_attempt, "attempt"))
        paid = history.attempts[last].paid if last else 0
        if paid:
            parts.append(f"{text.plural(paid, 'model call')} not paid twice")
        self.say(" · ".join(parts), "green" if end.outcome == "succeeded" else "red")
        if end.outcome != "succeeded" and not self._attempt:  # nothing was run: the same command never will
            self.say(f"  start over: everstep local delete {self.run}, or another --run-id")

    def say(self, line: str, style: str = "") -> None:
        """One line, as it is."""
        from rich.text import Text

        self._console.print(Text(line, style=style))

    def _head(self) -> None:
        """The line that begins an attempt, once."""
        if self._headed:
            return
        self._headed = True
        parts = [f"run {self.run}", f"attempt {self._attempt}"]
        if self.history.records == 0:
            parts.append(f"journal {self.journal}")
        else:
            spent = f" in {text.took(self._replay_ms)}" if self._replay_ms is not None else ""
            parts.append(f"{text.plural(self.history.to_replay(), 'step')} replayed{spent}, chain verified")
            parts += _flight(self._in_flight)
        self.say(" · ".join(parts), "bold")

    def _line(self, count: str, name: str, key: str, rest: str, style: str) -> None:
        from rich.text import Text

        name = text.clean(name, 40)
        self._width = max(self._width, len(name))
        line = Text()
        line.append(f"{count:>5}  ", "dim")
        line.append(f"{name:<{self._width}}  ", style)
        line.append(f"#{key:<5} ", "dim")
        line.append(rest, style)
        self._console.print(line)


_AGAIN = {
    "read": "running again",
    "idempotent": "running again with the same key",
    "at_most_once": "may have happened, so its probe or a person decides",
}


def _flight(rows: Sequence[Row]) -> list[str]:
    """What was in flight when the earlier attempt ended, and what that means."""
    if len(rows) > 3:
        return [f"{len(rows)} steps were in flight"]
    return [f"{text.clean(r.name, 40)} #{r.key} was in flight: {_AGAIN.get(r.effect, '')}" for r in rows]
