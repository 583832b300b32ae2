"""Times on the wire: RFC 3339 in UTC, with milliseconds only where there are any."""

from datetime import UTC, datetime

from everstep.ids import EpochMs


def rfc3339(epoch_ms: EpochMs) -> str:
    """`2026-03-01T10:02:11Z`, or with `.250` where the milliseconds are not 0."""
    seconds, ms = divmod(epoch_ms, 1000)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{ms:03d}Z" if ms else f"{text}Z"


def epoch_ms(text: str | None) -> EpochMs | None:
    """The inverse; None for what is absent or no time."""
    if not text:
        return None
    try:
        return EpochMs(round(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000))
    except ValueError:
        return None


def whole_seconds(at: EpochMs) -> str:
    """For lastTransitionTime, which is shown and compared in seconds."""
    return rfc3339(EpochMs(at // 1000 * 1000))
