"""Exceptions as data: type name, message, a little JSON. No class is ever imported to bring one back."""

import json

from everstep.errors import BudgetExceeded, StepFailed
from everstep.ids import StepKey
from everstep.journal.records import Failure, Json, canonical

MESSAGE_MAX = 8 * 1024
"""Bytes of a failure's message that are kept."""
TRY_MESSAGE_MAX = 1024
"""The same for a failed try that is followed by another: there may be thousands."""
TRY_MESSAGE_SHORT = 128
TRIES_TOLD_WHOLE = 16
"""After so many failed tries of a step the others are told in TRY_MESSAGE_SHORT bytes each."""
DATA_MAX = 16 * 1024


def error_type(error: BaseException) -> str:
    """The class name, without its module: what people read and compare."""
    return type(error).__name__[:200]


def error_message(error: BaseException, bound_bytes: int = MESSAGE_MAX) -> str:
    """Its text, cut to `bound_bytes` of UTF-8."""
    try:
        text = str(error)
    except Exception as e:  # a broken __str__ must not hide that the step failed
        text = f"(its message cannot be shown: {type(e).__name__})"
    raw = text.encode("utf-8", "replace")
    if len(raw) <= bound_bytes:
        return raw.decode()
    return raw[: bound_bytes - 3].decode("utf-8", "ignore") + "…"


def step_failed(record: Failure, key: StepKey) -> StepFailed:
    """What agent code gets for a failure, live and on replay alike."""
    held = record.type == BudgetExceeded.__name__ and isinstance(record.data, dict) and "budget" in record.data
    kind = BudgetExceeded if held else StepFailed
    return kind(record.type, record.message, record.data, step=record.name, key=key)


def try_message_max(failures: int) -> int:
    """The bound for the message of a step's `failures`-th failed try."""
    return TRY_MESSAGE_MAX if failures <= TRIES_TOLD_WHOLE else TRY_MESSAGE_SHORT


def error_data(error: BaseException) -> Json:
    """`error.data` if it is small JSON (or what a failed step of another call told); else None."""
    if isinstance(error, StepFailed):
        return {"step": error.step, "key": error.key, "type": error.type, "message": error_message(error, 2048)}
    try:
        data = getattr(error, "data", None)
        raw = canonical(data)
    except Exception:  # what cannot be told is left out; the failure itself is recorded
        return None
    return json.loads(raw) if len(raw) <= DATA_MAX else None
