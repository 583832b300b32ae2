"""`everstep local run`: start a run, or go on with it."""

import asyncio
import json
import os
import shlex
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import click

from everstep.budget import Budget
from everstep.cli import inspect, show
from everstep.cli.budgets import budget_from, budget_options
from everstep.cli.exits import EPILOG, Exit, refusal
from everstep.cli.live import LiveOutput
from everstep.cli.options import directory_option, local_store, output_option
from everstep.clock import SystemClock
from everstep.contract import ExitCode
from everstep.errors import ConfigError, EverstepError
from everstep.ids import JournalId, RunName
from everstep.journal.signing import require
from everstep.local.files import LocalDir
from everstep.local.locks import FileLock
from everstep.local.removal import never_began, remove
from everstep.local.sealing import chain_of
from everstep.local.spec import RunSpec, check_entrypoint, check_run_id, check_sizes, differences, load
from everstep.local.supervisor import Ending, Options, Outcome, Supervisor


@click.command(epilog=EPILOG)
@click.argument("entrypoint", metavar="MODULE:FUNCTION")
@click.option("--goal", help="What the agent shall do.")
@click.option(
    "--goal-file", type=click.File("r", encoding="utf-8"), help="Read the goal from a file; - is standard input."
)
@click.option(
    "--input", "inputs", multiple=True, metavar="NAME=VALUE",
    help="An input of the agent; VALUE is read as JSON if it is JSON, else as text. Repeatable; wins over --inputs-file.",
)  # fmt: skip
@click.option("--inputs-file", type=click.File("r", encoding="utf-8"), help="Inputs as one JSON object.")
@click.option("--run-id", help="Name of the run; the same command again goes on with it. Default: a fresh name.")
@click.option("--encrypt", is_flag=True,
              help="Encrypt what is recorded; `everstep local erase` then makes it unreadable.")  # fmt: skip
@directory_option
@click.option("--supervise/--no-supervise", default=True, show_default=True,
              help="--no-supervise: one attempt in this very process, which keeps the terminal (for a debugger).")  # fmt: skip
@click.option("--always-replay", is_flag=True,
              help="A new process after each outcome of a step: shows at once what does not repeat itself.")  # fmt: skip
@click.option("--wait", is_flag=True, help="Wait for a person's answer instead of leaving the run parked (exit 3).")
@click.option("--grace", "grace_s", type=click.FloatRange(min=0), default=Options.grace_s, show_default=True, metavar="SECONDS",
              help="Time for the step in flight after Ctrl-C.")  # fmt: skip
@budget_options
@output_option("json")
def run(
    entrypoint: str,
    goal: str | None,
    goal_file: TextIO | None,
    inputs: tuple[str, ...],
    inputs_file: TextIO | None,
    run_id: str | None,
    encrypt: bool,
    directory: Path,
    supervise: bool,
    always_replay: bool,
    wait: bool,
    grace_s: float,
    output: str | None,
    **limits: Any,  # of budget_options
) -> None:
    """Run an agent here, journaled, and start it again after every loss.

    The same command again, after a kill -9 of the agent, of this command, or of the machine, goes on with the run: recorded steps
    are replayed, not repeated. A finished run prints its result.

    The same command with other limits (--max-tokens …) changes the budget from there on.

    \b
    everstep local run triage:run --goal "Triage the backlog" --input backlog=tickets.json --run-id monday
    """
    try:
        wanted = given_goal(goal, goal_file)
        given = given_inputs(inputs, inputs_file)
        check_entrypoint(entrypoint)
        check_sizes(wanted, given)
        where = LocalDir(directory)
        where.create()
        budget = Budget.from_json(budget_from(limits)).to_json()
        spec = asyncio.run(_spec(where, entrypoint, wanted, given, run_id, encrypt))
        if budget and budget != spec.budget:
            spec = replace(spec, budget=budget)
            spec.save(where.spec_path(spec.run))
        if always_replay and not supervise:
            raise ConfigError("--always-replay starts many processes; --no-supervise is for one. Take one of them")
        options = Options(grace_s=grace_s, wait_for_people=wait, always_replay=always_replay)
        code = asyncio.run(_run(where, spec, options, supervise, output))
    except EverstepError as e:
        raise refusal(e, run_id or "") from e
    sys.exit(code)


def given_goal(goal: str | None, goal_file: TextIO | None) -> str:
    """From --goal or --goal-file. Raises ConfigError."""
    if (goal is None) == (goal_file is None):
        raise ConfigError("give the goal either by --goal TEXT or by --goal-file FILE")
    if goal_file is None:
        return goal or ""
    try:
        return goal_file.read()
    except UnicodeDecodeError as e:
        raise ConfigError(f"--goal-file {goal_file.name}: not UTF-8 text: {e}") from e


def given_inputs(pairs: tuple[str, ...], inputs_file: TextIO | None) -> dict[str, object]:
    """From --input and --inputs-file. Raises ConfigError."""
    inputs: dict[str, object] = {}
    if inputs_file is not None:
        try:
            inputs = json.load(inputs_file)
        except ValueError as e:
            raise ConfigError(f"--inputs-file {inputs_file.name}: not JSON: {e}") from e
        if not isinstance(inputs, dict):
            raise ConfigError(
                f'--inputs-file {inputs_file.name}: must hold one JSON object, like {{"backlog": "tickets.json"}}'
            )
    seen: set[str] = set()
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError(f"--input {pair!r}: write NAME=VALUE, where NAME is a parameter of the agent's function")
        if name in seen:
            raise ConfigError(f"--input {name}: given twice")
        seen.add(name)
        try:
            inputs[name] = json.loads(value)
        except ValueError:
            inputs[name] = value
    return inputs


