"""Time that passes only when nothing is left to do: an hour's sleep takes no time in a test."""

import random
import selectors
from collections.abc import Callable

from everstep.clock import Clock
from everstep.ids import EpochMs

START_EPOCH_MS = 1_767_225_600_000
"""2026-01-01 UTC; where virtual time begins unless told otherwise."""
BOUND_S = 400 * 86_400.0
"""Nothing waits longer; more means that a run hangs."""


class VirtualClock(Clock):
    """Wall clock and monotonic clock advance together, by `advance` alone. Randomness comes from `seed`."""

    def __init__(self, seed: int = 0, start_epoch_ms: int = START_EPOCH_MS) -> None:
        self._start = start_epoch_ms
        self._elapsed_s = 0.0
        self._random = random.Random(seed)

    def advance(self, seconds: float) -> None:
        self._elapsed_s += seconds
        if self._elapsed_s > BOUND_S:
            raise AssertionError(f"{BOUND_S / 86_400:.0f} days of virtual time have passed: the run hangs")

    def now_epoch_ms(self) -> EpochMs:
        return EpochMs(self._start + int(self._elapsed_s * 1000))

    def monotonic_s(self) -> float:
        return self._elapsed_s

    def nonce(self) -> str:
        return self.random_bytes(16).hex()

    def random_bytes(self, size_bytes: int) -> bytes:
        return self._random.randbytes(size_bytes)


class VirtualSelector(selectors.DefaultSelector):
    """Lets the clock jump where a loop would wait. While `threads_busy` it waits really, as threads take real time."""

    def __init__(self, clock: VirtualClock, threads_busy: Callable[[], bool]) -> None:
        super().__init__()
        self._clock = clock
        self._threads_busy = threads_busy

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or (timeout is not None and timeout <= 0):
            return events
        if self._threads_busy() or timeout is None:
            return super().select(0.05)
        self._clock.advance(timeout)
        return events
