"""The hash chain that proves a journal whole.

    h(0) = H("everstep/1" ‖ journal id)
    h(n) = H(h(n-1) ‖ record bytes)          h(n-1) as 32 raw bytes; hashes are stored as lower-case hex

H is HMAC-SHA-256 under the run's key, or SHA-256 where there is none (local mode). The run's key is
HMAC-SHA-256(operator key, "everstep/run-key/1" ‖ journal id): the pod gets only its own run's key. Hashes are over the raw
stored bytes, never over a re-encoding.
"""

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from everstep.ids import JournalId, RecordHash

if TYPE_CHECKING:
    from everstep.journal.sealing import Sealer

_GENESIS = b"everstep/1"
_RUN_KEY = b"everstep/run-key/1"
_INBOX = b"everstep/inbox/1"


def derive_run_key(operator_key: bytes, journal_id: JournalId) -> bytes:
    """The key of one run's chain: 32 bytes."""
    return hmac.digest(operator_key, _RUN_KEY + journal_id.encode(), "sha256")


def key_age(key_id: str) -> tuple[int, str]:
    """Sorts numbered key ids, whatever keys they name, oldest first: shorter ones, then text order (k2 < k10)."""
    return len(key_id), key_id


@dataclass(frozen=True)
class Chain:
    """Computes the links of one journal. `key` None means plain SHA-256."""

    journal_id: JournalId
    key: bytes | None = None
    sealer: "Sealer | None" = field(default=None, repr=False, compare=False)
    """Seals and opens payloads, where the run is encrypted. Hashes are over sealed bytes, so links need it not."""

    def genesis(self) -> RecordHash:
        """h(0), the hash of the empty journal."""
        return RecordHash(self._digest(_GENESIS + self.journal_id.encode()))

    def link(self, prev: RecordHash, record: bytes) -> RecordHash:
        """h(n) from h(n-1) and the raw bytes of record n."""
        return RecordHash(self._digest(bytes.fromhex(prev) + record))

    def inbox_mac(self, entry_id: str, body: bytes) -> str:
        """MAC of an inbox entry, so that whoever writes the store cannot forge an answer."""
        return self._digest(_INBOX + self.journal_id.encode() + b"\0" + entry_id.encode() + b"\0" + body)

    def _digest(self, data: bytes) -> str:
        if self.key is None:
            return hashlib.sha256(data).hexdigest()
        return hmac.digest(self.key, data, "sha256").hex()
