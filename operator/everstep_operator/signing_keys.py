"""The keys that sign exports: a Secret beside the chain keys, made once if absent, never overwritten.

    name  <name of the key Secret>-signing
    data  s1: <base64 of a PEM private key, PKCS 8, Ed25519>    add s2 to rotate: the newest name signs, older ones stay, since
                                                               `public-key` prints every public key there is

It is not in the key Secret, whose entries are all chain keys to operators of every version. Losing it loses no run: exports made
before stay provable by their public key, and a new one signs from then on.
"""

import base64
import binascii
import logging
from typing import Final

from everstep.errors import ConfigError
from everstep.journal.signing import FIRST_NAME, SigningKey, SigningRing
from everstep_operator.cluster.api import Json
from everstep_operator.cluster.own import OwnSecrets, own_secret
from everstep_operator.errors import ClusterRefused

SUFFIX: Final = "-signing"

log = logging.getLogger(__name__)


def secret_name(key_secret: str) -> str:
    """Of the Secret with the signing keys."""
    return key_secret + SUFFIX


def read_signing_keys(secret: Json, where: str) -> SigningRing:
    """The ring in a Secret. Raises ConfigError naming the key that cannot be used."""
    keys: dict[str, SigningKey] = {}
    for name, text in (secret.get("data") or {}).items():
        try:
            keys[name] = SigningKey(base64.b64decode(text, validate=True).decode("ascii"))
        except (binascii.Error, TypeError, ValueError) as e:
            raise ConfigError(f"{where}: {name} is not base64 of a PEM key") from e
        try:
            _ = keys[name].public
        except ConfigError as e:
            raise ConfigError(f"{where}: {name}: {e}") from e
    if not keys:
        raise ConfigError(f"{where} holds no key; restore it from a backup, or delete it and restart the operator")
    return SigningRing(keys)


async def make_if_absent(own: OwnSecrets, key_secret: str) -> None:
    """See that there is a signing key. Runs do not depend on it: where it cannot be made, that is logged, and exports say so.
    Raises ClusterUnavailable."""
    name = secret_name(key_secret)
    try:
        await own.made_once(name, lambda: _new_secret(name, SigningKey.new()))
    except (ClusterRefused, ConfigError) as e:
        log.warning("%s: no key that signs exports: %s", own.where(name), e)


def _new_secret(name: str, key: SigningKey) -> Json:
    note = "Keys that sign exports of journals. Public halves: kubectl everstep public-key."
    return own_secret(name, "signing-keys", note, {FIRST_NAME: base64.b64encode(key.pem.encode()).decode()})
