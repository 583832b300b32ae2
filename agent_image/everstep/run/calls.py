"""What agent code waits for: step calls and timers, each under its key, until their outcome was delivered."""

import asyncio
import contextvars
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from everstep.budget import Reserve
from everstep.ids import EpochMs, Seq, StepKey
from everstep.journal.records import Json
from everstep.run.history import Past
from everstep.run.steps import Step


class Waiter(Protocol):
    """Where a step's outcome goes: an asyncio future, or the sync agent's thread."""

    def set_result(self, result: Any, /) -> None: ...  # the step's own result type
    def set_exception(self, exception: BaseException, /) -> None: ...
    def done(self) -> bool: ...


@dataclass(slots=True, eq=False, repr=False)
class StepCall:
    """One call of a step. `gone`: agent code does not wait for it any more (it was cancelled)."""

    key: StepKey
    step: Step[..., Any]  # of any signature
    args: Mapping[str, Json]
    digest: str
    context: contextvars.Context
    waiter: Any  # a Waiter; as asyncio.Future it is also awaited
    past: Past | None = None
    intent_seq: Seq = Seq(0)
    """Of the intent this process wrote and whose body has not begun."""
    reserve: Reserve | None = None
    """The most one try may use; asked of the step when it is first needed."""
    idem: str = ""
    """Its idempotency key, once it was asked for."""
    began: EpochMs = EpochMs(0)
    """When its first intent was made."""
    own_thread: bool = False
    """Its sync body never runs on the sync agent's own thread: others run beside it."""
    gone: bool = False
    delivered: bool = False


@dataclass(slots=True, eq=False, repr=False)
class TimerCall:
    """One durable timer. `live` is the real timer of this process."""

    key: StepKey
    due: EpochMs
    handle: asyncio.Handle
    past: Past | None = None
    gone: bool = False
    fired: bool = False
    live: asyncio.TimerHandle | None = None
    created: EpochMs = field(default=EpochMs(0))


Pending = StepCall | TimerCall
