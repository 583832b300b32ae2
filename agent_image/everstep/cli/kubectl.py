"""`kubectl everstep …`: the verbs of a run on a cluster. kubectl finds the program `kubectl-everstep` on the PATH."""

import sys

import click

from everstep.cli import inspect, text
from everstep.cli.exits import EPILOG, Exit, Refusal, refusal
from everstep.cli.kube import REQUESTS, RUNS, Kubectl, about_run, ask_operator, cluster_options, operator_option
from everstep.cli.kubectl_budget import budget
from everstep.cli.kubectl_erase import erase, rotate_key
from everstep.cli.kubectl_export import export, public_key
from everstep.cli.kubectl_fork import fork
from everstep.cli.kubectl_live import live
from everstep.cli.options import output_option
from everstep.cli.questions import decision, pick
from everstep.cli.repin import repin
from everstep.clock import SystemClock
from everstep.errors import ConfigError


def main() -> None:
    """Entry point of `kubectl-everstep`."""
    everstep(prog_name="kubectl everstep")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def everstep() -> None:
    """Agents' runs on a cluster. `kubectl get|describe|delete agentrun` work as for any object; these verbs kubectl lacks."""


@everstep.command("list", context_settings={"ignore_unknown_options": True})
@cluster_options
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def list_runs(namespace: str | None, context: str | None, kubeconfig: str | None, arguments: tuple[str, ...]) -> None:
    """List runs: kubectl get agentruns, with its flags (-A, -o wide, -w, -l …)."""
    Kubectl(namespace, context, kubeconfig).become("get", RUNS, *arguments)


@everstep.command()
@click.argument("run")
@cluster_options
def get(run: str, namespace: str | None, context: str | None, kubeconfig: str | None) -> None:
    """Show one run: kubectl describe agentrun."""
    Kubectl(namespace, context, kubeconfig).become("describe", RUNS, run)


@everstep.command()
@click.argument("run")
@cluster_options
def suspend(run: str, namespace: str | None, context: str | None, kubeconfig: str | None) -> None:
    """Stop a run for now; its pod goes, its journal stays. `resume` goes on."""
    _desire(Kubectl(namespace, context, kubeconfig), run, "Suspended", "suspended")


@everstep.command()
@click.argument("run")
@cluster_options
def resume(run: str, namespace: str | None, context: str | None, kubeconfig: str | None) -> None:
    """Go on with a suspended run."""
    _desire(Kubectl(namespace, context, kubeconfig), run, "Running", "resumed")


@everstep.command()
@click.argument("run")
@cluster_options
def cancel(run: str, namespace: str | None, context: str | None, kubeconfig: str | None) -> None:
    """Cancel a run: its agent is told, cleans up, and ends."""
    _desire(Kubectl(namespace, context, kubeconfig), run, "Cancelled", "cancelled")


def _desire(kubectl: Kubectl, run: str, state: str, word: str) -> None:
    kubectl.patch(RUNS, run, {"spec": {"desiredState": state}})
    click.echo(f"agentrun.everstep.dev/{run} {word}")


@everstep.command(epilog=EPILOG)
@click.argument("run")
@click.argument("step")
@click.option("--done", metavar="VALUE", help="It happened; VALUE (JSON, or text) is its result; null for none.")
@click.option("--again", is_flag=True, help="Run it again: exactly once more.")
@click.option("--fail", is_flag=True, help="Let the step fail; the agent sees StepFailed.")
@click.option("--reason", default="", help="Why; kept in the journal.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the run has taken up the answer.")
@click.option("--timeout", "timeout_s", type=click.IntRange(min=1), default=60, show_default=True, metavar="SECONDS",
              help="How long to wait.")  # fmt: skip
