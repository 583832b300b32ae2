"""When a failed try is followed by another, and after how long."""

from dataclasses import dataclass

from everstep.errors import BadStep


@dataclass(frozen=True)
class Retry:
    """Tries of one step. A try that is lost with its process is no failure and does not count.

    `max_tries` counts all tries, the first included. The wait before try n + 1 is `backoff_s` · `factor`^(n - 1), at most
    `backoff_max_s`, shortened by a random part of up to `jitter` (0…1): many runs must not come back at the same moment.
    `retry_on` names the exceptions that are worth another try; others end the step at once. At-most-once steps are only ever
    tried again after NotDone, whatever this says.
    """

    max_tries: int = 3
    backoff_s: float = 1.0
    backoff_max_s: float = 60.0
    factor: float = 2.0
    jitter: float = 0.2
    retry_on: tuple[type[Exception], ...] = (Exception,)

    def __post_init__(self) -> None:
        if self.max_tries < 1:
            raise BadStep(f"Retry: max_tries must be at least 1, not {self.max_tries}")
        if self.backoff_s < 0 or self.backoff_max_s < 0 or self.factor < 1:
            raise BadStep("Retry: backoff_s and backoff_max_s must not be negative, factor must be at least 1")
        if not 0 <= self.jitter <= 1:
            raise BadStep(f"Retry: jitter must lie between 0 and 1, not {self.jitter}")

    def wait_s(self, failures: int, chance: float) -> float:
        """Seconds before the next try after `failures` failed ones; `chance` is random in 0…1."""
        whole = min(self.backoff_s * self.factor ** min(failures - 1, 64), self.backoff_max_s)
        return whole * (1 - self.jitter * chance)


ONCE = Retry(max_tries=1)
