"""What a rule answers: the run's state in words, the changed status, and what to do. `decide.status` turns it into a Decision."""

from dataclasses import dataclass, replace
from typing import Literal

from everstep.ids import EpochMs
from everstep_operator.api.models import AgentRunStatus
from everstep_operator.api.words import Reason, Summary
from everstep_operator.decide.model import Action, EmitEvent, EventType

Over = Literal["Succeeded", "Failed", "Cancelled"]


@dataclass(frozen=True)
class Plan:
    """`status` carries changed facts (attempt, attempts, losses, waiting …); conditions, summary, anchor and progress are
    computed from the plan afterwards."""

    status: AgentRunStatus
    summary: Summary
    reason: Reason | str
    message: str = ""
    over: Over | None = None
    """Not None: the verdict; Finished becomes True."""
    parked: bool = False
    suspended: bool = False
    reconciling: bool = False
    stalled: bool = False
    """Cannot go on unless somebody changes something (always so when failed)."""
    quiet: bool = False
    """Nothing is written: what stands in the status is as true as before."""
    actions: tuple[Action, ...] = ()
    events: tuple[EmitEvent, ...] = ()
    again: bool = False
    look_again: EpochMs | None = None
    urgent: bool = True
    """False: only progress changed; the write may wait for its interval."""

    def plus(self, *actions: Action) -> "Plan":
        return replace(self, actions=(*self.actions, *actions))

    def tell(self, *events: EmitEvent) -> "Plan":
        return replace(self, events=(*self.events, *events))


def normal(reason: str, note: str) -> EmitEvent:
    """A Normal Event, its note cut to what an Event holds."""
    return EmitEvent(EventType.NORMAL, reason, _bounded(note))


def warning(reason: str, note: str) -> EmitEvent:
    """A Warning Event, its note cut to what an Event holds."""
    return EmitEvent(EventType.WARNING, reason, _bounded(note))


def _bounded(note: str) -> str:
    """An Event's note holds 1,024 bytes."""
    raw = note.encode()
    return note if len(raw) <= 1024 else raw[:1020].decode(errors="ignore") + "…"
