"""`everstep local fork`: another run that begins with the proved steps of one."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import click

from everstep import faults
from everstep.budget import Budget
from everstep.cli import inspect, show
from everstep.cli.budgets import budget_from, budget_options
from everstep.cli.exits import EPILOG
from everstep.cli.forks import STEP_HELP, fork_document, print_fork
from everstep.cli.local_run import given_goal, given_inputs, resume_command
from everstep.cli.options import anchor_head, directory_option, output_option, run_argument, with_store
from everstep.clock import SystemClock
from everstep.errors import ConfigError
from everstep.ids import JournalId, Owner, RunName
from everstep.journal import fork as forks
from everstep.journal.records import canonical
from everstep.journal.store import Store
from everstep.journal.verify import verify
from everstep.local.anchors import AnchorFile
from everstep.local.files import LocalDir
from everstep.local.sealing import chain_of, keyed
from everstep.local.spec import RunSpec, check_entrypoint, check_run_id, check_sizes, load
from everstep.run.values import digest


@click.command(epilog=EPILOG)
@run_argument
@click.option("--from-step", "step", required=True, metavar="KEY",
              help=STEP_HELP)  # fmt: skip
@click.option("--run-id", metavar="NEW", help="Name of the fork. Default: the run's name and a number.")
@click.option("--agent", "entrypoint", metavar="MODULE:FUNCTION", help="Another agent. Default: the run's own.")
@click.option("--goal", help="Another goal.")
@click.option(
    "--goal-file", type=click.File("r", encoding="utf-8"), help="Read the goal from a file; - is standard input."
)
@click.option(
    "--input", "inputs", multiple=True, metavar="NAME=VALUE",
    help="Another value of an input, as in `local run`; the others are kept. Repeatable.",
)  # fmt: skip
@click.option("--inputs-file", type=click.File("r", encoding="utf-8"), help="Other inputs as one JSON object.")
@budget_options
@directory_option
@output_option("json")
def fork(
    run: str,
    step: str,
    run_id: str | None,
    entrypoint: str | None,
    goal: str | None,
    goal_file: TextIO | None,
    inputs: tuple[str, ...],
    inputs_file: TextIO | None,
    directory: Path,
    output: str | None,
    **limits: Any,  # of budget_options
) -> None:
    """Make a new run out of the proved steps of RUN before a step, perhaps with other inputs, another goal or other code.

    What those steps did is kept and never repeated. Everything from KEY on is new: its effects happen, under new idempotency
    keys, even where RUN has made the like already. RUN itself is not changed.

    \b
    everstep local fork monday --from-step 12 --input model=large --run-id monday-large
    """
    where = LocalDir(directory)

    async def go(spec: RunSpec, store: Store) -> inspect.Document:
        wanted = spec.goal if goal is None and goal_file is None else given_goal(goal, goal_file)
        given = {**spec.inputs, **given_inputs(inputs, inputs_file)}
        check_sizes(wanted, given)
        name = _free_name(where, run, run_id)
        clock = SystemClock()
        budget = spec.budget
        if changes := budget_from(limits):
            budget = Budget.from_json(spec.budget or {}).changed(changes).to_json()
        made = replace(
            spec,
            run=name,
            journal=JournalId(f"{name}.{clock.nonce()[:16]}"),
            entrypoint=check_entrypoint(entrypoint) if entrypoint else spec.entrypoint,
            goal=wanted,
            inputs=given,
            directory=str(Path.cwd()),
            created=clock.now_epoch_ms(),
            budget=budget,
        )
        return await _make(where, store, spec, made, step)

    document = with_store(where, run, go)
    if output == "json":
        show.as_json(document)
    else:
        print_fork(document, f"go on with  {document['resume']}")


async def _make(where: LocalDir, store: Store, source: RunSpec, made: RunSpec, step: str) -> inspect.Document:
    """Write journal, anchor and spec, in this order: as long as there is no spec, there is no run, and the name is free."""
    await inspect.need_journal(store, source.journal, source.run, anchor_head(where, source))
    old = await chain_of(where, source, store)
    if old.sealer is not None and old.sealer.hidden is not None:
        raise ConfigError(f"run {source.run} was erased: what it recorded cannot be read, so nothing can begin with it")
    report = await verify(store, old, source.journal, anchor=anchor_head(where, source), keep=True)
    planned = forks.plan(report, source.run, step, old.sealer)
    if planned.segmented and dict(made.inputs) != dict(source.inputs):
        raise ConfigError(forks.SEGMENTED)
    started = {
        "run": made.run,
        "goal": digest(made.goal.encode()),
        "inputs": digest(canonical(dict(made.inputs))),
        "entrypoint": made.entrypoint,
    }
    async with keyed(where, made, store, SystemClock()) as (chain, more):
        renamed = await forks.rename_blobs(store, old, chain, planned.blobs)
        sealed = forks.seal(chain, forks.begin(planned, started), renamed)
        faults.reach("before_fork")
        fields = {"name": made.run, "namespace": "local", **more}
        head = await forks.write(store, chain, Owner(f"fork-{os.getpid()}"), sealed, fields)
    await forks.copy_blobs(store, old, chain, planned.blobs)
    faults.reach("in_fork")
    AnchorFile(where.anchor_path(made.run), made.journal).replace(head, forks.ATTEMPT, SystemClock().now_epoch_ms())
    faults.reach("after_fork")
    made.save(where.spec_path(made.run))
    return fork_document(planned, report, made.run, made.journal) | {"resume": resume_command(made, where)}


def _free_name(where: LocalDir, run: str, given: str | None) -> RunName:
    if given is None:
        numbers = iter(range(2, 10_000))
        given = next(name for n in numbers if load(where.spec_path(name := check_run_id(f"{run[:45]}-{n}"))) is None)
    name = check_run_id(given)
    if load(where.spec_path(name)) is not None:
        raise ConfigError(f"run {name} exists; choose another --run-id, or remove it: everstep local delete {name}")
    return name
