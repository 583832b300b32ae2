"""`kubectl everstep export|public-key`: through the operator's pod, which alone reaches the journal and the signing key."""

import shutil
import tempfile
from pathlib import Path

import click

from everstep.cli.exits import EPILOG, refusal
from everstep.cli.exports import file_option, target
from everstep.cli.kube import Kubectl, about_run, ask_operator, cluster_options, copy_from_operator, operator_option
from everstep.errors import ConfigError


@click.command(epilog=EPILOG)
@click.argument("run")
@file_option
@cluster_options
@operator_option
def export(
    run: str,
    file: Path | None,
    namespace: str | None,
    context: str | None,
    kubeconfig: str | None,
    operator_namespace: str | None,
) -> None:
    """Write a run's journal into one file, proved and signed; `everstep verify FILE` judges it anywhere."""
    kubectl = Kubectl(namespace, context, kubeconfig)
    found, question, installation = about_run(kubectl, "export", run)
    question += ["--namespace", str(found["metadata"].get("namespace", ""))]
    try:
        with target(file) as out, tempfile.TemporaryFile() as whole:
            last = copy_from_operator(kubectl, operator_namespace, question, installation, whole)
            whole.seek(0)
            shutil.copyfileobj(whole, out)
    except ConfigError as e:
        raise refusal(e) from e
    records, signature = last["end"]["records"], last["signature"] or {}
    by = f"signed by {signature['id']}" if signature else "unsigned"
    click.echo(f"{run}: {records} records exported, {by}" + (f" → {file}" if file else ""), err=True)


@click.command("public-key")
@click.argument("run", required=False)
@cluster_options
@operator_option
def public_key(
    run: str | None,
    namespace: str | None,
    context: str | None,
    kubeconfig: str | None,
    operator_namespace: str | None,
) -> None:
    """Print the public keys of the operator's exports, for `everstep verify --public-key`. They cannot sign.

    RUN chooses the installation that keeps this run's journal, where there are several.
    """
    kubectl = Kubectl(namespace, context, kubeconfig)
    question, installation = ["public-key"], ""
    if run is not None:
        _, _, installation = about_run(kubectl, "public-key", run)
    click.echo(ask_operator(kubectl, operator_namespace, question, installation)["publicKeys"], nl=False)
