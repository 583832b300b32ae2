"""What a live attempt tells of itself beside the journal (meta.progress). It informs people; nothing is decided from it.

{"attempt": 2, "state": "replaying" | "running" | "waiting" | "stopping", "step_key": "36", "step_name": "file_ticket", …,
 "recorded": 36, "replayed": 36, "replay_ms": 11, "usage": {"inputTokens", "outputTokens", "costMicroUSD"}, …}
"""

import msgspec

from everstep.journal.canonical import exactly


class Progress(msgspec.Struct, frozen=True):
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
    usage: dict[str, int] = {}
    opened_seq: int = 0
    """Seq of the newest snapshot or segment that waits for an anchor, so that what is before it can be deleted; 0 = none."""
    warning: str = ""
    """A bound that is near, e.g. on steps; "" = none."""

    def to_bytes(self) -> bytes:
        return msgspec.json.encode(self, enc_hook=exactly)  # it rides along with every append

    @classmethod
    def from_bytes(cls, raw: bytes) -> "Progress | None":
        """None when it cannot be read: it only informs. What a newer SDK tells besides is passed over."""
        try:
            return msgspec.json.decode(raw, type=cls)
        except (ValueError, RecursionError):
            return None
