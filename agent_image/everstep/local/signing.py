"""The signing keys of a directory: `.everstep/keys/s1.pem`, `s2.pem` …, made at first use, never overwritten, private."""

from everstep.errors import ConfigError
from everstep.journal.signing import FIRST_NAME, SigningKey, SigningRing
from everstep.local.files import LocalDir
from everstep.local.keyfiles import keep


def ring(where: LocalDir) -> SigningRing:
    """The keys of a directory; a first one is made where there is none. Raises ConfigError: no library, no right to write."""
    found = known(where)
    return found if found is not None else add(where)


def known(where: LocalDir) -> SigningRing | None:
    """The keys of a directory, None where there are none yet. Raises ConfigError."""
    try:
        keys = {path.stem: SigningKey(path.read_text(encoding="ascii")) for path in where.keys_dir.glob("s*.pem")}
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{where.keys_dir}: a signing key cannot be read: {e}") from e
    return SigningRing(keys) if keys else None


def add(where: LocalDir) -> SigningRing:
    """One more key, which signs from now on; the older ones stay. Raises ConfigError."""
    found = known(where)
    name = FIRST_NAME if found is None else found.next_name
    keep(where.keys_dir / f"{name}.pem", SigningKey.new().pem)
    made = known(where)
    assert made is not None, "a key was just made, by us or by another process"
    return made
