"""`kubectl everstep budget`: change what a run may use, through the operator's pod, which alone has the run's key."""

import json
from typing import Any

import click

from everstep.cli.budgets import budget_from, budget_options
from everstep.cli.exits import EPILOG, refusal
from everstep.cli.kube import RUNS, Kubectl, about_run, ask_operator, cluster_options, operator_option
from everstep.clock import SystemClock
from everstep.errors import ConfigError

ANNOTATION = "everstep.dev/budget"
"""As the operator's ANNOTATION_BUDGET: has the run looked at now."""


@click.command(epilog=EPILOG)
@click.argument("run")
@budget_options
@click.option("--reason", default="", help="Why; kept in the journal.")
@cluster_options
@operator_option
def budget(
    run: str,
    reason: str,
    namespace: str | None,
    context: str | None,
    kubeconfig: str | None,
    operator_namespace: str | None,
    **limits: Any,  # of budget_options
) -> None:
    """Change what a run may use, from here on: each limit given replaces the old one. A run parked at its budget goes on.

    Needs the right to patch AgentRuns, and `create pods/exec` in the operator's namespace.

    \b
    kubectl everstep budget monday --max-tokens 400000 --reason "second half"
    """
    kubectl = Kubectl(namespace, context, kubeconfig)
    try:
        changes = budget_from(limits)
        if not changes:
            raise ConfigError("nothing to change: give a limit, e.g. --max-tokens 400000")
    except ConfigError as e:
        raise refusal(e) from e
    who = kubectl.user()
    _, question, installation = about_run(kubectl, "budget", run)
    question += ["--limits", json.dumps(changes), "--by", who, "--entry", SystemClock().nonce()[:16]]
    question += ["--reason", reason] if reason else []
    told = ask_operator(kubectl, operator_namespace, question, installation)
    kubectl.patch(RUNS, run, {"metadata": {"annotations": {ANNOTATION: told["entry"]}}})
    how = "goes on with it" if told["parked"] else "takes it up"
    click.echo(f"budget of run {run} changed by {who}; the run {how}")
