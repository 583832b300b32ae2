"""The signing keys of a directory: `.everstep/keys/s1.pem`, `s2.pem` …, made at first use, never overwritten, private."""

import os
from pathlib import Path

from everstep.errors import ConfigError
from everstep.journal.signing import FIRST_NAME, SigningKey, SigningRing
from everstep.local.files import LocalDir


def ring(where: LocalDir) -> SigningRing:
    """The keys of a directory; a first one is made where there is none. Raises ConfigError: no library, no right to write."""
    found = known(where)
    return found if found is not None else add(where)


def known(where: LocalDir) -> SigningRing | None:
    """The keys of a directory, None where there are none yet. Raises ConfigError."""
    try:
        keys = {path.stem: SigningKey(path.read_text(encoding="ascii")) for path in _home(where).glob("s*.pem")}
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{_home(where)}: a signing key cannot be read: {e}") from e
    return SigningRing(keys) if keys else None


def add(where: LocalDir) -> SigningRing:
    """One more key, which signs from now on; the older ones stay. Raises ConfigError."""
    found = known(where)
    name = FIRST_NAME if found is None else found.next_name
    key = SigningKey.new()
    try:
        _home(where).mkdir(mode=0o700, parents=True, exist_ok=True)
        _keep(_home(where) / f"{name}.pem", key.pem)
    except OSError as e:
        raise ConfigError(f"{_home(where)}: no signing key can be made there: {e.strerror or e}") from e
    made = known(where)
    assert made is not None, "a key was just made, by us or by another process"
    return made


def _home(where: LocalDir) -> Path:
    return where.root / "keys"


def _keep(path: Path, text: str) -> None:
    """Make a file whole or not at all; one that is there already stays."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(fd, "w", encoding="ascii") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        os.link(temporary, path)
    except FileExistsError:
        pass  # another process made it at the same time: its key is the one
    finally:
        os.unlink(temporary)
