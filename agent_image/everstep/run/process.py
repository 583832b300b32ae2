"""The process contract of an attempt: settings in, exit code and termination message out (everstep/contract.py).

The process ends by os._exit, always: nothing that agent code left on the stack may run afterwards.
"""

import contextlib
import contextvars
import logging
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, TypeVar

from everstep import contract, faults
from everstep.budget import Budget
from everstep.clock import SystemClock
from everstep.contract import AttemptSettings, ContractError, ExitCode, StopReason, Termination
from everstep.errors import (
    BadStep,
    BadStore,
    ConfigError,
    Diverged,
    Fenced,
    JournalConflict,
    JournalError,
    JournalLost,
    JournalTampered,
    JournalUnavailable,
    JournalUnreadable,
    OutsideStep,
    StepFailed,
    Terminated,
)
from everstep.ids import Attempt as AttemptNumber
from everstep.ids import Owner, Seq
from everstep.journal.chain import Chain
from everstep.journal.open import open_store
from everstep.journal.records import Finished
from everstep.journal.store import Head
from everstep.run import debugging
from everstep.run.agents import load_agent
from everstep.run.attempt import Attempt, AttemptEnd, RunIdentity
from everstep.run.config import NO_GRACE_BOUND_S, EngineConfig
from everstep.run.lane import Lane
from everstep.run.loop import AgentLoop
from everstep.run.tracebacks import traceback_of

if TYPE_CHECKING:
    from everstep.journal.sealing import Sealer

log = logging.getLogger("everstep.run")
CLOSE_S = 2.0
E = TypeVar("E", bound=BaseException)


def main(env: Mapping[str, str]) -> NoReturn:
    """Run one attempt as the environment says, and end the process."""
    signal.signal(signal.SIGTERM, _leave_early)  # as process 1 of a container, SIGTERM would otherwise do nothing
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("everstep").setLevel(logging.INFO)  # the libraries' own lines per request would drown the steps
    try:
        settings = AttemptSettings.from_env(env)
        faults.arm(env.get(contract.ENV_FAULTS, ""), settings.attempt)
    except (ContractError, ValueError) as e:
        print(f"everstep: {e}", file=sys.stderr)
        _exit(ExitCode.BAD_CONFIG)
    code, said = run_process(settings)
    _tell(settings, said)
    _exit(code)


def run_process(settings: AttemptSettings) -> tuple[int, Termination]:
    """One attempt; its exit code and termination message."""
    if settings.debug:
        debugging.suspend()
    clock = SystemClock()
    lane = Lane(AgentLoop(clock))
    attempt: Attempt | None = None
    try:
        store = open_store(settings.store_url, installation=settings.installation, ca_path=settings.store_ca_path)
        entrypoint = settings.entrypoint
        attempt = Attempt(
            lane, store, lambda: load_agent(entrypoint), _identity(settings, clock), _config(settings), clock
        )
        _stop_on_signals(lane.loop, attempt)
        end = lane.loop.run_until_complete(lane.task(attempt.run(), "attempt"))
        return _ended(settings, end)
    except BaseException as e:
        return _stopped(settings, e, attempt.confirmed if attempt is not None else None)


def _stop_on_signals(loop: AgentLoop, attempt: Attempt) -> None:
    """No body may begin once the signal is there, so its handler says so at once; asyncio's own comes turns of the loop later."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        attempt.hold_back()
        loop.call_soon_threadsafe(attempt.terminate, context=contextvars.Context())  # it may interrupt agent code

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


def _identity(settings: AttemptSettings, clock: SystemClock) -> RunIdentity:
    return RunIdentity(
        Chain(settings.journal_id, settings.run_key, _sealer(settings, clock)),
        Owner(f"{settings.pod_uid or os.getpid()}-{clock.nonce()}"),
        goal=settings.goal,
        inputs=dict(settings.inputs),
        run_name=settings.run_name,
        namespace=settings.namespace,
        entrypoint=settings.entrypoint,
        image=settings.image,
        image_named=settings.image_named,
        key_id=settings.key_id,
        anchor_seq=settings.anchor_seq,
        anchor_hash=settings.anchor_hash,
    )


def _sealer(settings: AttemptSettings, clock: SystemClock) -> "Sealer | None":
    """Where the run is encrypted."""
    if not settings.data_keys:
        return None
    from everstep.journal.sealing import Sealer

    return Sealer(settings.journal_id, settings.data_keys, clock.random_bytes)


def _config(settings: AttemptSettings) -> EngineConfig:
    return EngineConfig(
        settings.journal_id,
        settings.attempt,
        predecessor_dead=settings.predecessor_dead,
        grace_s=NO_GRACE_BOUND_S if settings.always_replay else settings.grace_s,
        cancel_grace_s=settings.cancel_grace_s,
        park_linger_s=settings.park_linger_s,
        budget=Budget.from_json(settings.budget) if settings.budget is not None else None,
        always_replay=settings.always_replay,
    )


def _ended(settings: AttemptSettings, end: AttemptEnd) -> tuple[int, Termination]:
    record = end.record
    if not isinstance(record, Finished):
        names = ", ".join(f"{w.name or w.kind} ({w.key})" for w in record.waits)
        return ExitCode.OK, _said(settings, StopReason.PARKED, f"waits for {names}", end.head)
    if record.outcome == "failed":
        message = f"{record.type}: {record.message}"
        _explain(message, end.error)
        told = _told(settings, record.type, record.message)
        return ExitCode.AGENT_FAILED, _said(settings, StopReason.AGENT_FAILED, told, end.head)
    return ExitCode.OK, _said(settings, StopReason.FINISHED, record.outcome, end.head)


def _told(settings: AttemptSettings, kind: str, message: str) -> str:
    """An agent's error, for the termination message: on a cluster that stands in the pod's status."""
    if not (settings.data_keys and settings.pod_uid):
        return f"{kind}: {message}"
    from everstep.journal.sealing import ENCRYPTED

    return f"{kind}: {ENCRYPTED}"


def _explain(message: str, error: BaseException | None) -> None:
    """Log why the agent failed: its traceback, that of the step's body behind it, and last what the author should read first."""
    failed = _behind(error, StepFailed)
    if failed is not None and (text := traceback_of(failed)):
        log.error("step %s #%s failed:\n%s", failed.step, failed.key, text)
    log.error("the agent failed: %s", message, exc_info=error)
    outside = _behind(error, OutsideStep)
    if outside is not None and outside is not error:
        log.error("the agent failed: OutsideStep: %s", outside)


