"""Bounds and waits of one attempt's engine. Times are seconds."""

import math
from typing import NamedTuple

from everstep.budget import Budget
from everstep.contract import DEFAULT_CANCEL_GRACE_S, DEFAULT_GRACE_S, DEFAULT_PARK_LINGER_S
from everstep.ids import Attempt, JournalId

NO_GRACE_BOUND_S = 1e7
"""With `always_replay`: an attempt that ends itself waits for its bodies, however long they take."""


class EngineConfig(NamedTuple):
    """What the engine is told; built from AttemptSettings, or by `everstep.run` and tests."""

    journal_id: JournalId
    attempt: Attempt
    predecessor_dead: bool = False
    """Proof that every earlier process which may have something in flight is gone: only then a probe's "not done" counts."""
    grace_s: float = DEFAULT_GRACE_S
    cancel_grace_s: float = DEFAULT_CANCEL_GRACE_S
    park_linger_s: float = DEFAULT_PARK_LINGER_S
    """Timers longer than this park the run; `math.inf` waits for every timer in the process."""
    inbox_poll_s: float = 1.0
    """How soon an answer or a cancel is seen while the process lives. One small read per poll."""
    report_every_s: float = 10.0
    """How often an idle process tells of itself, and so learns that it was fenced."""
    body_cancel_s: float = 5.0
    """How long a cancelled or timed-out body may take to end before it is left behind."""
    probe_timeout_s: float = 60.0
    """Bound on a probe whose step has no timeout of its own."""
    max_steps: int = 100_000
    """Step calls since the newest snapshot or segment; more are a runaway loop, or a replay that takes minutes."""
    max_journal_bytes: int = 1 << 30
    """Bytes of the records since the newest snapshot or segment: a restart reads them all, and holds most of them."""
    compact: bool = True
    """Whether records before a snapshot are deleted once they are anchored."""
    count_bodies: bool = False
    """Whether each body that begins is counted under its step's key; for tests."""
    max_threads: int = 64
    """Bodies of sync steps of an async agent that run at the same time; the rest wait their turn."""

    budget: Budget | None = None
    """What the run may use, as given at this start. None: as the journal tells it."""
    always_replay: bool = False
    """End the attempt after each recorded outcome of a step, as after SIGTERM but without a bound for bodies in flight."""

    replay_only: bool = False
    """Stop with Replayed as soon as the record is consumed: no body runs and no record is written."""

    @property
    def parks_on_timers(self) -> bool:
        return self.park_linger_s < math.inf
