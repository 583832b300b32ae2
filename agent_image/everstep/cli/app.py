"""`everstep`: the root of the command line on a laptop."""

from importlib import metadata

import click
from click.shell_completion import get_completion_class

from everstep.cli.budgets import budget
from everstep.cli.check import check_command
from everstep.cli.local_ask import cancel, settle
from everstep.cli.local_change import history, repin
from everstep.cli.local_erase import erase, rotate_key
from everstep.cli.local_export import export, public_key
from everstep.cli.local_fork import fork
from everstep.cli.local_live import live
from everstep.cli.local_look import get, list_runs, result, steps, verify
from everstep.cli.local_mend import accept, delete
from everstep.cli.local_replay import replay
from everstep.cli.local_run import run
from everstep.cli.verify_file import verify_file


def version() -> str:
    """The installed version; `unknown` in a source tree that was never installed."""
    try:
        return metadata.version("everstep")
    except metadata.PackageNotFoundError:
        return "unknown"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version(), "--version", message="everstep %(version)s")
def everstep() -> None:
    """Everstep: agents that survive their process. Every step is journaled; after a loss the run goes on where it was.

    On a cluster the same verbs are `kubectl everstep …`.
    """


@everstep.group()
def local() -> None:
    """Run agents on this machine: a supervisor in place of the operator, the journal in ./.everstep."""


everstep.add_command(verify_file)
everstep.add_command(check_command)
for command in (
    run, list_runs, get, steps, result, live, verify, settle, budget, cancel, fork, accept, delete, export, public_key,
    history, repin, replay,
):  # fmt: skip
    local.add_command(command)
local.add_command(erase)
local.add_command(rotate_key)


@everstep.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash:  echo 'eval "$(everstep completion bash)"' >> ~/.bashrc
    zsh:   echo 'eval "$(everstep completion zsh)"' >> ~/.zshrc
    fish:  everstep completion fish > ~/.config/fish/completions/everstep.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for {shell}")
    click.echo(kind(everstep, {}, "everstep", "_EVERSTEP_COMPLETE").source())
