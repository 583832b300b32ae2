"""`kubectl everstep fork`: another AgentRun that begins with the proved steps of one.

    1  create NEW: the spec of RUN with what was changed, desiredState Suspended, annotation everstep.dev/fork = pending
    2  in the operator's pod, which alone has the store and the keys: verify RUN, write the beginning of NEW's journal
    3  one patch: annotation done, desiredState Running

Lost between them, NEW stands there as ForkUnfinished and nothing starts it; `kubectl delete` it and fork again.
"""

import json
from typing import Any, TextIO

import click

from everstep.cli import show
from everstep.cli.exits import EPILOG, Exit, Refusal, refusal
from everstep.cli.forks import STEP_HELP, print_fork
from everstep.cli.kube import RUNS, Kubectl, about_run, ask_operator, cluster_options, operator_option
from everstep.cli.local_run import given_inputs
from everstep.cli.options import output_option
from everstep.errors import ConfigError
from everstep.journal.records import canonical
from everstep.run.values import digest

ANNOTATION = "everstep.dev/fork"
"""As the operator's ANNOTATION_FORK."""
PENDING = "pending"
Document = dict[str, Any]  # Any: a Kubernetes object


@click.command(epilog=EPILOG)
@click.argument("run")
@click.option("--from-step", "step", required=True, metavar="KEY", help=STEP_HELP)
@click.option("--name", required=True, metavar="NEW", help="Name of the new AgentRun.")
@click.option("--image", metavar="IMAGE", help="Another image. Default: as the run's spec names it.")
@click.option("--entrypoint", metavar="MODULE:FUNCTION", help="Another agent. Default: the run's own.")
@click.option("--goal", help="Another goal.")
@click.option(
    "--input", "inputs", multiple=True, metavar="NAME=VALUE",
    help="Another value of an input; VALUE is read as JSON if it is JSON, else as text. The others are kept. Repeatable.",
)  # fmt: skip
@click.option("--inputs-file", type=click.File("r", encoding="utf-8"), help="Other inputs as one JSON object.")
@click.option("--suspended", is_flag=True, help="Leave NEW suspended; `kubectl everstep resume NEW` starts it.")
@cluster_options
@operator_option
@output_option("json")
def fork(
    run: str,
    step: str,
    name: str,
    image: str | None,
    entrypoint: str | None,
    goal: str | None,
    inputs: tuple[str, ...],
    inputs_file: TextIO | None,
    suspended: bool,
    namespace: str | None,
    context: str | None,
    kubeconfig: str | None,
    operator_namespace: str | None,
    output: str | None,
) -> None:
    """Make a new run out of the proved steps of RUN before a step, perhaps with another image, other inputs or another goal.

    What those steps did is kept and never repeated. Everything from KEY on is new: its effects happen, under new idempotency
    keys, even where RUN has made the like already. RUN itself is not changed. Needs the rights to create AgentRuns and
    `create pods/exec` in the operator's namespace.

    \b
    kubectl everstep fork monday --from-step 12 --name monday-large --input model=large
    """
    kubectl = Kubectl(namespace, context, kubeconfig)
    try:
        found, question, installation = about_run(kubectl, "fork", run)
        changed = given_inputs(inputs, inputs_file)
    except ConfigError as e:
        raise refusal(e) from e
    made = kubectl.create(new_run(found, name, step, image=image, entrypoint=entrypoint, goal=goal, inputs=changed))
    try:
        told = ask_operator(kubectl, operator_namespace, [*question, *about_fork(made, step)], installation)
    except Refusal as e:
        kubectl.output("delete", RUNS, name, "--wait=false")
        raise Refusal(f"{e.message}. Run {name} was removed again", Exit(e.exit_code)) from e
    body: list[Document] = [
        {"op": "replace", "path": f"/metadata/annotations/{_escaped(ANNOTATION)}", "value": f"{run}#{step}"}
    ]
    if not suspended:
        body.append({"op": "replace", "path": "/spec/desiredState", "value": "Running"})
    kubectl.patch(RUNS, name, body, how="json")
    if output == "json":
        show.as_json(told)
    else:
        go_on = "kubectl everstep resume" if suspended else "kubectl everstep get"
        print_fork(told, f"{go_on} {name}")


def new_run(
    source: Document,
    name: str,
    step: str,
    *,
    image: str | None = None,
    entrypoint: str | None = None,
    goal: str | None = None,
    inputs: dict[str, object] | None = None,
) -> Document:
    """The object to create: the source's spec and its own labels, changed as asked."""
    spec = json.loads(json.dumps(source["spec"]))
    spec["desiredState"] = "Suspended"
    if image is not None:
        spec["agent"]["image"] = image
    if entrypoint is not None:
        spec["agent"]["entrypoint"] = entrypoint
    if goal is not None:
        spec.pop("goalFrom", None)
        spec["goal"] = goal
    if inputs:
        spec["inputs"] = {**spec.get("inputs", {}), **inputs}
    meta = source["metadata"]
    return {
        "apiVersion": source["apiVersion"],
        "kind": source["kind"],
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "labels": dict(meta.get("labels") or {}),
            "annotations": {ANNOTATION: PENDING},
        },
        "spec": spec,
    }


def about_fork(made: Document, step: str) -> list[str]:
    """The rest of the question to the operator's pod. Digests are of the object as the API server holds it, since that is what an
    attempt will be told; a goal from a ConfigMap or Secret is the source's."""
    meta, spec = made["metadata"], made["spec"]
    goal = ["--goal-digest", digest(str(spec["goal"]).encode())] if "goal" in spec else []
    return [
        *("--from-step", step, "--target", str(meta["uid"]), "--target-name", str(meta["name"])),
        *("--namespace", str(meta["namespace"]), "--entrypoint", str(spec["agent"].get("entrypoint", ""))),
        *("--inputs-digest", digest(canonical(spec.get("inputs") or {}))),
        *goal,
    ]


def _escaped(key: str) -> str:
    """A key within a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")
