"""Named fault points: places where tests kill, stop or delay a real process. Off unless EVERSTEP_FAULTS is set.

    EVERSTEP_FAULTS="before_append:3=kill;after_effect=stop"      point[:nth occurrence]=action; actions: kill, stop, exit75

A point costs one dictionary look-up when faults are off. Each point of the registry is exercised by tests/crash.
"""

import os
import signal
from collections import Counter

POINTS: dict[str, str] = {
    "after_claim": "the attempt is claimed, nothing is read yet",
    "after_verify": "the chain is verified, no agent code ran",
    "before_intent": "a step was called, its intent is not queued yet (M1)",
    "after_intent": "the intent is confirmed, the body has not started (M2)",
    "in_body": "the body is about to run, tools not yet called",
    "after_effect": "the body returned, its result is not queued yet (M3)",
    "after_result": "the result is queued, not yet written",
    "before_append": "an append is about to be sent",
    "after_append": "the store has the records, the reply is not processed (a lost reply)",
    "before_retry": "a try failed and the next one is not announced",
    "before_probe": "an uncertain step is about to be probed",
    "after_probe": "the probe answered, nothing is written",
    "before_park": "the park record is not written",
    "after_park": "the park record is written, the process has not ended (M4)",
    "in_replay": "a recorded outcome was delivered (M5)",
    "before_finished": "the agent returned, `finished` is not written",
    "after_finished": "`finished` is written, the process has not ended",
}
"""Every point and where it lies; the comments M1-M5 are the moments of the failure table."""

_armed: dict[str, tuple[int, str]] = {}
_seen: Counter[str] = Counter()


def arm(spec: str) -> None:
    """Arm points from the text of EVERSTEP_FAULTS. Raises ValueError naming an unknown point or action."""
    for part in filter(None, spec.split(";")):
        point, _, action = part.partition("=")
        name, _, nth = point.partition(":")
        if name not in POINTS:
            raise ValueError(f"unknown fault point {name!r}; known: {', '.join(POINTS)}")
        if action not in {"kill", "stop", "exit75"}:
            raise ValueError(f"unknown action {action!r} for fault point {name}; known: kill, stop, exit75")
        _armed[name] = (int(nth or 1), action)


def disarm() -> None:
    """Forget all armed points (tests)."""
    _armed.clear()
    _seen.clear()


def reach(point: str) -> None:
    """Say that execution reached a point; acts only if a test armed it."""
    if point not in _armed:
        return
    _seen[point] += 1
    nth, action = _armed[point]
    if _seen[point] != nth:
        return
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        os._exit(75)
