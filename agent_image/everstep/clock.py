"""The only module that reads clocks, randomness and fresh ids. Everything else is given a `Clock`."""

import os
import time
from typing import Protocol

from everstep.ids import EpochMs


class Clock(Protocol):
    """Time and randomness as the code sees them; tests pass their own."""

    def now_epoch_ms(self) -> EpochMs:
        """Wall-clock time. May jump; used for what people read and for durable deadlines."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never go back, for durations."""
        ...

    def nonce(self) -> str:
        """A fresh unguessable id: 32 hex digits."""
        ...

    def random_bytes(self, size_bytes: int) -> bytes:
        """Randomness from the operating system."""
        ...


class SystemClock:
    """The machine's own clock and randomness."""

    def now_epoch_ms(self) -> EpochMs:
        return EpochMs(time.time_ns() // 1_000_000)

    def monotonic_s(self) -> float:
        return time.monotonic()

    def nonce(self) -> str:
        return os.urandom(16).hex()

    def random_bytes(self, size_bytes: int) -> bytes:
        return os.urandom(size_bytes)
