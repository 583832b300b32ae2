"""What a step has used up of its tries and its time, and what follows a failed try. No I/O and no clock.

Everything here comes from the record: failures from `try_failed`, the beginning from the first `intent`. So a crash neither
gives tries back nor takes any.
"""

import logging
from typing import NamedTuple

from everstep.errors import NotDone
from everstep.ids import EpochMs
from everstep.run import debugging
from everstep.run.calls import StepCall
from everstep.run.retry_after import asked_wait_s

log = logging.getLogger("everstep.run")


class Verdict(NamedTuple):
    """What follows a failed try."""

    worth: bool = False
    """The error is one that another try may mend."""
    exhausted: str = ""
    """The bound that leaves no other try, in words; "" if there is one."""
    limit: str = ""
    """The entry of max_tries_by that counted this try."""
    wait_s: float = 0.0


class Tries:
    """Of one step call."""

    def __init__(self, call: StepCall) -> None:
        past = call.past
        self._call = call
        self._step = call.step
        self._retry = call.step.retry
        self.failures = past.failures if past else 0
        self._by = dict(past.failures_by or {}) if past else {}
        if past is not None:
            call.began = EpochMs(past.began)

    def renew(self, now: EpochMs, *, tries: bool) -> None:
        """A person let it run again: the time begins anew, with `tries` the tries as well."""
        self._call.began = now
        if tries:
            self.failures = 0
            self._by.clear()

    def left_s(self, now: EpochMs) -> float | None:
        """What total_timeout leaves, 0 or less if it has passed; None without one. The wall clock counts, so it runs on while no
        process does. Under a debugger there is none."""
        total_s = self._step.total_timeout_s
        if total_s is None or debugging.suspended():
            return None
        if not self._call.began:  # no intent yet: the budget holds its first try back
            return total_s
        return total_s - (now - self._call.began) / 1000

    def out_of_time(self) -> TimeoutError:
        return TimeoutError(f"no result within {self._step.total_timeout_s:g} s, the step's total_timeout")

    def failed(self, error: BaseException, now: EpochMs, chance: float, *, expired: bool = False) -> Verdict:
        """Count a failed try. `chance` is random in 0…1; `expired`: it was total_timeout that ended it."""
        retry = self._retry
        self.failures += 1
        limit = retry.limit_of(error)
        if limit is not None:
            self._by[limit[0]] = self._by.get(limit[0], 0) + 1
        name = limit[0] if limit else ""
        if not self._worth(error):
            return Verdict(limit=name)
        wait_s = retry.wait_s(self.failures, chance)
        asked_s = asked_wait_s(error, now)
        if asked_s is not None:
            wait_s = max(wait_s, min(asked_s, retry.retry_after_max_s))
        if limit is not None and self._by[name] >= limit[1]:
            return Verdict(True, f"max_tries_by allows {limit[1]} tries that end in {name}", name)
        if retry.max_tries is not None and self.failures >= retry.max_tries:
            return Verdict(True, f"max_tries is {retry.max_tries}", name)
        left_s = self.left_s(now)
        if expired or (left_s is not None and left_s <= wait_s):
            return Verdict(True, f"total_timeout of {self._step.total_timeout_s:g} s leaves no time for another", name)
        return Verdict(True, "", name, wait_s)

    def _worth(self, error: BaseException) -> bool:
        if self._step.effect == "at_most_once":
            return isinstance(error, NotDone)
        if not isinstance(error, self._retry.retry_on):
            return False
        if self._retry.retry_if is None:
            return True
        try:
            return bool(self._retry.retry_if(error))
        except Exception as e:  # a predicate that fails must not hide the step's own error
            log.warning("retry_if of step %s failed (%s: %s); no other try", self._step.name, type(e).__name__, e)
            return False
