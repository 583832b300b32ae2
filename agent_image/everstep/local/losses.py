"""What follows when an agent process ended: a pure decision from how it ended, the newest record, and the losses so far.

    how it ended                                   class         what follows
    ---------------------------------------------  ------------  -----------------------------------------------------------
    any way, newest record `finished`              -             the run is over
    exit 0, newest record `park`                   -             wait for what it waits for
    64 bad configuration                           -             stop: another attempt would fail alike
    65 diverged, tampered, lost                    -             stop: a person must act
    69 journal unreachable, 75 superseded          disruption    start again after a pause, never given up
    killed by SIGKILL, SIGTERM, SIGHUP, SIGINT;    disruption    start again, at once the first time, never given up
    143 on SIGTERM
    any other signal (SIGSEGV, SIGABRT, …), 70     application   start again after a pause; given up after
    without `finished`, any other exit code                      MAX_APPLICATION losses without progress

Progress (the first `result` or `fired` of a key, or a person's `settled`) sets all counters back.
"""

import enum
import signal
from dataclasses import dataclass, replace

from everstep.contract import ExitCode
from everstep.journal.records import Record

MAX_APPLICATION = 3
"""Application losses in a row, without progress, that are answered by another attempt."""
BACKOFF_BASE_S = 1.0
BACKOFF_MAX_S = 60.0
"""Pauses double from base to max; no jitter, as one machine has one supervisor per run."""

_OUTSIDE_SIGNALS = {signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT}


class LossClass(enum.StrEnum):
    """Whose doing a loss was; each class has its own count."""

    DISRUPTION = "disruption"
    APPLICATION = "application"


@dataclass(frozen=True)
class ChildEnd:
    """How the agent process ended: as waitpid told."""

    status: int
    """Exit code, or minus the signal's number (as `subprocess` gives it)."""

    def __str__(self) -> str:
        if self.status >= 0:
            return f"exit {self.status}"
        try:
            return f"killed by {signal.Signals(-self.status).name}"
        except ValueError:
            return f"killed by signal {-self.status}"


@dataclass(frozen=True)
class Losses:
    """Losses since the last progress."""

    disruption: int = 0
    application: int = 0

    def plus(self, loss: LossClass) -> "Losses":
        if loss is LossClass.DISRUPTION:
            return replace(self, disruption=self.disruption + 1)
        return replace(self, application=self.application + 1)


@dataclass(frozen=True)
class Over:
    """The run finished."""


@dataclass(frozen=True)
class Waits:
    """The run is parked."""


@dataclass(frozen=True)
class Stop:
    """No further attempt; `status` is the agent's exit code or minus its signal."""

    status: int
    given_up: bool = False
    """True: too many application losses. False: the agent said that another attempt is useless."""


@dataclass(frozen=True)
class Restart:
    """Another attempt after a pause."""

    after_s: float
    loss: LossClass
    losses: Losses


Next = Over | Waits | Stop | Restart


def decide(end: ChildEnd, last: Record | None, losses: Losses) -> Next:
    """What follows. `losses` are those since the last progress, without this one."""
    if last is not None and last.kind == "finished":
        return Over()
    if end.status == ExitCode.OK and last is not None and last.kind == "park":
        return Waits()
    if end.status in (ExitCode.BAD_CONFIG, ExitCode.JOURNAL_REFUSED):
        return Stop(end.status)
    loss = classify(end)
    after = losses.plus(loss)
    if loss is LossClass.DISRUPTION:
        unsaid = end.status in (ExitCode.JOURNAL_UNREACHABLE, ExitCode.SUPERSEDED)
        return Restart(_pause_s(after.disruption - (0 if unsaid else 1)), loss, after)
    if after.application > MAX_APPLICATION:
        return Stop(end.status, given_up=True)
    return Restart(_pause_s(after.application), loss, after)


def classify(end: ChildEnd) -> LossClass:
    """The class of an end that was neither finish, park nor stop."""
    if end.status < 0 and -end.status in _OUTSIDE_SIGNALS:
        return LossClass.DISRUPTION
    if end.status in (ExitCode.JOURNAL_UNREACHABLE, ExitCode.SUPERSEDED, ExitCode.TERMINATED):
        return LossClass.DISRUPTION
    return LossClass.APPLICATION


def _pause_s(nth: int) -> float:
    return 0.0 if nth <= 0 else min(BACKOFF_MAX_S, BACKOFF_BASE_S * 2.0 ** (nth - 1))
