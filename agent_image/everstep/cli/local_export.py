"""`everstep local export|public-key`: a run in one signed file, and the key that proves it."""

from pathlib import Path

import click

from everstep.cli import text
from everstep.cli.exits import EPILOG, refusal
from everstep.cli.exports import file_option, target
from everstep.cli.options import anchor_head, directory_option, run_argument, with_store
from everstep.clock import SystemClock
from everstep.errors import ConfigError, EverstepError
from everstep.journal.chain import Chain
from everstep.journal.export import About, Exported
from everstep.journal.export import export as write_export
from everstep.journal.signing import SigningKey
from everstep.journal.store import Store
from everstep.local import signing
from everstep.local.files import LocalDir
from everstep.local.spec import RunSpec
from everstep.run.attempt import SDK_VERSION


@click.command(epilog=EPILOG)
@run_argument
@file_option
@click.option(
    "--unsigned", is_flag=True, help="Without a signature: it then proves itself only to who can read .everstep."
)
@directory_option
def export(run: str, file: Path | None, unsigned: bool, directory: Path) -> None:
    """Write a run's journal into one file, proved and signed; `everstep verify FILE` judges it anywhere."""
    where = LocalDir(directory)

    async def go(spec: RunSpec, store: Store) -> Exported:
        signer = None if unsigned else signing.ring(where).current
        return await _export(where, spec, store, file, signer)

    done = with_store(where, run, go)
    told_export(run, done, file)


async def _export(
    where: LocalDir, spec: RunSpec, store: Store, file: Path | None, signer: SigningKey | None
) -> Exported:
    if not where.journal_path.exists():
        raise ConfigError(f"run {spec.run} has no journal yet: it was never started, or its journal was removed")
    anchor = anchor_head(where, spec)
    about = About(spec.run, "local", sdk=SDK_VERSION, time=SystemClock().now_epoch_ms())
    with target(file) as out:
        return await write_export(store, Chain(spec.journal), about, out.write, anchor=anchor, signer=signer)


def told_export(run: str, done: Exported, file: Path | None) -> None:
    """One line on standard error; standard output may be the export itself."""
    by = "unsigned" if done.signer is None else f"signed by {done.signer}"
    where = "" if file is None else f" → {file}"
    click.echo(f"{run}: {text.plural(done.records, 'record')} exported, {by}{where}", err=True)


@click.command("public-key")
@click.option("--new", is_flag=True, help="First make a new signing key, which signs from now on; the older ones stay.")
@directory_option
def public_key(new: bool, directory: Path) -> None:
    """Print the public keys of this directory's exports, for `everstep verify --public-key`. They cannot sign."""
    where = LocalDir(directory)
    try:
        where.create()
        found = signing.add(where) if new else signing.ring(where)
        click.echo(found.public_text(), nl=False)
    except EverstepError as e:
        raise refusal(e) from e
