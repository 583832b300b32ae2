"""Encrypted payloads: what a run was told and what it made is unreadable without its data key; what happened, when and in
which order is not, so that the chain is proved, exported and listed without any key.

A record is sealed after it was made and before it is hashed. Its payload fields (FIELDS, and the same in each of a park's
`waits` and of the records that a snapshot or segment has `kept`) become

    {"$enc": {"k": "<data key id>", "n": "<base64 nonce, 12 random bytes>", "c": "<base64 of AES-256-GCM ciphertext and tag>"}}

over the canonical JSON of the value, with "everstep/payload/1" ‖ 0 ‖ journal id ‖ 0 ‖ seq ‖ 0 ‖ kind ‖ 0 ‖ field as
associated data, so that none can be moved to another place. The record then carries `"sealed": "<data key id>"`, which no
reader without this module takes for a record. Left as they are: empty values, references to blobs (`{"$blob": …}`; the
blob's own bytes are sealed alike, with "blob" in place of seq, kind and field, and named by the digest of the ciphertext),
keys, names, times, effect classes, error types, counts.

Digests of goal, inputs and arguments are sealed, too: a short value could be guessed from its digest. Inbox entries are
sealed with "inbox" and the entry's id in place of seq and kind.
"""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from everstep.errors import ConfigError, JournalUnreadable
from everstep.ids import JournalId, Seq
from everstep.journal.canonical import canonical
from everstep.journal.chain import key_age
from everstep.journal.store import Stored

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

FIELDS: Final = frozenset(
    {
        "value",
        "data",
        "message",
        "arguments",
        "state",
        "details",
        "reason",
        "input",
        "args",
        "goal",
        "inputs",
    }
)
KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
MARK: Final = "sealed"
ENCRYPTED: Final = "(encrypted)"
ERASED: Final = "(erased)"
_TEXTS: Final = frozenset({"message", "reason", "input", "goal"})
_NESTED: Final = ("waits", "kept")
"""Lists of objects with payload fields of their own: of a park, of a snapshot or segment."""
_ABOUT: Final = b"everstep/payload/1"