async def _spec(
    where: LocalDir, entrypoint: str, goal: str, inputs: dict[str, object], run_id: str | None, encrypt: bool
) -> RunSpec:
    """The run to go on with, or a new one. Raises ConfigError naming every difference to what it was started with."""
    clock = SystemClock()
    name = (
        check_run_id(run_id)
        if run_id is not None
        else RunName(f"{entrypoint.partition(':')[0][:40]}-{clock.nonce()[:6]}")
    )
    old = load(where.spec_path(name))
    found = (
        differences(old, entrypoint=entrypoint, goal=goal, inputs=inputs, encrypt=encrypt) if old is not None else []
    )
    if old is None or (found and await _freed(where, old)):
        journal = JournalId(f"{name}.{clock.nonce()[:16]}")
        where.anchor_path(name).unlink(missing_ok=True)  # of a fork that was never finished: nobody else leaves one
        if encrypt:
            require()
        spec = RunSpec(name, journal, entrypoint, goal, inputs, str(Path.cwd()), clock.now_epoch_ms(), encrypt=encrypt)
        spec.save(where.spec_path(name))
        return spec
    if found:
        raise ConfigError(
            f"run {name} exists and was started otherwise:\n  " + "\n  ".join(found)
            + "\nGo on with it by its own values, choose another --run-id for a new run, or remove it: "
            + f"everstep local delete {name}"
        )  # fmt: skip
    return replace(old, directory=str(Path.cwd()))  # the module is looked for where the command is given


async def _freed(where: LocalDir, old: RunSpec) -> bool:
    """Remove a run that was refused before its first record, so that the corrected command gets its name; True if done."""
    store = local_store(where)
    lock = FileLock(where.supervisor_lock(old.run))
    try:
        if not await lock.acquire():
            return False
        with lock:
            if not await never_began(where, old, store):
                return False
            await remove(where, old, store)
            return True
    finally:
        await store.aclose()


async def _run(where: LocalDir, spec: RunSpec, options: Options, supervise: bool, output: str | None) -> int:
    as_json = output == "json"
    live = LiveOutput(
        sys.stderr if as_json else sys.stdout,
        spec.run,
        _relative(where.journal_path),
        resume_command(spec, where),
        SystemClock(),
    )
    if as_json:
        options = replace(options, stdout_fd=sys.stderr.fileno())  # standard output is for the document alone
    return await supervise_run(where, spec, options, live, output=output, foreground=not supervise)


async def supervise_run(
    where: LocalDir, spec: RunSpec, options: Options, live: LiveOutput, *, output: str | None, foreground: bool = False
) -> int:
    """Supervise a run in this process, with its signals; prints the end and answers the exit code."""
    store = local_store(where)
    supervisor = Supervisor(where, spec, store, live, dict(os.environ), options)
    caught: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        caught.append(number)
        supervisor.request_stop()

    try:
        if foreground:
            live.say(f"run {spec.run} · one attempt in this process · journal {live.journal}", "bold")
            outcome = await supervisor.become_agent()
        else:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                asyncio.get_running_loop().add_signal_handler(number, stop, number)
            outcome = await supervisor.run()
        code = _close(live, outcome, caught)
        if outcome.ending is Ending.FINISHED:
            document = await inspect.result_document(store, await chain_of(where, spec, store), spec.run, live.history)
            if output == "json":
                show.as_json(document | {"steps": _counts(live), "attempts": live.history.last_attempt})
            elif code == Exit.OK:
                inspect.print_result(document, "text")
        elif output == "json":
            said = {"reason": outcome.said.reason.value, "message": outcome.said.message} if outcome.said else {}
            show.as_json(
                {"run": spec.run, "outcome": None, "ending": outcome.ending.value, "steps": _counts(live)} | said
            )
        return int(code)
    finally:
        await store.aclose()


def _close(live: LiveOutput, outcome: Outcome, caught: list[signal.Signals]) -> Exit:
    """Print why it is over; the exit code."""
    if outcome.ending is Ending.FINISHED:
        live.finished()
        end = live.history.finished
        return Exit.OK if end is not None and end.outcome == "succeeded" else Exit.FAILED
    if outcome.ending is Ending.WAITING:
        return Exit.WAITING
    if outcome.ending is Ending.INTERRUPTED:
        live.stopped()
        return Exit.INTERRUPTED if caught[:1] == [signal.SIGINT] else Exit.TERMINATED
    if outcome.ending is Ending.GIVEN_UP:
        live.given_up(outcome.status)
        return Exit.FAILED
    live.refused(outcome.status, outcome.said)
    return Exit.USAGE if outcome.status == ExitCode.BAD_CONFIG else Exit.REFUSED


def _counts(live: LiveOutput) -> dict[str, int]:
    """How many steps have an outcome, and how many of them the last attempt took from the record."""
    return {"recorded": live.history.recorded(), "replayed": live.history.replayed(live.history.last_attempt)}


def resume_command(spec: RunSpec, where: LocalDir) -> str:
    """The command line that goes on with a run."""
    goal = spec.goal if len(spec.goal) <= 200 else "…"
    words = ["everstep", "local", "run", spec.entrypoint, "--goal", goal]
    for name, value in spec.inputs.items():
        words += ["--input", f"{name}={_input_text(value)}"]
    words += ["--run-id", spec.run]
    if where.root != Path(".everstep"):
        words += ["--dir", str(where.root)]
    return shlex.join(words)


def _input_text(value: object) -> str:
    """How a value is written after --input NAME=, so that it is read back alike."""
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            return value
    return json.dumps(value, ensure_ascii=False)


def _relative(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd())) if path.is_absolute() else str(path)
    except ValueError:
        return str(path)
