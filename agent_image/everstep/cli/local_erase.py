"""`everstep local erase|rotate-key`: the keys of encrypted runs."""

from pathlib import Path

import click

from everstep.cli import text
from everstep.cli.exits import EPILOG, run_async
from everstep.cli.local_mend import not_running
from everstep.cli.options import directory_option, local_store, run_argument, with_store
from everstep.clock import SystemClock
from everstep.journal.store import Store
from everstep.local import sealing
from everstep.local.files import LocalDir
from everstep.local.spec import RunSpec


@click.command(epilog=EPILOG)
@run_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@directory_option
def erase(run: str, yes: bool, directory: Path) -> None:
    """Make what an encrypted run was told and has recorded unreadable, for ever.

    Its data key, goal, inputs and files of its last attempt are destroyed, and the other runs' keys are wrapped anew, so
    that older copies of the journal stay closed, too. What happened, when and in which order stays, and still verifies.
    """
    where = LocalDir(directory)

    async def go(spec: RunSpec, store: Store) -> None:
        with await not_running(where, spec):
            if not yes and spec.encrypt:
                click.confirm(f"make everything that run {run} recorded unreadable, for ever?", abort=True)
            await sealing.erase(where, spec, store, SystemClock())
            click.echo(f"run {run} erased; everstep local verify {run} still proves what happened")

    with_store(where, run, go)


@click.command("rotate-key", epilog=EPILOG)
@directory_option
def rotate_key(directory: Path) -> None:
    """Make a new key-encryption key and wrap every run's data key with it; no record is touched. The old one is destroyed."""
    where = LocalDir(directory)

    async def go() -> int:
        where.create()
        store = local_store(where)
        try:
            return await sealing.rotate(where, store, SystemClock())
        finally:
            await store.aclose()

    click.echo(f"{text.plural(run_async(go), 'data key')} wrapped anew")
