"""How long the other side asks to be left alone, as far as an exception tells.

Duck-typed, so that every HTTP client is understood without being imported: a number `retry_after_s` on the exception
(everstep.RetryAfter has it), else `retry-after-ms` or `Retry-After` (seconds or an HTTP date) in `error.response.headers` or
`error.headers`. The exception that caused it is asked, too: `raise NotDone("busy") from e`.
"""

import math

from everstep.ids import EpochMs


def asked_wait_s(error: BaseException, now: EpochMs) -> float | None:
    """Seconds, 0 or more; None if nothing was asked for, or nothing that can be read."""
    for told in (error, error.__cause__):
        if told is None:
            continue
        try:
            seconds = _told(told, now)
        except Exception:  # a stranger's object: whatever its attributes raise means that it tells nothing
            seconds = None
        if seconds is not None and math.isfinite(seconds):
            return max(0.0, seconds)
    return None


def _told(error: BaseException, now: EpochMs) -> float | None:
    direct = getattr(error, "retry_after_s", None)
    if isinstance(direct, int | float) and not isinstance(direct, bool):
        return float(direct)
    headers = getattr(getattr(error, "response", None), "headers", None) or getattr(error, "headers", None)
    if headers is None:
        return None
    ms = _header(headers, "retry-after-ms", "Retry-After-Ms")
    if ms is not None:
        return float(ms) / 1000
    text = _header(headers, "retry-after", "Retry-After")
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        from email.utils import parsedate_to_datetime  # as long as all the rest: only for a date

        return parsedate_to_datetime(text).timestamp() - now / 1000


def _header(headers: object, *names: str) -> str | None:
    get = getattr(headers, "get", None)
    if get is not None:
        for name in names:
            value = get(name)
            if value is not None:
                return str(value)
    return None
