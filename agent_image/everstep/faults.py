"""Named fault points: places where tests kill, stop or delay a real process. Off unless EVERSTEP_FAULTS is set.

    EVERSTEP_FAULTS="before_append:3=kill;after_effect@2=stop"

Each part is point[:nth occurrence][@attempt]=action; without @attempt it acts in every attempt. Actions:

    kill   SIGKILL to this process. The kernel ignores that for PID 1 of a container: there use hold, and kill from outside
    stop   SIGSTOP to this process; same limit
    hold   print `everstep-fault: holding at <point>` on stderr and block this thread for ever
    oom    allocate memory until the kernel ends the process
    exit75 leave at once with exit code 75

A point costs one comparison and one dictionary look-up when faults are off. Each point of the registry is exercised by
tests/crash.
"""

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable

POINTS: dict[str, str] = {
    "after_claim": "the attempt is claimed, nothing is read yet",
    "after_verify": "the chain is verified, no agent code ran",
    "before_intent": "a step was called, its intent is not queued yet (M1)",
    "after_intent": "the intent is confirmed, the body has not started (M2)",
    "in_body": "the body is about to run, tools not yet called",
    "after_effect": "the body returned, its result is not queued yet (M3)",
    "before_artifact": "the body is over, none of its files is kept yet",
    "after_artifact": "its files are kept, its result is not queued yet",
    "in_restore": "one of the files that steps had made is about to be put back",
    "in_stream": "a chunk of a model's stream arrived and was passed on; its final message did not",
    "after_live": "words of a step are in the live stream; they prove nothing",
    "after_result": "the result is queued, not yet written",
    "before_append": "an append is about to be sent",
    "after_append": "the store has the records, the reply is not processed (a lost reply)",
    "before_retry": "a try failed and the next one is not announced",
    "before_heartbeat": "details of a heartbeat are about to be queued",
    "after_heartbeat": "details of a heartbeat are queued, not yet written",
    "before_question": "the tries of a step are used up, and the question to a person is not queued",
    "after_question": "that question is queued, not yet written",
    "before_probe": "an uncertain step is about to be probed",
    "after_probe": "the probe answered, nothing is written",
    "after_held": "the budget held a call back; the record of it is not durable yet",
    "after_raised": "a person's other budget was taken in; the record of it is not durable yet",
    "before_park": "the park record is not written",
    "after_park": "the park record is written, the process has not ended (M4)",
    "in_replay": "a recorded outcome was delivered (M5)",
    "before_snapshot": "a snapshot was asked for, its record is not queued yet",
    "after_snapshot": "the snapshot is queued, not yet written",
    "before_segment": "the agent left by continue_as_new, the segment is not written",
    "after_segment": "the segment is written, the agent has not started again",
    "before_fork": "a fork is planned, nothing of it is written",
    "in_fork": "records of a fork are written, it has no anchor",
    "after_fork": "a fork and its anchor are written, nobody knows its name yet",
    "before_compact": "the records before a snapshot are about to be deleted",
    "after_compact": "the records before a snapshot are gone, the reply is not processed",
    "before_key": "a data key was made, the fence that keeps it is not written",
    "in_erase": "the data key of a run is gone, its goal, inputs and files are still there",
    "in_rotate": "a new key-encryption key is there, it wraps nothing yet",
    "after_rotate": "the new key-encryption key wraps all data keys, the old one is still there",
    "before_finished": "the agent returned, `finished` is not written",
    "after_finished": "`finished` is written, the process has not ended",
}
"""Every point and where it lies; the comments M1-M5 are the moments of the failure table."""

ACTIONS = ("kill", "stop", "hold", "oom", "exit75")

_armed: dict[str, tuple[int, str]] = {}
_seen: Counter[str] = Counter()
_listener: Callable[[str], None] | None = None


def listen(listener: Callable[[str], None] | None) -> None:
    """Tell every point that is reached to `listener` (everstep.testing crashes runs within a test's process); None ends it."""
    global _listener  # noqa: PLW0603  # as the armed points: one per process
    _listener = listener


def arm(spec: str, attempt: int) -> None:
    """Arm points from the text of EVERSTEP_FAULTS for this attempt. Raises ValueError naming an unknown point or action."""
    for part in filter(None, spec.split(";")):
        place, _, action = part.partition("=")
        place, _, only = place.partition("@")
        name, _, nth = place.partition(":")
        if name not in POINTS:
            raise ValueError(f"unknown fault point {name!r}; known: {', '.join(POINTS)}")
        if action not in ACTIONS:
            raise ValueError(f"unknown action {action!r} for fault point {name}; known: {', '.join(ACTIONS)}")
        if not only or int(only) == attempt:
            _armed[name] = (int(nth or 1), action)


def disarm() -> None:
    """Forget all armed points (tests)."""
    _armed.clear()
    _seen.clear()


def reach(point: str) -> None:
    """Say that execution reached a point; acts only if a test armed it."""
    if _listener is not None:
        _listener(point)
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
    elif action == "hold":
        print(f"everstep-fault: holding at {point}", file=sys.stderr, flush=True)
        while True:
            signal.pause()
    elif action == "oom":
        hoard: list[bytes] = []
        while True:
            hoard.append(b"\x01" * (16 << 20))
    else:
        os._exit(75)
