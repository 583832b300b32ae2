"""Options and arguments that several commands share, and the values they turn into."""

import getpass
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click

from everstep.cli.exits import run_async
from everstep.errors import ConfigError
from everstep.ids import RunName
from everstep.journal.open import open_store
from everstep.journal.store import Head, Store
from everstep.local.anchors import AnchorFile
from everstep.local.files import DEFAULT_DIR, LocalDir
from everstep.local.spec import RunSpec, load

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])  # Any: commands take whatever their options say

directory_option = click.option(
    "--dir",
    "directory",
    default=DEFAULT_DIR,
    show_default=True,
    envvar="EVERSTEP_DIR",
    show_envvar=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where journals are kept.",
)


def output_option(*formats: str) -> Callable[[F], F]:
    """`-o`, as kubectl has it. Without it: a table, or the plain text of the command."""
    return click.option(
        "-o", "--output", type=click.Choice(formats), default=None, metavar="|".join(formats), help="Output format."
    )


def _complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    where = ctx.params.get("directory") or Path(os.environ.get("EVERSTEP_DIR", DEFAULT_DIR))
    return [run for run in LocalDir(Path(where)).runs() if run.startswith(incomplete)]


run_argument = click.argument("run", metavar="RUN", shell_complete=_complete_run)


def need_run(directory: LocalDir, run: str) -> RunSpec:
    """The spec of a run. Raises ConfigError that lists what there is."""
    spec = load(directory.spec_path(RunName(run))) if "/" not in run else None
    if spec is None:
        known = directory.runs()
        there = f"there are: {', '.join(known[:10])}{' …' if len(known) > 10 else ''}" if known else "there are no runs"
        raise ConfigError(f"run {run!r} does not exist in {directory.root}; {there}")
    return spec


def local_store(directory: LocalDir) -> Store:
    """The SQLite store of local mode."""
    return open_store(directory.store_url, installation="local")


def anchor_file(directory: LocalDir, spec: RunSpec) -> AnchorFile:
    """The anchor of a run."""
    return AnchorFile(directory.anchor_path(spec.run), spec.journal)


def anchor_head(directory: LocalDir, spec: RunSpec) -> Head | None:
    """The anchored head; None if there is no anchor. Raises ConfigError when it cannot be read."""
    anchor = anchor_file(directory, spec).read()
    return anchor.head if anchor else None


def with_store(directory: LocalDir, run: str, read: Callable[[RunSpec, Store], Coroutine[object, object, T]]) -> T:
    """Run a coroutine function on a run's spec and its store; errors of the tree become refusals."""

    async def go() -> T:
        spec = need_run(directory, run)
        store = local_store(directory)
        try:
            return await read(spec, store)
        finally:
            await store.aclose()

    return run_async(go, run)


def me() -> str:
    """Who types this, for the journal."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no such user in this container
        return "unknown"
