"""Data keys of runs, wrapped under a key-encryption key and kept in the journal's meta.

    meta field   dataKey/d1 = "w1:" ‖ base64(nonce, 12 bytes ‖ AES-256-GCM of the 32 bytes under key-encryption key w1)
                 associated data "everstep/data-key/1" ‖ 0 ‖ journal id ‖ 0 ‖ "d1"
                 dataKey/d1 = "erased:<epoch ms>" once it was erased: nothing opens the run's payloads any more

Rotating the key-encryption key wraps each data key anew and touches no record. Meta is not part of the chain, so that both
can be done to a finished run whose chain still verifies.
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from everstep.errors import ConfigError
from everstep.ids import EpochMs, JournalId
from everstep.journal.sealing import ERASED, KEY_BYTES, NONCE_BYTES, Sealer, cipher

FIELD: Final = "dataKey/"
FIRST_ID: Final = "d1"
_ABOUT: Final = b"everstep/data-key/1"
_TOMBSTONE: Final = "erased:"
_NAME: Final = re.compile(r"w[1-9][0-9]*", re.ASCII)


@dataclass(frozen=True)
class WrappingKeys:
    """Key-encryption keys by id, `w1`, `w2` …; the newest wraps. Raises ConfigError for another name: which key is the newest
    would be a guess, and a rotation removes the others."""

    keys: Mapping[str, bytes] = field(repr=False)

    def __post_init__(self) -> None:
        for name in self.keys:
            if not _NAME.fullmatch(name):
                raise ConfigError(
                    f"key-encryption keys are named w1, w2, …, and there is {name!r} among them: move it away, or give it the "
                    f"name it had"
                )

    @property
    def newest(self) -> int:
        """Number of the newest; 0 without any."""
        return max((int(name[1:]) for name in self.keys), default=0)

    @property
    def current(self) -> str:
        return f"w{self.newest}"


def named_keys(fields: Mapping[str, str]) -> set[str]:
    """Ids of the key-encryption keys that wrap a journal's data keys."""
    return {text.partition(":")[0] for text in wrapped_keys(fields).values() if not is_erased(text)}


def wrap(ring: WrappingKeys, journal: JournalId, key_id: str, key: bytes, random_bytes: Callable[[int], bytes]) -> str:
    """The text of the meta field. Raises ConfigError without the library."""
    name = ring.current
    nonce = random_bytes(NONCE_BYTES)
    sealed = cipher(ring.keys[name]).encrypt(nonce, key, _about(journal, key_id))
    return f"{name}:{base64.b64encode(nonce + sealed).decode()}"


def unwrap(ring: WrappingKeys, journal: JournalId, key_id: str, text: str) -> bytes:
    """The data key. Raises ConfigError naming the key-encryption key that is missing or another one."""
    name, _, wrapped = text.partition(":")
    if name not in ring.keys:
        raise ConfigError(f"the run's data key is wrapped under {name}, which is not here; restore it from a backup")
    from cryptography.exceptions import InvalidTag

    try:
        raw = base64.b64decode(wrapped, validate=True)
        return cipher(ring.keys[name]).decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], _about(journal, key_id))
    except (InvalidTag, ValueError, binascii.Error) as e:
        raise ConfigError(
            f"the run's data key {key_id} cannot be unwrapped: {name} is another key, or it was changed"
        ) from e


def _about(journal: JournalId, key_id: str) -> bytes:
    return b"\0".join((_ABOUT, journal.encode(), key_id.encode()))


def wrapped_keys(fields: Mapping[str, str]) -> dict[str, str]:
    """The wrapped data keys of a journal's meta, by id; erased ones too."""
    return {name.removeprefix(FIELD): text for name, text in fields.items() if name.startswith(FIELD)}


def is_erased(text: str) -> bool:
    """Whether the meta field of a data key says that the key was erased."""
    return text.startswith(_TOMBSTONE)


def was_erased(fields: Mapping[str, str]) -> bool:
    """Whether a data key of this journal was erased."""
    return any(is_erased(text) for text in wrapped_keys(fields).values())


def erased_fields(fields: Mapping[str, str], now: EpochMs) -> dict[str, str]:
    """What meta is set to when the run's data keys are erased."""
    return {
        FIELD + key_id: f"{_TOMBSTONE}{now}" for key_id, text in wrapped_keys(fields).items() if not is_erased(text)
    }


def rewrapped_fields(
    fields: Mapping[str, str], ring: WrappingKeys, journal: JournalId, random_bytes: Callable[[int], bytes]
) -> dict[str, str]:
    """What meta is set to so that the newest key-encryption key wraps all data keys. Raises ConfigError."""
    found = {}
    for key_id, text in wrapped_keys(fields).items():
        if not is_erased(text) and text.partition(":")[0] != ring.current:
            key = unwrap(ring, journal, key_id, text)
            found[FIELD + key_id] = wrap(ring, journal, key_id, key, random_bytes)
    return found


def new_key(
    ring: WrappingKeys, journal: JournalId, random_bytes: Callable[[int], bytes]
) -> tuple[Sealer, dict[str, str]]:
    """A fresh data key, and the meta field that keeps it: set it in the fence that makes the journal."""
    keys = fresh_keys(random_bytes)
    return Sealer(journal, keys, random_bytes), wrapped_fields(ring, journal, keys, random_bytes)


def fresh_keys(random_bytes: Callable[[int], bytes]) -> dict[str, bytes]:
    """The data keys of a new run, by id."""
    return {FIRST_ID: random_bytes(KEY_BYTES)}


def wrapped_fields(
    ring: WrappingKeys, journal: JournalId, keys: Mapping[str, bytes], random_bytes: Callable[[int], bytes]
) -> dict[str, str]:
    """The meta fields that keep these data keys. Raises ConfigError without the library."""
    return {FIELD + key_id: wrap(ring, journal, key_id, key, random_bytes) for key_id, key in keys.items()}


def sealer(
    fields: Mapping[str, str], ring: WrappingKeys, journal: JournalId, random_bytes: Callable[[int], bytes]
) -> Sealer | None:
    """For a journal that is there: None if it is not encrypted; payloads show as (erased) where the key was. Raises
    ConfigError."""
    wrapped = wrapped_keys(fields)
    if not wrapped:
        return None
    keys = {key_id: unwrap(ring, journal, key_id, text) for key_id, text in wrapped.items() if not is_erased(text)}
    gone = len(keys) < len(wrapped)
    return Sealer(journal, keys, random_bytes, ERASED if gone else None)
