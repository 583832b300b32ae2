"""What a probe answers about an at_most_once step that was in flight when its process was lost."""

import enum
from dataclasses import dataclass
from typing import Final, Generic, TypeAlias, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Done(Generic[T]):
    """The effect happened, and this is the step's result."""

    value: T


class Unsettled(enum.Enum):
    """The two answers without a value."""

    NOT_DONE = "not done"
    UNKNOWN = "unknown"


NOT_DONE: Final = Unsettled.NOT_DONE
"""The effect did not happen. It counts only if the process that may have been at it is proved dead."""
UNKNOWN: Final = Unsettled.UNKNOWN
"""Nobody can tell: the run asks a person."""

Probed: TypeAlias = Done[T] | Unsettled
"""What a probe answers; `Probed[Ticket]` for a step that returns a Ticket."""
