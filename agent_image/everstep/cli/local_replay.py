"""`everstep local replay`: a recorded run with the code as it is now, on a copy of its journal."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import click

from everstep.cli import show, text
from everstep.cli.agent_stack import Place, calling, waiting
from everstep.cli.exits import EPILOG, Exit, Refusal, refusal
from everstep.cli.local_change import enter, recorded
from everstep.cli.options import directory_option, output_option, run_argument, with_store
from everstep.errors import ConfigError, Diverged, EverstepError, Replayed
from everstep.journal.records import Finished
from everstep.local.files import LocalDir
from everstep.local.spec import check_entrypoint
from everstep.run.agents import load_agent
from everstep.run.calls import StepCall
from everstep.testing import Ended, MemoryRun
from everstep.testing.recorded import memory_run_of

Run = MemoryRun[Any]  # of any result


@click.command(epilog=EPILOG)
@run_argument
@click.option(
    "--until", metavar="STEP", help="Stop at the call of this step: its name, its key (t0/3), or both (look#t0/3)."
)
@click.option(
    "--pdb", "debug", is_flag=True, help="Open pdb at the agent's line: at --until, else where the replay ends."
)
@click.option("--agent", "entrypoint", metavar="MODULE:FUNCTION", help="Another agent; default: the run's own.")
@directory_option
@output_option("json")
def replay(
    run: str, until: str | None, debug: bool, entrypoint: str | None, directory: Path, output: str | None
) -> None:
    """Run the agent's code over what is recorded. No step runs, nothing is written, and the run may be under way.

    It tells whether the code still fits, and with --until or --pdb what the agent had in hand at that moment. If the code takes
    another way than the journal, the difference is shown (exit 65).

    \b
    everstep local replay monday --until look#7 --pdb
    """
    where = LocalDir(directory.resolve())  # the agent is imported from the run's own directory
    spec, told, _ = with_store(where, run, lambda spec, store: recorded(where, spec, store))
    try:
        name = spec.entrypoint if entrypoint is None else check_entrypoint(entrypoint)
        enter(spec)
        twin = memory_run_of(told, load_agent(name))
    except EverstepError as e:
        raise refusal(e) from e
    over = isinstance(twin.records[-1], Finished)
    watch = _Watch(twin, until, debug, over)
    twin.on_call = watch.called
    ended = twin.attempt(run_to_end=True) if over else twin.attempt(replay_only=True)
    _tell(run, name, watch, ended, output)


class _Watch:
    """Hears of each call of a step."""

    def __init__(self, run: Run, until: str | None, debug: bool, over: bool) -> None:
        self.run = run
        self.until = until
        self.debug = debug
        self.over = over
        self.calls: list[str] = []
        self.stack: list[FrameType] = []
        """Of the call that was made last."""
        self.places: list[Place] = []
        """Of the call at which the replay was stopped."""
        self.stopped_at: StepCall | None = None
        self.reached = False
        """--until was reached."""

    def called(self, call: StepCall) -> bool:
        engine = self.run.engine
        assert engine is not None
        self.calls.append(f"{call.step.name}#{call.key}")
        self.stack = calling(engine)
        if self._wanted(call) and not self.reached:
            self.reached = True
            if self.debug and self.stack and _pdb_at(self.stack[0]):
                return False
        elif engine.history.claims or self.over:
            return False
        self.stopped_at = call
        self.places = [Place.of(frame) for frame in self.stack]
        engine.stop(Replayed("stopped at a step"))
        return True

    def _wanted(self, call: StepCall) -> bool:
        return self.until in (call.key, call.step.name, f"{call.step.name}#{call.key}")


def _pdb_at(frame: FrameType) -> bool:
    """False: the person quit."""
    from everstep.cli.agent_pdb import Debugger

    return Debugger().open_at(frame)


def _tell(run: str, agent: str, watch: _Watch, ended: Ended[Any], output: str | None) -> None:
    error = ended.error if ended.kind == "stopped" else None
    engine = watch.run.engine
    if error is not None and not isinstance(error, Replayed | Diverged):
        raise refusal(error) if isinstance(error, EverstepError) else error
    if watch.until is not None and not watch.reached and not isinstance(error, Diverged):
        called = ", ".join(watch.calls[-8:])
        raise refusal(ConfigError(f"the replay makes no call {watch.until!r}; the last it makes: {called or 'none'}"))
    stacks = [watch.stack] if watch.stopped_at or isinstance(error, Diverged) else waiting(engine) if engine else []
    if watch.debug and not watch.reached and stacks and stacks[0]:
        _pdb_at(stacks[0][0])
    places = watch.places or [Place.of(frame) for frame in (stacks[0] if stacks else [])]
    message = str(error) if isinstance(error, Diverged) else ""
    if output == "json":
        stopped = watch.stopped_at
        show.as_json(
            {
                "run": run,
                "agent": agent,
                "replays": not message,
                "steps": watch.run.replayed_steps,
                "finished": watch.over and not stopped and not message,
                "stoppedAt": {"key": stopped.key, "name": stopped.step.name} if stopped else None,
                "places": [asdict(place) for place in places],
                "message": message,
            }
        )
        if message:
            raise click.exceptions.Exit(int(Exit.REFUSED))
    elif message:
        raise Refusal(f"run {run} does not replay with {agent}; nothing was written.\n{message}", Exit.REFUSED)
    else:
        _print(run, watch, places)


def _print(run: str, watch: _Watch, places: Sequence[Place]) -> None:
    steps = text.plural(watch.run.replayed_steps, "step")
    stopped = watch.stopped_at
    if stopped is None and watch.over:
        click.echo(f"run {run}: {steps} replayed to its end")
        return
    if stopped is None:
        engine = watch.run.engine
        where = f"the record ends; the agent {engine.delivery.code_does()}" if engine else "the record ends"
    elif watch.reached:
        where = f"stopped at step {stopped.step.name} #{stopped.key}"
    else:
        where = f"the record ends; next the code calls step {stopped.step.name} #{stopped.key}"
    click.echo(f"run {run}: {steps} replayed; {where}")
    for place in places:
        click.echo(f"  {place}")
