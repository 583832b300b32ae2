"""`kubectl everstep fork`: a new run is created pending, its journal is written by the operator's pod, then it may start."""

import itertools
import json
from typing import Any

import pytest
from tests.support.observed import NO_JOURNAL, Case, journal, spec
from tests.unit.test_cli_kubectl import Fake, fake

from everstep.cli import kubectl_fork
from everstep.journal.records import canonical
from everstep.run.values import digest
from everstep_operator.api.words import ANNOTATION_BUDGET, ANNOTATION_FORK, FORK_PENDING

__all__ = ["fake"]

SOURCE = {
    "apiVersion": "everstep.dev/v1alpha1",
    "kind": "AgentRun",
    "metadata": {
        "name": "monday", "namespace": "prod", "uid": "u-1", "resourceVersion": "77",
        "labels": {"team": "a"}, "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
    },
    "spec": {
        "goal": "Triage", "inputs": {"backlog": "b.json", "model": "small"}, "desiredState": "Running",
        "agent": {"entrypoint": "triage:run", "image": "registry.example/agent:1"},
    },
    "status": {"checkpoint": {"seq": 40, "hash": "a" * 64, "key": "es:prod:{u-1}:journal"}},
}  # fmt: skip
OPERATOR = {
    "metadata": {"namespace": "everstep-system", "name": "everstep"},
    "spec": {
        "template": {
            "spec": {"containers": [{"name": "operator", "env": [{"name": "EVERSTEP_INSTALLATION", "value": "prod"}]}]}
        }
    },
}
TOLD = {
    "run": "tuesday", "journal": "u-2", "records": 12, "inFlight": [], "brought": [], "problem": None,
    "lineage": {"run": "monday", "journal": "u-1", "seq": 11, "hash": "b" * 64, "step": "4"},
}  # fmt: skip


def created(**changes: Any) -> dict[str, Any]:
    made = kubectl_fork.new_run(SOURCE, "tuesday", "4", **changes)
    made["metadata"]["uid"] = "u-2"
    return made


def test_the_new_run_is_the_old_spec_changed_and_held_back() -> None:
    made = kubectl_fork.new_run(SOURCE, "tuesday", "4", image="registry.example/agent:2", inputs={"model": "large"})
    assert made["metadata"] == {
        "name": "tuesday",
        "namespace": "prod",
        "labels": {"team": "a"},
        "annotations": {ANNOTATION_FORK: FORK_PENDING},
    }
    assert (kubectl_fork.ANNOTATION, kubectl_fork.PENDING) == (ANNOTATION_FORK, FORK_PENDING)
    assert made["spec"]["desiredState"] == "Suspended"
    assert made["spec"]["agent"] == {"entrypoint": "triage:run", "image": "registry.example/agent:2"}
    assert made["spec"]["inputs"] == {"backlog": "b.json", "model": "large"}
    assert SOURCE["spec"]["desiredState"] == "Running"  # type: ignore[index]  # a nested literal
    told = kubectl_fork.new_run({**SOURCE, "spec": {**SOURCE["spec"], "goalFrom": {}}}, "x", "4", goal="Other")  # type: ignore[dict-item]  # a nested literal
    assert told["spec"]["goal"] == "Other"
    assert "goalFrom" not in told["spec"]


def test_create_write_then_start(fake: Fake) -> None:
    fake.on("get", "agentruns.everstep.dev", out=SOURCE)
    fake.on("create", out=created(inputs={"model": "large"}))
    fake.on("get", "deployments", out={"items": [OPERATOR]})
    fake.on("exec", out=TOLD)
    fake.on("patch")
    done = fake.run("fork", "monday", "--from-step", "4", "--name", "tuesday", "--input", "model=large", "-n", "prod")
    assert done.returncode == 0, done.stderr
    assert "run tuesday · forked from monday before step #4 · 12 records kept" in done.stdout
    verbs = [call[0] for call in fake.calls]
    assert verbs == ["get", "create", "get", "exec", "patch"]
    question = fake.calls[3]
    asked = dict(itertools.pairwise(question))
    assert asked["--from-step"] == "4"
    assert asked["--target"] == "u-2"
    assert asked["--anchor"] == f"40:{'a' * 64}"
    assert asked["--goal-digest"] == digest(b"Triage")
    assert asked["--inputs-digest"] == digest(canonical({"backlog": "b.json", "model": "large"}))
    patch = json.loads(fake.calls[4][-1].removeprefix("--patch="))
    assert patch == [
        {"op": "replace", "path": "/metadata/annotations/everstep.dev~1fork", "value": "monday#4"},
        {"op": "replace", "path": "/spec/desiredState", "value": "Running"},
    ]


def test_what_the_operator_refuses_leaves_no_run(fake: Fake) -> None:
    fake.on("get", "agentruns.everstep.dev", out=SOURCE)
    fake.on("create", out=created())
    fake.on("get", "deployments", out={"items": [OPERATOR]})
    fake.on("exec", out={"error": "run monday has no step 9", "exit": 2})
    fake.on("delete")
    done = fake.run("fork", "monday", "--from-step", "9", "--name", "tuesday")
    assert done.returncode == 2
    assert "has no step 9. Run tuesday was removed again" in done.stderr
    assert fake.calls[-1][0] == "delete"


def test_budget_goes_through_the_operators_pod_and_has_the_run_looked_at(fake: Fake) -> None:
    fake.on("whoami", out={"status": {"userInfo": {"username": "jane@example.org"}}})
    fake.on("get", "agentruns.everstep.dev", out=SOURCE)
    fake.on("get", "deployments", out={"items": [OPERATOR]})
    fake.on("exec", out={"run": "monday", "entry": "budget-9-ab", "parked": True})
    fake.on("patch")
    done = fake.run("budget", "monday", "--max-tokens", "400000", "--max-cost-usd", "none", "--reason", "half")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "budget of run monday changed by jane@example.org; the run goes on with it"
    asked = dict(itertools.pairwise(next(call for call in fake.calls if call[0] == "exec")))
    assert json.loads(asked["--limits"]) == {"maxTokens": 400000, "maxCostMicroUSD": None}
    assert (asked["--by"], asked["--reason"]) == ("jane@example.org", "half")
    patch = json.loads(fake.calls[-1][-1].removeprefix("--patch="))
    assert patch == {"metadata": {"annotations": {ANNOTATION_BUDGET: "budget-9-ab"}}}
    assert fake.run("budget", "monday").returncode == 2


PENDING = {"annotations": {ANNOTATION_FORK: FORK_PENDING}}


@pytest.mark.parametrize("written", [0, 7])
def test_nothing_starts_a_fork_that_is_not_written(written: int) -> None:
    """Whoever resumes it: started without its records it would repeat what its source has done."""
    seen = NO_JOURNAL if written == 0 else journal(written, attempt=1, owner="fork-of-u-1")
    turn = Case(spec=spec(), journal=seen, **PENDING).turn()
    assert turn.word == "Blocked/ForkUnfinished"
    assert turn.acts == []
    assert turn.status.attempt == 0
    cancelled = Case(spec=spec(desiredState="Cancelled"), journal=seen, **PENDING).turn()
    assert cancelled.word == "Cancelled/Cancelled"


def test_a_written_fork_goes_on_after_the_number_that_wrote_it() -> None:
    annotations = {ANNOTATION_FORK: "monday#4"}
    seen = journal(7, attempt=1, owner="fork-of-u-1")
    turn = Case(spec=spec(), journal=seen, annotations=annotations).turn()
    assert turn.status.attempt == 2
    assert turn.status.checkpoint is not None
