"""Where step bodies raised, for the log of this process: a record keeps type and message, never a traceback."""

import traceback
from collections import deque

from everstep.errors import StepFailed
from everstep.run.errordata import error_message, error_type

KEPT = 16
"""Of the newest failed tries; each at most FRAMES deep. As text, since an exception would keep its frames alive."""
FRAMES = 20
_recent: deque[tuple[str, str, str]] = deque(maxlen=KEPT)


def keep(error: BaseException) -> None:
    """Remember where a body raised."""
    text = "".join(traceback.format_exception(error, limit=-FRAMES)).rstrip()
    _recent.append((error_type(error), error_message(error), text))


def traceback_of(failed: StepFailed) -> str:
    """The traceback behind a step's failure; empty if the failure was replayed or is long ago."""
    return next((text for kind, said, text in reversed(_recent) if (kind, said) == (failed.type, failed.message)), "")