def _behind(error: BaseException | None, kind: type[E], depth: int = 0) -> E | None:
    """The first error of that kind in an agent's error: libraries wrap what they catch into groups and errors of their own."""
    if error is None or isinstance(error, kind):
        return error
    if depth > _DEPTH_MAX:
        return None
    inner = list(error.exceptions) if isinstance(error, BaseExceptionGroup) else []
    found = (_behind(e, kind, depth + 1) for e in [*inner, error.__cause__, error.__context__])
    return next((e for e in found if e is not None), None)


_DEPTH_MAX = 10


def _stopped(settings: AttemptSettings, error: BaseException, head: Head | None) -> tuple[int, Termination]:
    """An end without a record of its own."""
    code, reason = _CODES.get(type(error)) or _code_of_kind(error)
    if code == 1:
        traceback.print_exception(error)
        message = _told(settings, type(error).__name__, str(error))
    else:
        message = str(error)
        print(f"everstep: {message}", file=sys.stderr)
    bad_seq: Seq | None = None
    if isinstance(error, JournalTampered):
        bad_seq = error.bad_seq
    elif isinstance(error, JournalUnreadable):
        bad_seq = error.seq
    elif isinstance(error, JournalConflict):
        head = Head(error.confirmed_seq, error.confirmed_hash)
    return code, _said(settings, reason, message, head, bad_seq)


_CODES: dict[type[BaseException], tuple[int, StopReason]] = {
    Diverged: (ExitCode.JOURNAL_REFUSED, StopReason.DIVERGED),
    JournalTampered: (ExitCode.JOURNAL_REFUSED, StopReason.JOURNAL_TAMPERED),
    JournalLost: (ExitCode.JOURNAL_REFUSED, StopReason.JOURNAL_LOST),
    JournalConflict: (ExitCode.JOURNAL_REFUSED, StopReason.JOURNAL_LOST),
    JournalUnreadable: (ExitCode.JOURNAL_REFUSED, StopReason.JOURNAL_UNREADABLE),
    JournalUnavailable: (ExitCode.JOURNAL_UNREACHABLE, StopReason.JOURNAL_UNREACHABLE),
    Fenced: (ExitCode.SUPERSEDED, StopReason.FENCED),
    Terminated: (ExitCode.TERMINATED, StopReason.TERMINATED),
    BadStep: (ExitCode.BAD_CONFIG, StopReason.BAD_ENTRYPOINT),
    BadStore: (ExitCode.BAD_CONFIG, StopReason.BAD_CONFIG),
}


def _code_of_kind(error: BaseException) -> tuple[int, StopReason]:
    if isinstance(error, ConfigError):
        entrypoint = str(error).startswith("entrypoint")
        return ExitCode.BAD_CONFIG, StopReason.BAD_ENTRYPOINT if entrypoint else StopReason.BAD_INPUTS
    if isinstance(error, JournalError):
        return ExitCode.JOURNAL_REFUSED, StopReason.JOURNAL_UNREADABLE
    return 1, StopReason.AGENT_FAILED  # without a `finished` record: the process crashed


def _said(
    settings: AttemptSettings, reason: StopReason, message: str, head: Head | None, bad_seq: Seq | None = None
) -> Termination:
    return Termination(
        reason,
        message,
        AttemptNumber(settings.attempt),
        head.seq if head else Seq(0),
        head.hash if head else "",
        bad_seq,
    )


def _tell(settings: AttemptSettings, said: Termination) -> None:
    """Best effort: the journal says what counts."""
    path = Path(settings.termination_log)
    if settings.termination_log == contract.DEFAULT_TERMINATION_LOG and not path.exists():
        return  # not in a container
    try:
        path.write_text(said.to_json(), encoding="utf-8")
    except OSError as e:
        log.debug("the termination message could not be written: %s", e)


def _leave_early(_number: int, _frame: FrameType | None) -> None:
    _exit(ExitCode.TERMINATED)


def _exit(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
