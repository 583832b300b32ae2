"""What holds a step up: a question to a person, or the time until its next try; and how the park record tells of it."""

import asyncio
import json
from dataclasses import dataclass

from everstep.ids import EpochMs
from everstep.journal.records import Json, Uncertain, Waited, canonical
from everstep.run.calls import StepCall
from everstep.run.masking import masked

ARGUMENTS_SHOWN_BYTES = 4096
REASON_MAX = 1024


@dataclass(eq=False, repr=False)
class Question:
    """A step that waits for a person: uncertain, or with its tries used up."""

    asked: Uncertain
    reason: str
    answer: asyncio.Future[bool]
    """Resolved with True for `again`."""
    refused: str = ""
    """Why the last answer was not taken."""

    @property
    def since(self) -> EpochMs:
        return EpochMs(self.asked.time)

    @property
    def exhausted(self) -> bool:
        return bool(self.asked.exhausted)

    def waited(self, call: StepCall) -> Waited:
        """For the park record."""
        return Waited(
            kind="exhausted" if self.exhausted else "uncertain",
            key=call.key,
            name=call.step.name,
            input=call.digest,
            arguments=shown_arguments(call.args, call.step.mask),
            reason=(self.reason + (f". {self.refused}" if self.refused else ""))[:REASON_MAX],
            since=self.since,
        )


@dataclass(eq=False, repr=False)
class Pause:
    """The wait before the next try."""

    due: EpochMs
    since: EpochMs
    reason: str
    over: asyncio.Future[None]

    def waited(self, call: StepCall) -> Waited:
        """For the park record: to whoever wakes the run this is a timer."""
        reason = self.reason[:REASON_MAX]
        return Waited(kind="timer", key=call.key, name=call.step.name, reason=reason, since=self.since, due=self.due)


def shown_arguments(whole: object, mask: tuple[str, ...] = ()) -> Json:
    """The arguments as far as they fit, secrets masked: the longest are cut to text, so that a person still sees the others."""
    args = masked(whole, mask)
    raw = canonical(args)
    if len(raw) <= ARGUMENTS_SHOWN_BYTES or not isinstance(args, dict) or not args:
        return args if len(raw) <= ARGUMENTS_SHOWN_BYTES else None
    room = ARGUMENTS_SHOWN_BYTES // (2 * len(args))
    shown = {}
    for name, value in args.items():
        text = json.dumps(value, ensure_ascii=False)
        shown[name] = value if len(text.encode()) <= room else text[: room // 4] + "…"
    return shown if len(canonical(shown)) <= ARGUMENTS_SHOWN_BYTES else None
