"""What a live attempt tells of itself beside the journal (meta.progress). It informs people; nothing is decided from it.

{"attempt": 2, "state": "replaying" | "running" | "waiting" | "stopping", "step": {"key", "name", "state", "time"},
 "recorded": 36, "replayed": 36, "replay_ms": 11, "usage": {"inputTokens", "outputTokens", "costMicroUSD"}}
"""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

_ENCODER = json.JSONEncoder(separators=(",", ":"))


class Progress(NamedTuple):
    """`recorded` counts steps with an outcome in the journal, `replayed` those this attempt took from the record."""

    attempt: int
    state: str
    recorded: int = 0
    replayed: int = 0
    replay_ms: int | None = None
    """How long verification and replay took; None while replaying."""
    resumed_epoch_ms: int | None = None
    """When replay ended and the first live call could start."""
    step_key: str = ""
    step_name: str = ""
    step_state: str = ""
    """intent, result, failure, abandoned, uncertain."""
    step_epoch_ms: int = 0
    usage: Mapping[str, int] = MappingProxyType({})
    opened_seq: int = 0
    """Seq of the newest snapshot or segment that waits for an anchor, so that what is before it can be deleted; 0 = none."""
    warning: str = ""
    """A bound that is near, e.g. on steps; "" = none."""

    def to_bytes(self) -> bytes:
        fields = self._asdict()  # no deep copy: it rides along with every append
        fields["usage"] = dict(self.usage)
        return _ENCODER.encode(fields).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> "Progress | None":
        """None when it cannot be read: it only informs. What a newer SDK tells besides is passed over."""
        try:
            told = json.loads(raw)
            return cls(**{name: value for name, value in told.items() if name in _FIELDS})
        except (ValueError, TypeError, AttributeError):
            return None


_FIELDS = frozenset(Progress._fields)
