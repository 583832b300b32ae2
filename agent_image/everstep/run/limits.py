"""How long a run may go on without a snapshot, and a warning before it may not.

A restart reads and replays all that follows the newest snapshot or segment. Both bounds are on that alone: a run that takes
snapshots has none on its whole length.
"""

import logging
from typing import TYPE_CHECKING

from everstep.errors import TooManySteps

if TYPE_CHECKING:
    from everstep.run.engine import Engine

log = logging.getLogger("everstep.run")
WARN_AT = 0.8
CURE = "everstep.snapshot(state) or everstep.continue_as_new(…) begin a new count; see docs/long-runs.md"


class Limits:
    """Of one attempt; counts from the newest snapshot or segment, over restarts alike."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._base_bytes = -engine.history.size_bytes
        self._warn_steps = int(engine.config.max_steps * WARN_AT)
        self._warn_bytes = int(engine.config.max_journal_bytes * WARN_AT)
        self.steps = 0
        """Step calls so far, replayed ones included."""
        self.warning = ""
        """What people should read before the wall; empty while it is far."""

    @property
    def journal_bytes(self) -> int:
        """Bytes of the records since the newest snapshot or segment."""
        return self._engine.writer.sealed_bytes - self._base_bytes

    def restart(self) -> None:
        """A new epoch begins."""
        self.steps = 0
        self.warning = ""
        self._base_bytes = self._engine.writer.sealed_bytes

    def step(self, name: str) -> None:
        """A step is called. Raises TooManySteps before anything is written."""
        self.steps += 1
        steps_max, bytes_max = self._engine.config.max_steps, self._engine.config.max_journal_bytes
        if self.steps > steps_max:
            raise TooManySteps(
                f"{name}: the run has made {steps_max} step calls {self._since}, which is the bound. A loop without end? "
                f"Else: {CURE}"
            )
        if self.steps >= self._warn_steps and not self.warning:
            self._warn(f"{self.steps:,} of at most {steps_max:,} step calls {self._since}")
        size_bytes = self.journal_bytes
        if size_bytes > self._warn_bytes:
            if size_bytes > bytes_max:
                raise TooManySteps(
                    f"{name}: the records {self._since} take {size_bytes} bytes; the bound is {bytes_max}, since a restart reads "
                    f"them all. {CURE}"
                )
            if not self.warning:
                self._warn(f"{size_bytes / 1e6:,.0f} of at most {bytes_max / 1e6:,.0f} MB of journal {self._since}")

    @property
    def _since(self) -> str:
        began = self._engine.epochs.began_seq
        return f"since the snapshot or segment at record {began}" if began else "since it began, without a snapshot"

    def _warn(self, what: str) -> None:
        self.warning = what
        log.warning("the run has used %s; at the bound it fails. %s", what, CURE)
