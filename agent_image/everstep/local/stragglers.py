"""Processes an earlier attempt left behind: subprocesses of its step bodies, which outlive a SIGKILL of their parent.

A container's end ends everything in it; here the processes are found by a mark in the environment they inherited. While one of
them lives, nothing proves that an effect in flight did not happen after all. Needs /proc (Linux); elsewhere nothing is found and
the agent's lock alone speaks.
"""

import os
import signal
from pathlib import Path

ENV_MARK = "EVERSTEP_LOCAL_MARK"


def can_see() -> bool:
    """True where processes can be found at all, so that finding none means something."""
    return Path("/proc/self/environ").exists()


def find(mark: str, proc: Path = Path("/proc")) -> list[int]:
    """Process ids whose inherited environment carries the mark, without this process."""
    wanted = f"{ENV_MARK}={mark}".encode()
    found = []
    try:
        entries = [e for e in os.listdir(proc) if e.isdigit()]
    except OSError:
        return []
    for entry in entries:
        if int(entry) != os.getpid() and _carries(proc / entry / "environ", wanted):
            found.append(int(entry))
    return found


def end(mark: str) -> int:
    """Send SIGKILL to every process with the mark; how many there were. They are gone a moment later: ask `find` again."""
    ended = 0
    for pid in find(mark):
        try:
            handle = os.pidfd_open(pid)
        except (OSError, AttributeError):  # gone meanwhile, or no pidfd on this system
            continue
        try:
            # looked at again behind the handle: the number may have been given to another process meanwhile
            if _carries(Path(f"/proc/{pid}/environ"), f"{ENV_MARK}={mark}".encode()):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                ended += 1
        except OSError:
            continue
        finally:
            os.close(handle)
    return ended


def _carries(environ: Path, wanted: bytes) -> bool:
    try:
        return wanted in environ.read_bytes().split(b"\0")
    except OSError:  # gone, or another user's
        return False
