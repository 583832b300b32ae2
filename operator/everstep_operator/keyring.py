"""The operator's chain keys: one Secret, made once if absent, never overwritten.

    data:  k1: <base64 of 32 bytes>     add k2 to rotate: new journals use the newest id, old journals keep the one they name

The chart does not make it, since templating tools would renew it at each sync, and a renewed key makes every journal
unverifiable.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from everstep.clock import Clock
from everstep.errors import ConfigError
from everstep.ids import JournalId
from everstep.journal.chain import Chain, derive_run_key, key_age
from everstep.journal.store import Head
from everstep_operator.cluster.api import Json
from everstep_operator.cluster.own import OwnSecrets, own_entries, own_secret

KEY_BYTES: Final = 32
FIRST_KEY_ID: Final = "k1"


@dataclass(frozen=True)
class KeyRing:
    """Operator keys by id. `current` is the newest id."""

    keys: Mapping[str, bytes] = field(repr=False)

    @property
    def current(self) -> str:
        return max(self.keys, key=key_age)

    def chain(self, journal: JournalId, key_id: str) -> Chain:
        """The chain of one journal. Raises KeyError for an id that is not there."""
        return Chain(journal, derive_run_key(self.keys[key_id], journal))

    def key_id_for_anchor(self, journal: JournalId, anchor: Head | None) -> str:
        """Which key a journal that does not exist yet was anchored with: (0, h0) may have been written under an older key."""
        if anchor is not None and anchor.seq == 0:
            for key_id in self.keys:
                if self.chain(journal, key_id).genesis() == anchor.hash:
                    return key_id
        return self.current


def read_keys(secret: Json, where: str) -> KeyRing:
    """The ring in a Secret. Raises ConfigError naming the key that cannot be used."""
    keys = own_entries(secret, where)
    for key_id, key in keys.items():
        if len(key) < KEY_BYTES:
            raise ConfigError(f"{where}: {key_id} holds {len(key)} bytes, {KEY_BYTES} are needed")
    if not keys:
        raise ConfigError(
            f"{where} holds no key; restore it from a backup, or delete it if no journal is worth keeping"
        )
    return KeyRing(keys)


async def load_or_create(own: OwnSecrets, name: str, clock: Clock) -> KeyRing:
    """The ring in the Secret; a Secret with one new key if there is none."""
    found = await own.made_once(name, lambda: _new_secret(name, clock.random_bytes(KEY_BYTES)))
    return read_keys(found, own.where(name))


def _new_secret(name: str, key: bytes) -> Json:
    note = "Chain keys of every journal. Back it up; without it no run can be verified or resumed."
    return own_secret(name, "chain-keys", note, {FIRST_KEY_ID: base64.b64encode(key).decode()})
