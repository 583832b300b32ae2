"""Ed25519 keys that sign exports: auditors check with the public half, which forges nothing.

A ring holds keys by name, `s1`, `s2` …; the newest name signs, older ones stay so that their public halves can be handed out. A
key's id is the first 16 hex digits of the SHA-256 of its 32 public bytes, so an id cannot be claimed for another key. Private
keys are kept as PEM (PKCS 8), public ones as PEM (SubjectPublicKeyInfo), which openssl reads, too.

The library `cryptography` is imported only here and in `everstep.journal.sealing`, and only when it is used.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from everstep.errors import ConfigError
from everstep.journal.chain import key_age

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ALGORITHM = "ed25519"
FIRST_NAME = "s1"
_MISSING = "the library `cryptography` is not installed; pip install 'everstep[integrity]'"


def available() -> bool:
    """Whether signatures can be made and checked here."""
    try:
        import cryptography.hazmat.primitives.asymmetric.ed25519  # noqa: F401 - only whether it is there
    except ImportError:
        return False
    return True


def require() -> None:
    """Raises ConfigError with the command to run where the library is missing."""
    if not available():
        raise ConfigError(_MISSING)


@dataclass(frozen=True)
class PublicKey:
    """Checks signatures."""

    raw: bytes
    """32 bytes."""

    @property
    def id(self) -> str:
        return hashlib.sha256(self.raw).hexdigest()[:16]

    def pem(self) -> str:
        """For a file. Raises ConfigError without the library."""
        require()
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        key = Ed25519PublicKey.from_public_bytes(self.raw)
        wanted = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        return key.public_bytes(*wanted).decode()

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Raises ConfigError without the library."""
        require()
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


@dataclass(frozen=True)
class SigningKey:
    """Makes signatures."""

    pem: str = field(repr=False)

    @classmethod
    def new(cls) -> "SigningKey":
        """A fresh one. Raises ConfigError without the library."""
        require()
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        raw = Ed25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return cls(raw.decode())

    @property
    def public(self) -> PublicKey:
        """Raises ConfigError if this is no Ed25519 key."""
        return PublicKey(self._load().public_key().public_bytes_raw())

    def sign(self, message: bytes) -> bytes:
        """64 bytes. Raises ConfigError if this is no Ed25519 key."""
        return self._load().sign(message)

    def _load(self) -> "Ed25519PrivateKey":
        require()
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            key = load_pem_private_key(self.pem.encode(), password=None)
        except (ValueError, TypeError) as e:
            raise ConfigError(f"the signing key cannot be read: {e}") from e
        if not isinstance(key, Ed25519PrivateKey):
            raise ConfigError("the signing key is not an Ed25519 key")
        return key


@dataclass(frozen=True)
class SigningRing:
    """Signing keys by name; never empty."""

    keys: Mapping[str, SigningKey]

    @property
    def current(self) -> SigningKey:
        return self.keys[self.names[-1]]

    @property
    def names(self) -> list[str]:
        """Oldest first."""
        return sorted(self.keys, key=key_age)

    @property
    def next_name(self) -> str:
        """For the key after the newest."""
        return f"s{max(int(name[1:]) for name in self.keys if name[1:].isdigit()) + 1}"

    def public_text(self) -> str:
        """All public keys, each under a line `# s1 3f2a9c0d1e5b7788`, which readers of PEM skip."""
        parts = [f"# {name} {self.keys[name].public.id}\n{self.keys[name].public.pem()}" for name in self.names]
        return "".join(parts)


def read_public_keys(text: str, where: str) -> list[PublicKey]:
    """The public keys in a text of PEM blocks. Raises ConfigError naming what is wrong."""
    require()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    found = []
    end = "-----END PUBLIC KEY-----"
    for part in text.split(end)[:-1]:
        start = part.find("-----BEGIN PUBLIC KEY-----")
        try:
            key = load_pem_public_key((part[max(start, 0) :] + end).encode())
        except ValueError as e:
            raise ConfigError(f"{where}: not a public key in PEM: {e}") from e
        if not isinstance(key, Ed25519PublicKey):
            raise ConfigError(f"{where}: a public key is not Ed25519")
        found.append(PublicKey(key.public_bytes_raw()))
    if not found:
        raise ConfigError(f"{where}: holds no public key; `public-key` prints one")
    return found
