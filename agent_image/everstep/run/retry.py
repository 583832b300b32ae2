"""When a failed try is followed by another, and after how long."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from everstep.errors import BadStep

OnExhausted = Literal["fail", "ask"]


@dataclass(frozen=True)
class Retry:
    """Tries of one step. A try that is lost with its process is no failure and does not count.

    max_tries          tries in all, the first included; None = as many as the step's total_timeout allows
    backoff_s, factor  the wait before try n + 1 is backoff_s · factor^(n - 1) seconds,
    backoff_max_s      at most this,
    jitter             shortened by a random part of up to this (0…1): many runs must not come back at the same moment
    retry_on           the exceptions that are worth another try; others end the step at once
    retry_if           asked after retry_on, with the exception: False ends the step at once
    max_tries_by       closer bounds per kind of error: {TimeoutError: 2} = the second time-out ends the step. The first class
                       that fits an error counts it; max_tries holds besides
    retry_after_max_s  bound on the wait that the other side asks for (see everstep.RetryAfter). Up to it there is no try before
                       that wait is over, whatever the backoff says
    on_exhausted       when an error that is worth another try finds none left: "fail" raises StepFailed, "ask" parks the run for
                       a person, who says done with a value, again (with all tries anew) or fail

    At-most-once steps are only ever tried again after NotDone, whatever retry_on and retry_if say.
    """

    max_tries: int | None = 3
    backoff_s: float = 1.0
    backoff_max_s: float = 60.0
    factor: float = 2.0
    jitter: float = 0.2
    retry_on: tuple[type[Exception], ...] = (Exception,)
    retry_if: Callable[[Exception], bool] | None = None
    max_tries_by: Mapping[type[Exception], int] = field(default_factory=dict, hash=False)
    retry_after_max_s: float = 3600.0
    on_exhausted: OnExhausted = "fail"

    def __post_init__(self) -> None:
        if self.max_tries is not None and self.max_tries < 1:
            raise BadStep(f"Retry: max_tries must be at least 1, not {self.max_tries}")
        if self.backoff_s < 0 or self.backoff_max_s < 0 or self.factor < 1:
            raise BadStep("Retry: backoff_s and backoff_max_s must not be negative, factor must be at least 1")
        if not 0 <= self.jitter <= 1:
            raise BadStep(f"Retry: jitter must lie between 0 and 1, not {self.jitter}")
        if self.retry_if is not None and not callable(self.retry_if):
            raise BadStep(f"Retry: retry_if must be a function of the exception, not {self.retry_if!r}")
        for kind, tries in self.max_tries_by.items():
            if not (isinstance(kind, type) and issubclass(kind, Exception)) or tries < 1:
                raise BadStep(
                    f"Retry: max_tries_by maps exception classes to tries, at least 1; not {kind!r} to {tries!r}"
                )
        if self.retry_after_max_s < 0:
            raise BadStep(f"Retry: retry_after_max_s must not be negative, it is {self.retry_after_max_s}")
        if self.on_exhausted not in ("fail", "ask"):
            raise BadStep(f'Retry: on_exhausted must be "fail" or "ask", not {self.on_exhausted!r}')

    def wait_s(self, failures: int, chance: float) -> float:
        """Seconds before the next try after `failures` failed ones; `chance` is random in 0…1."""
        whole = min(self.backoff_s * self.factor ** min(failures - 1, 64), self.backoff_max_s)
        return whole * (1 - self.jitter * chance)

    def limit_of(self, error: BaseException) -> tuple[str, int] | None:
        """The entry of max_tries_by that counts this error: its name and its bound."""
        for kind, tries in self.max_tries_by.items():
            if isinstance(error, kind):
                return kind.__name__, tries
        return None


ONCE = Retry(max_tries=1)
