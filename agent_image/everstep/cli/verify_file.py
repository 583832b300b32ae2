"""`everstep verify FILE`: judging an export, without the store it came from."""

import asyncio
import sys
from pathlib import Path

import click

from everstep.cli.exits import Exit, Refusal
from everstep.cli.exports import print_file_report, read_anchor, read_key
from everstep.cli.options import directory_option, output_option
from everstep.errors import EverstepError
from everstep.journal.exported import FileReport, check_export
from everstep.journal.signing import PublicKey, available, read_public_keys
from everstep.local import signing
from everstep.local.files import LocalDir

_EPILOG = (
    "\b\nExit codes:\n"
    "  0    whole: proved by a key or by a trusted signature\n"
    "  1    cut, altered, rolled back, forged, or unproved\n"
    "  2    the file or a key cannot be read, or the file is no export"
)


@click.command("verify", epilog=_EPILOG)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--key",
    type=click.Path(path_type=Path),
    help="The chain key of the run or the operator.",
)
@click.option(
    "--public-key",
    type=click.Path(path_type=Path),
    help="The exporter's public keys (PEM); one must have signed.",
)
@click.option(
    "--anchor", metavar="SEQ:HASH", help="A head known from elsewhere; tells an older export from the newest one."
)
@directory_option
@output_option("json", "wide")
def verify_file(
    file: Path, key: Path | None, public_key: Path | None, anchor: str | None, directory: Path, output: str | None
) -> None:
    """Judge an export: whole, cut, altered, rolled back, forged or unproved, and at which record.

    Without --key and --public-key, exports signed by this directory's own key are recognised.
    """
    try:
        report = _check(file, key, public_key, anchor, directory)
    except OSError as e:
        raise Refusal(f"{file}: cannot be read: {e.strerror or e}", Exit.USAGE) from e
    except EverstepError as e:
        raise Refusal(f"{file}: {e}", Exit.USAGE) from e
    print_file_report(file, report, output or "")
    sys.exit(int(Exit.OK if report.whole else Exit.FAILED))


def _check(file: Path, key: Path | None, public_key: Path | None, anchor: str | None, directory: Path) -> FileReport:
    if public_key is not None:
        trusted = read_public_keys(
            public_key.read_text(encoding="utf-8", errors="replace"), f"--public-key {public_key}"
        )
    else:
        trusted = _own_keys(LocalDir(directory))
    secret, head = None if key is None else read_key(key), read_anchor(anchor)
    with open(file, "rb") as f:
        work = check_export(f, key=secret, trusted=trusted, anchor=head, demand_signature=public_key is not None)
        return asyncio.run(work)


def _own_keys(where: LocalDir) -> list[PublicKey]:
    """Public keys of the directory one stands in; none where there is no directory, or no library."""
    found = signing.known(where) if available() else None
    return [] if found is None else [key.public for key in found.keys.values()]
