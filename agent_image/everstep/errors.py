"""Every error of the SDK, in one tree that answers one question: is it worth trying again?

EverstepError
├── RetryableError        the same call may succeed later
│   ├── JournalUnavailable
│   ├── ResourceFailed
│   └── RetryAfter        raised by a body: not now, but after so many seconds
└── TerminalError         the same call will fail again until something is changed
    ├── StepFailed, BudgetExceeded, NotDone, …  outcomes an agent may handle
    ├── ValueError-like refusals: NotJSON, ValueTooLarge, TooManySteps, OutsideStep, BadStep, …
    └── JournalError      JournalTampered, JournalLost, JournalUnreadable, Diverged

StopRun (BaseException)   signals that end the process; an agent's `except Exception` must not swallow them
├── Fenced, Frozen, Parked, Replayed, Terminated
├── ContinuedAsNew        unwinds the agent, which then starts again
└── Cancelled             a person's wish; the only one that unwinds agent code
"""

from everstep.ids import Attempt, RecordHash, Seq, StepKey


class EverstepError(Exception):
    """Base of all errors of this package."""

    retryable = False


class RetryableError(EverstepError):
    """The same call may succeed later."""

    retryable = True


class TerminalError(EverstepError):
    """The same call will fail again until something is changed."""


class JournalUnavailable(RetryableError):
    """The store did not answer, or refuses writes for now (full, read-only, loading). The outcome of a write is unknown:
    repeat the very same append with back-off."""


class RetryAfter(RetryableError):
    """Raised by a step's body: it failed for now, and is worth another try after `retry_after_s` seconds at the earliest. Counts
    as a failed try; needs a Retry that allows another one."""

    def __init__(self, seconds: float, message: str = "") -> None:
        super().__init__(message or f"to be tried again after {seconds:g} s")
        self.retry_after_s = seconds


class JournalError(TerminalError):
    """The journal cannot be used as it is; a person must act."""


class JournalTampered(JournalError):
    """A record was altered, swapped, dropped, or comes from elsewhere. `bad_seq` is the first record that does not fit."""

    def __init__(self, message: str, bad_seq: Seq) -> None:
        super().__init__(message)
        self.bad_seq = bad_seq


class JournalLost(JournalError):
    """The journal ends before the anchor: the store lost acknowledged records, or an old copy was restored."""

    def __init__(self, message: str, have: Seq, anchor: Seq) -> None:
        super().__init__(message)
        self.have = have
        self.anchor = anchor


class JournalConflict(JournalError):
    """Another record sits where ours should go, or records are missing before it (CONFLICT, GAP, NOLEASE after a claim)."""

    def __init__(self, message: str, confirmed_seq: Seq, confirmed_hash: RecordHash) -> None:
        super().__init__(message)
        self.confirmed_seq = confirmed_seq
        self.confirmed_hash = confirmed_hash


class JournalUnreadable(JournalError):
    """A record of an unknown kind or of a newer schema than this SDK knows. Use the SDK that wrote it, or a newer one."""

    def __init__(self, message: str, seq: Seq) -> None:
        super().__init__(message)
        self.seq = seq


class Diverged(JournalError):
    """Agent code made another call than the record at that key tells; the journal is frozen."""


class ResourceFailed(RetryableError):
    """What an attempt needs besides the journal (everstep.resource, everstep.per_attempt) could not be had. It ends the attempt
    and not the run: nothing is recorded, and the next attempt tries again."""


class BadStore(TerminalError):
    """The store's URL or its configuration cannot carry a journal; the message says which setting to change."""


class ConfigError(TerminalError):
    """Entrypoint, goal, inputs or a setting is wrong; the message names it and says what to write instead. Exit 64."""


class OutsideStep(TerminalError):
    """Agent code did something that only a step body may do (socket, subprocess, thread, executor)."""


class NotInRun(TerminalError):
    """A step was called outside a run, where it would not be durable."""


class BadStep(TerminalError):
    """A step or agent is declared wrongly; raised at import."""


class BadCall(TerminalError):
    """A step was called in a way that cannot be replayed or would block: the wrong colour, inside another
    step's body, in a set."""


class AgentFailed(TerminalError):
    """The agent raised, so the run ended as failed. `type` and `message` are those of its exception."""

    def __init__(self, type: str, message: str, data: object = None) -> None:
        super().__init__(f"the agent failed: {type}: {message}")
        self.type = type
        self.message = message
        self.data = data


class LimitError(TerminalError):
    """Base of the limits: checked before anything is written."""


class NotJSON(LimitError):
    """A value cannot be journaled. The message names step and path, e.g. `file_ticket: argument body.due: datetime`."""


class ValueTooLarge(LimitError):
    """A value exceeds its bound. The message names step, size and bound."""


class TooManySteps(LimitError):
    """The run reached the limit of steps or records."""


class StepFailed(TerminalError):
    """A step ended in failure: raised live and on replay alike. `type` is the original exception's class name."""

    def __init__(
        self, type: str, message: str, data: object = None, *, step: str = "", key: StepKey | None = None
    ) -> None:
        super().__init__(f"{step or 'step'} failed: {type}: {message}")
        self.type = type
        self.message = message
        self.data = data
        self.step = step
        self.key = key


class BudgetExceeded(StepFailed):
    """The step was not begun: with it the run would use more than its budget (on_exceeded="fail"). Raised live and on replay
    alike. `data` is {"budget": {limit: {"limit", "spent", "reserved", "wanted"}}} of the limits in the way."""


class NotDone(TerminalError):
    """Raised by an at_most_once body (or returned by a probe) to say: the effect surely did not happen; it may be tried again."""


class MaybeDone(TerminalError):
    """Raised by an at_most_once body to say: the effect may have happened, nobody knows (a connection broke in the middle of a
    call). The step is then uncertain, and not failed: its probe or a person decides. Of other classes it is a failure as any."""


class StopRun(BaseException):
    """Base of the signals that end a run's process. Never caught by agent code's `except Exception`."""


class Fenced(StopRun):
    """A newer attempt owns the run (FENCED), or another process claimed this attempt (TAKEN): exit 75 at once, never retry."""

    def __init__(self, message: str, attempt: Attempt) -> None:
        super().__init__(message)
        self.attempt = attempt


class Parked(StopRun):
    """The run waits for an answer or a long timer; the process ends."""


class Terminated(StopRun):
    """The process was told to stop (SIGTERM); everything that was recorded is written, and another attempt goes on. Exit 143."""


class Replayed(StopRun):
    """The record was replayed to its end, and nothing more was asked for."""


class Frozen(StopRun):
    """The journal is frozen after a divergence or a conflict; nothing more is written."""


class ContinuedAsNew(StopRun):
    """Raised by everstep.continue_as_new(): leaves the agent function, which starts again with new inputs. Let it pass."""


class Cancelled(StopRun):
    """Somebody asked for the run to be cancelled. Unwinds agent code, bounded by the cancel grace time."""
