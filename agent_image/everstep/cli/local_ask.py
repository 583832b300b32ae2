"""`everstep local settle|cancel`: a person's word to a run, through its inbox."""

import asyncio
import sys
from pathlib import Path

import click

from everstep.cli import inspect, text
from everstep.cli.exits import EPILOG, Exit, Refusal, run_async
from everstep.cli.history import History
from everstep.cli.live import LiveOutput
from everstep.cli.local_run import resume_command, supervise_run
from everstep.cli.options import anchor_head, directory_option, local_store, me, need_run, run_argument, with_store
from everstep.cli.questions import decision, pick
from everstep.clock import SystemClock
from everstep.errors import ConfigError
from everstep.ids import InboxId
from everstep.journal.inbox import CancelBody, SettleBody, make_entry
from everstep.journal.store import Store
from everstep.local.files import LocalDir
from everstep.local.locks import FileLock
from everstep.local.sealing import chain_of
from everstep.local.spec import RunSpec
from everstep.local.supervisor import Options


@click.command(epilog=EPILOG)
@run_argument
@click.argument("step", metavar="STEP")
@click.option("--done", metavar="VALUE", help="It happened; VALUE (JSON, or text) is its result; null for none.")
@click.option("--again", is_flag=True, help="Run it again: exactly once more.")
@click.option("--fail", is_flag=True, help="Let the step fail; the agent sees StepFailed.")
@click.option("--reason", default="", help="Why; kept in the journal.")
@directory_option
def settle(run: str, step: str, done: str | None, again: bool, fail: bool, reason: str, directory: Path) -> None:
    """Decide a step that may have happened: STEP is its key (12) or name.

    The answer waits in the run's inbox; the run takes it up when it goes on.
    """
    where = LocalDir(directory)

    async def send(spec: RunSpec, store: Store) -> None:
        word, value = decision(done, again, fail)
        chain = await chain_of(where, spec, store)
        history = await inspect.read_history(store, chain, run, anchor_head(where, spec))
        row = pick(run, step, history.asked(), lambda r: r.key, lambda r: r.name)
        body = SettleBody(
            key=row.key,
            input=row.input,
            since=row.last_epoch_ms,
            decision=word,
            value=value,
            by=me(),
            reason=reason,
        )
        # One id per question and park: a second answer to the same question is refused. A run that could not take an answer (its
        # value does not fit the step) parks anew and says why; then another one may be given.
        asked = f"settle-{row.seq}-{history.park.seq if history.park else 'live'}"
        if not await store.inbox_add(spec.journal, make_entry(chain, InboxId(asked), body)):
            raise ConfigError(
                f"step #{row.key} of run {run} was answered already; the run takes that answer up when it goes on"
            )
        how = (
            "goes on now"
            if FileLock(where.supervisor_lock(spec.run)).is_held()
            else f"goes on with:\n  {resume_command(spec, where)}"
        )
        click.echo(f"{text.clean(row.name)} #{row.key} of run {run} settled as {word} by {me()}; the run {how}")

    with_store(where, run, send)


@click.command(epilog=EPILOG)
@run_argument
@click.option("--reason", default="", help="Why; kept in the journal.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0), default=60.0, show_default=True, metavar="SECONDS",
              help="How long to wait for a run that another process supervises.")  # fmt: skip
@directory_option
def cancel(run: str, reason: str, timeout_s: float, directory: Path) -> None:
    """Cancel a run: its agent is told, cleans up, and ends. Starts the agent for that if nothing runs it."""
    where = LocalDir(directory)
    sys.exit(run_async(lambda: _cancel(where, run, reason, timeout_s), run))


async def _cancel(where: LocalDir, run: str, reason: str, timeout_s: float) -> int:
    spec = need_run(where, run)
    store = local_store(where)
    try:
        chain = await chain_of(where, spec, store)
        history = await inspect.read_history(store, chain, run, anchor_head(where, spec))
        if history.finished is not None:
            raise ConfigError(f"run {run} is over already: {history.summary}")
        await store.inbox_add(spec.journal, make_entry(chain, InboxId("cancel-1"), CancelBody(by=me(), reason=reason)))
        if FileLock(where.supervisor_lock(spec.run)).is_held():
            history = await _until_finished(where, spec, store, timeout_s)
            click.echo(f"run {run} {history.finished.outcome if history.finished else ''}")
            return int(Exit.OK)
    finally:
        await store.aclose()
    live = LiveOutput(sys.stdout, run, str(where.journal_path), resume_command(spec, where), SystemClock())
    code = await supervise_run(where, spec, Options(), live, output=None)
    end = live.history.finished
    return int(Exit.OK) if end is not None and end.outcome == "cancelled" else code


async def _until_finished(where: LocalDir, spec: RunSpec, store: Store, timeout_s: float) -> History:
    chain, run = await chain_of(where, spec, store), spec.run
    clock = SystemClock()
    until = clock.monotonic_s() + timeout_s
    while True:
        history = await inspect.read_history(store, chain, run, anchor_head(where, spec))
        if history.finished is not None:
            return history
        if clock.monotonic_s() > until:
            raise Refusal(f"run {run} was told, but is still {history.summary} after {timeout_s:.0f} s", Exit.WAITING)
        await asyncio.sleep(0.2)
