"""Two locks per run. Both end with their holders, however these die.

`supervisor` is held by the one process that supervises the run. `agent` is opened by the supervisor, handed to the agent process
and closed again: while the agent or anything it forked lives, nobody else gets it. Getting it proves the old process gone.
"""

import asyncio
import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from everstep.errors import RetryableError


class RunBusy(RetryableError):
    """Another process on this machine supervises the run. `pid` is what it wrote, 0 if unknown."""

    def __init__(self, message: str, pid: int) -> None:
        super().__init__(message)
        self.pid = pid


@dataclass
class FileLock:
    """An exclusive flock on one file. The file stays: removing it would let two holders lock two files of one name."""

    path: Path
    fd: int = -1

    def try_acquire(self) -> bool:
        """True if the lock is ours now. Raises OSError when the file cannot be opened."""
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self.fd = fd
        self.sign(os.getpid())
        return True

    async def acquire(self, patience_s: float = 0.5) -> bool:
        """Try for a moment: whoever asks `is_held` holds the lock for an instant."""
        for _ in range(max(1, int(patience_s / 0.05))):
            if self.try_acquire():
                return True
            await asyncio.sleep(0.05)
        return False

    def sign(self, pid: int) -> None:
        """Write who holds the lock, for messages."""
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, f"{pid}\n".encode(), 0)

    def is_held(self) -> bool:
        """True if some process holds it now; makes no file."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def holder_pid(self) -> int:
        """Process id the holder wrote; for messages only."""
        try:
            return int(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return 0

    def close(self) -> None:
        """Give up our copy. The lock itself ends when the last copy (a child's) is closed."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> "FileLock":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