@cluster_options
def settle(
    run: str,
    step: str,
    done: str | None,
    again: bool,
    fail: bool,
    reason: str,
    wait: bool,
    timeout_s: int,
    namespace: str | None,
    context: str | None,
    kubeconfig: str | None,
) -> None:
    """Decide a step that may have happened: STEP is its key (12) or name.

    Answers the run's HumanRequest under your own name; the role everstep-approver suffices.
    """
    kubectl = Kubectl(namespace, context, kubeconfig)
    try:
        word, value = decision(done, again, fail)
        request = open_question(run, step, [r for r in kubectl.find(REQUESTS) if _of(r, run)])
    except ConfigError as e:
        raise refusal(e) from e
    who, name, spec = kubectl.user(), str(request["metadata"]["name"]), request["spec"]
    response = {"decision": word, "by": who, "argumentsDigest": spec["argumentsDigest"]}
    response |= {"reason": reason} if reason else {}
    response |= {"value": value} if value is not None else {}
    # a JSON patch, as a merge patch would drop every null inside the value; the tests refuse another question of that name
    kubectl.patch(
        REQUESTS,
        name,
        [
            {"op": "test", "path": "/metadata/uid", "value": request["metadata"]["uid"]},
            {"op": "add", "path": "/spec/response", "value": response},
        ],
        how="json",
    )
    said = f"{text.clean(str(spec.get('step', 'step')))} #{spec['key']} settled as {word} by {who}"
    if not wait:
        click.echo(said)
        return
    clock = SystemClock()
    began_s = clock.monotonic_s()
    try:
        kubectl.output(
            "wait", "--for=jsonpath={.status.state}=Applied", f"--timeout={timeout_s}s", f"{REQUESTS}/{name}"
        )
    except Refusal as e:
        advice = f"kubectl describe hreq {name}"
        raise Refusal(f"{said}, but the run has not taken it up within {timeout_s} s: {advice}", Exit.WAITING) from e
    click.echo(f"{said} · applied {clock.monotonic_s() - began_s:.1f} s later")


def _of(request: inspect.Document, run: str) -> bool:
    return bool(request["spec"]["runRef"]["name"] == run and request["spec"]["kind"] in ("uncertain", "exhausted"))


def open_question(run: str, step: str, requests: list[inspect.Document]) -> inspect.Document:
    """The one unanswered request about `12`, `#12` or a step's name. Raises ConfigError: what is open, or who was faster."""
    unanswered = [r for r in requests if not r["spec"].get("response") and r.get("status", {}).get("state") != "Stale"]
    asked = [r for r in requests if r["spec"]["key"] == step.removeprefix("#")]
    answered = [r["spec"]["response"] for r in asked if r["spec"].get("response")]
    if answered and not any(r in unanswered for r in asked):
        raise ConfigError(
            f"step {step} of run {run} was settled already: {answered[-1]['decision']} by {answered[-1]['by']}"
        )
    return pick(run, step, unanswered, lambda r: str(r["spec"]["key"]), lambda r: str(r["spec"].get("step", "step")))


@everstep.command(epilog=EPILOG)
@click.argument("run")
@cluster_options
@operator_option
@output_option("json")
def result(
    run: str,
    namespace: str | None,
    context: str | None,
    kubeconfig: str | None,
    operator_namespace: str | None,
    output: str | None,
) -> None:
    """Print the result of a finished run, and nothing else."""
    document = _ask(Kubectl(namespace, context, kubeconfig), operator_namespace, "result", run)
    sys.exit(inspect.print_result(document, output or ""))


@everstep.command(epilog=EPILOG)
@click.argument("run")
@click.option("--timers", is_flag=True, help="Also list durable timers.")
@cluster_options
@operator_option
@output_option("json", "wide")
def steps(
    run: str,
    timers: bool,
    namespace: str | None,
    context: str | None,
    kubeconfig: str | None,
    operator_namespace: str | None,
    output: str | None,
) -> None:
    """List the steps of a run in the order they began."""
    more = ["--timers"] if timers else []
    document = _ask(Kubectl(namespace, context, kubeconfig), operator_namespace, "steps", run, *more)
    sys.exit(inspect.print_steps(document, output or ""))


@everstep.command(epilog=EPILOG)
@click.argument("run")
@cluster_options
@operator_option
@output_option("json", "wide")
def verify(
    run: str,
    namespace: str | None,
    context: str | None,
    kubeconfig: str | None,
    operator_namespace: str | None,
    output: str | None,
) -> None:
    """Prove the journal whole against the anchor in the run's status."""
    document = _ask(Kubectl(namespace, context, kubeconfig), operator_namespace, "verify", run)
    sys.exit(inspect.print_verify(document, output or ""))


everstep.add_command(export)
everstep.add_command(live)
everstep.add_command(fork)
everstep.add_command(budget)
everstep.add_command(public_key)
everstep.add_command(erase)
everstep.add_command(rotate_key)


def _ask(kubectl: Kubectl, operator_namespace: str | None, verb: str, run: str, *more: str) -> inspect.Document:
    """A document about a run's journal."""
    found, question, installation = about_run(kubectl, verb, run)
    try:
        return ask_operator(kubectl, operator_namespace, [*question, *more], installation)
    except Refusal as e:
        summary, reason = found.get("status", {}).get("summary"), found.get("status", {}).get("reason")
        if e.exit_code != Exit.WAITING or not summary:
            raise
        # the pod knows the journal alone, the object knows where the run stands
        why = f" ({reason})" if reason and reason != summary else ""
        raise Refusal(f"run {run} has no result yet: it is {summary}{why}", Exit.WAITING) from e


everstep.add_command(repin)