@lru_cache(maxsize=32)  # an operator opens many runs, and must not keep the keys of all of them
def cipher(key: bytes) -> "AESGCM":
    """AES-256-GCM under a key. Raises ConfigError without the library."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as e:
        raise ConfigError(
            "encryption needs the library `cryptography`, which is not installed; pip install 'everstep[integrity]'"
        ) from e
    return AESGCM(key)


@dataclass(frozen=True)
class Sealer:
    """Seals and opens the payloads of one journal. The newest data key seals, every key opens what it sealed.

    `hidden` is what readers without the key are shown in place of a payload; None: such a payload is an error."""

    journal_id: JournalId
    keys: Mapping[str, bytes] = field(repr=False)
    random_bytes: Callable[[int], bytes] = field(repr=False)
    hidden: str | None = None

    @property
    def seals(self) -> bool:
        return bool(self.keys)

    def seal(self, raw: bytes) -> bytes:
        """A record's canonical bytes with sealed payloads. Raises ConfigError without a key or the library."""
        data = json.loads(raw)
        return self._seal(data, str(data["seq"]), data["kind"])

    def open(self, raw: bytes, seq: Seq) -> bytes:
        """The bytes that were sealed; others as they are. Raises JournalUnreadable if the key is not here and nothing is shown
        in its place."""
        data = _marked(raw)
        return raw if data is None else self._open(data, seq, str(data.get("seq")), str(data.get("kind")))

    def seal_inbox(self, raw: bytes, entry_id: str) -> bytes:
        """As `seal`, for the body of an inbox entry."""
        return self._seal(json.loads(raw), "inbox", entry_id)

    def open_inbox(self, raw: bytes, entry_id: str) -> bytes:
        """As `open`, for the body of an inbox entry."""
        data = _marked(raw)
        return raw if data is None else self._open(data, Seq(0), "inbox", entry_id)

    def seal_blob(self, raw: bytes) -> bytes:
        """The bytes to store in place of a value's. The same value gives the same bytes, so that a blob that is put again
        keeps its name: its nonce is made from the value, by HMAC under the data key."""
        key_id, key = self._current()
        nonce = hmac.digest(key, b"everstep/blob-nonce/1" + raw, "sha256")[:NONCE_BYTES]
        return canonical({"$enc": self._encrypt(key_id, key, raw, ("blob",), nonce)})

    def open_blob(self, raw: bytes, seq: Seq) -> bytes:
        """The value's own bytes; JSON of the text to show where the key is not here. Raises JournalUnreadable."""
        try:
            sealed = json.loads(raw)["$enc"]
        except (ValueError, KeyError, TypeError) as e:
            raise JournalUnreadable(
                "a value kept beside the journal is not sealed, though the run is encrypted", seq
            ) from e
        opened = self._decrypt(sealed, seq, ("blob",))
        return canonical(self.hidden) if opened is None else opened

    def seal_text(self, text: str) -> str:
        """Of the live stream: `$enc:<data key id>:<nonce>:<ciphertext>`, bound to the journal alone."""
        key_id, key = self._current()
        sealed = self._encrypt(key_id, key, text.encode("utf-8", "replace"), ("live",))
        return ":".join(("$enc", sealed["k"], sealed["n"], sealed["c"]))

    def open_text(self, text: str) -> str:
        """What was said; nothing in a live stream is proved, so nothing is refused: what cannot be opened reads (encrypted)."""
        parts = text.split(":")
        if len(parts) != 4 or parts[0] != "$enc":
            return text
        try:
            opened = self._decrypt(dict(zip("knc", parts[1:], strict=True)), Seq(0), ("live",))
        except JournalUnreadable:
            return ENCRYPTED
        return self.hidden or ENCRYPTED if opened is None else opened.decode("utf-8", "replace")

    def _current(self) -> tuple[str, bytes]:
        if not self.keys:
            raise ConfigError("the run is encrypted, and its data key is not here")
        key_id = max(self.keys, key=key_age)
        return key_id, self.keys[key_id]

    def _seal(self, data: dict[str, Any], *place: str) -> bytes:  # Any: JSON data
        key_id, key = self._current()
        for holder, path in _holders(data):
            for name in FIELDS & holder.keys():
                if _worth_sealing(value := holder[name]):
                    holder[name] = {"$enc": self._encrypt(key_id, key, canonical(value), (*place, path + name))}
        data[MARK] = key_id
        return canonical(data)

    def _open(self, data: dict[str, Any], seq: Seq, *place: str) -> bytes:  # Any: JSON data
        del data[MARK]
        for holder, path in _holders(data):
            for name in FIELDS & holder.keys():
                value = holder[name]
                if not (isinstance(value, dict) and value.keys() == {"$enc"}):
                    continue
                opened = self._decrypt(value["$enc"], seq, (*place, path + name))
                if opened is not None:
                    holder[name] = json.loads(opened)
                elif name in _TEXTS or (name == "inputs" and holder.get("kind") == "run_started"):
                    holder[name] = self.hidden
                elif name in ("args", "inputs"):
                    del holder[name]
                else:
                    holder[name] = self.hidden
        return canonical(data)

    def _encrypt(
        self, key_id: str, key: bytes, plain: bytes, place: tuple[str, ...], nonce: bytes | None = None
    ) -> dict[str, str]:
        nonce = nonce or self.random_bytes(NONCE_BYTES)
        sealed = cipher(key).encrypt(nonce, plain, self._about(place))
        return {"k": key_id, "n": base64.b64encode(nonce).decode(), "c": base64.b64encode(sealed).decode()}

    def _decrypt(self, sealed: dict[str, Any], seq: Seq, place: tuple[str, ...]) -> bytes | None:  # Any: JSON data
        """None where the key is not here, and `hidden` is shown instead."""
        key = self.keys.get(sealed["k"])
        if key is None:
            if self.hidden is None:
                raise JournalUnreadable(
                    f"record {seq} is encrypted under data key {sealed['k']}, which is not here: it was erased, or never given",
                    seq,
                )
            return None
        from cryptography.exceptions import InvalidTag

        try:
            nonce, hidden = base64.b64decode(sealed["n"]), base64.b64decode(sealed["c"])
            return cipher(key).decrypt(nonce, hidden, self._about(place))
        except (InvalidTag, ValueError) as e:
            raise JournalUnreadable(
                f"record {seq} cannot be decrypted: data key {sealed['k']} is another one", seq
            ) from e

    def _about(self, place: tuple[str, ...]) -> bytes:
        return b"\0".join((_ABOUT, self.journal_id.encode(), *(part.encode() for part in place)))


def hidden(journal: JournalId, text: str = ENCRYPTED) -> Sealer:
    """For readers without any key: payloads are shown as `text`."""
    return Sealer(journal, {}, _no_random, text)


def opened_journal(
    sealer: Sealer, records: Sequence[Stored], blobs: Mapping[str, bytes]
) -> tuple[list[bytes], dict[str, bytes]]:
    """Records and blobs as they would be without encryption, for a journal that is taken elsewhere. Raises JournalUnreadable,
    ConfigError for an erased run."""
    if sealer.hidden is not None:
        raise ConfigError("the run was erased: what it recorded cannot be read")
    raws = [sealer.open(stored.record, stored.seq) for stored in records]
    found = {}
    for name, kept in blobs.items():
        value = sealer.open_blob(kept, Seq(0))
        plain_name = hashlib.sha256(value).hexdigest()
        found[plain_name] = value
        raws = [raw.replace(name.encode(), plain_name.encode()) if name.encode() in raw else raw for raw in raws]
    return raws, found


def _no_random(_size: int) -> bytes:
    raise ConfigError("the run is encrypted, and its data key is not here")


def _holders(data: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:  # Any: JSON data
    """The objects whose fields are payloads, each with the path before them."""
    found = [(data, "")]
    for name in _NESTED:
        inner = data.get(name)
        if isinstance(inner, list):
            found += [(part, f"{name}/{n}/") for n, part in enumerate(inner) if isinstance(part, dict)]
    return found


def _worth_sealing(value: object) -> bool:
    return value is not None and value != "" and not (isinstance(value, dict) and "$blob" in value)


def _marked(raw: bytes) -> dict[str, Any] | None:  # Any: JSON data
    """The data of a sealed record; None for one that is not."""
    if b'"' + MARK.encode() + b'":' not in raw:
        return None
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) and MARK in data else None
