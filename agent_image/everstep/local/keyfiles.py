"""Writing a key's file: private, whole or not at all, and never over another one."""

import contextlib
import os
from pathlib import Path

from everstep.errors import ConfigError


def keep(path: Path, text: str) -> None:
    """Make a file that only its owner reads; one that is there already stays. Durable on return. Raises ConfigError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with open(fd, "w", encoding="ascii") as f:
                f.write(text)
                f.flush()
                os.fsync(f.fileno())
            with contextlib.suppress(FileExistsError):  # another process made it at the same time: its key is the one
                os.link(temporary, path)
        finally:
            os.unlink(temporary)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as e:
        raise ConfigError(f"{path}: no key can be kept there: {e.strerror or e}") from e
