"""`kubectl everstep erase|rotate-key`: the keys of encrypted runs, through the operator's pod, which alone has them."""

import click

from everstep.cli import text
from everstep.cli.exits import EPILOG, Exit, Refusal
from everstep.cli.kube import Kubectl, about_run, ask_operator, cluster_options, operator_option


@click.command(epilog=EPILOG)
@click.argument("run")
@click.option("--yes", is_flag=True, help="Do not ask.")
@cluster_options
@operator_option
def erase(
    run: str,
    yes: bool,
    namespace: str | None,
    context: str | None,
    kubeconfig: str | None,
    operator_namespace: str | None,
) -> None:
    """Make what an encrypted run has recorded unreadable, for ever. It must be over: wait for its end, or cancel it.

    Its data key is destroyed, in the journal and in its Secret, and the other runs' keys are wrapped anew, so that older copies
    of the store stay closed, too. What happened, when and in which order stays, and still verifies. The AgentRun and its
    HumanRequests are not changed: delete them if the goal or an answer stands there.

    Needs the right to delete Secrets in the run's namespace, and `create pods/exec` in the operator's.
    """
    kubectl = Kubectl(namespace, context, kubeconfig)
    found, question, installation = about_run(kubectl, "erase", run)
    if not yes:
        click.confirm(f"make everything that run {run} recorded unreadable, for ever?", abort=True)
    where = str(found["metadata"]["namespace"])
    told = ask_operator(kubectl, operator_namespace, [*question, "--namespace", where], installation)
    if told["secret"]:
        try:
            kubectl.output("delete", "secret", str(told["secret"]), "--ignore-not-found", namespace=where)
        except Refusal as e:
            raise Refusal(
                f"the data key in the journal is destroyed, but Secret {told['secret']} still holds a copy: delete it, or "
                f"repeat this with the right to. {e.message}",
                Exit.FAILED,
            ) from e
    click.echo(f"run {run} erased; kubectl everstep verify {run} still proves what happened")
    if told["problem"]:
        raise Refusal(f"copies of the store from before can still be opened: {told['problem']}", Exit.FAILED)


@click.command("rotate-key", epilog=EPILOG)
@cluster_options
@operator_option
def rotate_key(
    namespace: str | None, context: str | None, kubeconfig: str | None, operator_namespace: str | None
) -> None:
    """Make a new key-encryption key and wrap every run's data key with it; no record is touched. The old one is destroyed.

    A copy of the store made before cannot be opened any more by what the cluster holds. Needs `create pods/exec` in the
    operator's namespace.
    """
    told = ask_operator(Kubectl(namespace, context, kubeconfig), operator_namespace, ["rotate-key"])
    click.echo(f"{text.plural(int(told['rewrapped']), 'data key')} wrapped anew")
