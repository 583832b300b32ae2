"""Named fault points of the operator: places where tests kill, stop or fail it. Off unless EVERSTEP_OPERATOR_FAULTS is set.

    EVERSTEP_OPERATOR_FAULTS="after_bump=kill;before_create_pod:2=fail"    point[:nth occurrence]=action

    kill   end this process as SIGKILL would (PID 1 of a container cannot send it to itself, so it then leaves by _exit(137))
    stop   SIGSTOP to this process, until somebody sends SIGCONT
    fail   raise FaultInjected: the reconcile is retried with backoff

A point acts once per process; with EVERSTEP_OPERATOR_FAULTS_DIR, a directory that outlives the container's restart, once
altogether. The SDK has its own points in `everstep.faults`.
"""

import os
import signal
import sys
from collections import Counter
from pathlib import Path

from everstep.errors import RetryableError

POINTS: dict[str, str] = {
    "before_observe": "a key was taken from the queue, nothing is read",
    "after_observe": "run, pods and journal were read, nothing is decided",
    "before_bump": "an attempt is due, status.attempt is the old one",
    "after_bump": "status.attempt is the new number, the journal still has the old fence",
    "before_fence": "the journal is about to be fenced",
    "after_fence": "the journal is fenced, no pod exists for the new attempt",
    "before_create_secret": "the run's Secret (key, store, goal, inputs) is about to be written",
    "after_create_secret": "the run's Secret is written",
    "before_create_pod": "the pod of the new attempt is about to be created",
    "after_create_pod": "the pod exists, the status does not tell of it yet",
    "before_delete_pod": "a pod is about to be deleted",
    "after_delete_pod": "the pod was deleted, the status does not tell of it yet",
    "after_pod_gone": "a pod was seen to be lost, nothing is done about it yet",
    "before_status": "the status is about to be written",
    "after_status": "the status is written",
    "before_create_request": "a HumanRequest is about to be created",
    "after_create_request": "the HumanRequest exists, its uid is not in the status yet",
    "before_inbox": "an answer or a cancel is about to be put into the inbox",
    "after_inbox": "the inbox has it, no attempt is started for it yet",
    "before_event": "an Event is about to be recorded",
    "before_fence_deleted": "a run is gone, its journal is not fenced yet",
    "after_fence_deleted": "the journal of a deleted run is fenced, deletedAt is not recorded",
    "before_sweep": "a journal is about to be deleted",
}
"""Every point and where it lies."""

ACTIONS = ("kill", "stop", "fail")

_done_dir: Path | None = None
_armed: dict[str, tuple[int, str]] = {}
_seen: Counter[str] = Counter()


class FaultInjected(RetryableError):
    """A test asked this action to fail."""


def arm(spec: str, done_dir: str = "") -> None:
    """Arm points from the text of EVERSTEP_OPERATOR_FAULTS. Raises ValueError naming an unknown point or action."""
    global _done_dir  # noqa: PLW0603 - one registry per process, as one environment
    _done_dir = Path(done_dir) if done_dir else None
    for part in filter(None, spec.split(";")):
        place, _, action = part.partition("=")
        name, _, nth = place.partition(":")
        if name not in POINTS:
            raise ValueError(f"unknown fault point {name!r}; known: {', '.join(POINTS)}")
        if action not in ACTIONS:
            raise ValueError(f"unknown action {action!r} for fault point {name}; known: {', '.join(ACTIONS)}")
        if not (_done_dir and (_done_dir / name).exists()):
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
    if _done_dir:
        _done_dir.mkdir(parents=True, exist_ok=True)
        (_done_dir / point).touch()
    print(f"everstep-fault: {action} at {point}", file=sys.stderr, flush=True)
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
        os._exit(137)
    elif action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        raise FaultInjected(f"fault point {point}: asked to fail")
