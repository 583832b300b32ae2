"""People's rights are exactly the requests that `kubectl everstep` makes: the real kubectl, against a mock API server that notes
each request. What is too much for a role is as wrong as what is missing: a person would be given more than the verbs need."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chart.rendering import CRDS_CHART, HelmRefused, Object, objects, only
from tests.chart.sync import ROOT
from tests.chart.test_rights import Right, granted
from tests.support.kubectl_cluster import KubectlCluster, Write, serving

ADMINS = [{"kind": "Group", "name": "platform", "apiGroup": "rbac.authorization.k8s.io"}]
TEAM, OPS, EVERYWHERE = "team", "ops", ""
ANSWERS: dict[str, Object] = {
    "result": {"run": "a", "outcome": "succeeded", "result": 1},
    "steps": {"run": "a", "steps": []},
    "verify": {"run": "a", "whole": True, "verdict": "whole", "records": 1, "first": 1, "head": {"seq": 1, "hash": "0" * 64},
               "badSeq": None, "message": "", "expected": None, "found": None, "anchor": None},
    "live": {"end": {"position": 0, "over": True}},
    "public-key": {"publicKeys": "k"},
    "fork": {"error": "it cannot be forked", "exit": 1},
    "budget": {"entry": "e", "parked": False},
    "export": {"end": {"records": 1}, "signature": None},
}  # fmt: skip
VERBS: dict[str, list[str]] = {
    "result": ["result", "a"],
    "steps": ["steps", "a"],
    "live": ["live", "a", "-f"],
    "verify": ["verify", "a"],
    "export": ["export", "a"],
    "public-key": ["public-key", "a"],
    "fork": ["fork", "a", "--from-step", "1", "--name", "b"],
    "budget": ["budget", "a", "--max-tokens", "9"],
    "repin": ["repin", "a", "--image", "i:2", "--timeout", "1"],
    "suspend": ["suspend", "a"],
    "list": ["list"],
    "watch": ["list", "-w"],
}


async def pod(command: list[str], write: Write) -> None:
    """The operator's pod."""
    assert command[:3] == ["python", "-m", "everstep_operator.inspect"]
    await write(json.dumps(ANSWERS[command[3]]).encode() + b"\n")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KubectlCluster, dict[str, str]]]:
    found = KubectlCluster(pod)
    with serving(found, tmp_path_factory.mktemp("home"), "prod") as env:
        yield found, env


def play(cluster: KubectlCluster, env: dict[str, str], verb: str, **more: str) -> set[tuple[str, Right]]:
    """What one verb asks for."""
    run: Any = {
        "apiVersion": "everstep.dev/v1alpha1",
        "kind": "AgentRun",
        "metadata": {"name": "a", "namespace": TEAM, "uid": "u", "resourceVersion": "1", "generation": 1},
        "spec": {"goal": "g", "agent": {"entrypoint": "m:f", "image": "i:1"}},
        "status": {"checkpoint": {"key": "es:prod:{u}:journal"}},
    }
    cluster.objects.items = {k: v for k, v in cluster.objects.items.items() if k[0] != "agentruns"}
    cluster.objects.items["agentruns", TEAM, "a"] = run
    cluster.rights.clear()
    command = [sys.executable, "-c", "from everstep.cli.kubectl import main; main()", *VERBS[verb]]
    path = os.pathsep.join(str(ROOT / part) for part in ("agent_image", "operator"))
    seconds = 6 if verb == "watch" else 60
    try:
        done = subprocess.run(
            command,
            env={**env, "PYTHONPATH": path, **more},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        assert verb == "watch"
    else:
        wrong = verb == "fork" or bool(more)
        assert (done.returncode != 0) == wrong, f"{verb}: {done.stdout}{done.stderr}"
    return set(cluster.rights)


def test_roles_are_exactly_what_the_verbs_ask_for(cluster: tuple[KubectlCluster, dict[str, str]]) -> None:
    """everstep-author where the runs are, journal-access where the operator is; looking for the operator in all namespaces is a
    convenience that a refusal does not stop."""
    server, env = cluster
    asked: set[tuple[str, Right]] = set()
    for verb in VERBS:
        asked |= play(server, env, verb)
    asked |= play(server, env, "result", KUBECTL_REMOTE_COMMAND_WEBSOCKETS="false")  # as kubectl before 1.31
    author = granted(only(objects(chart=CRDS_CHART), "ClusterRole", "everstep-author")["rules"])
    access = granted(only(objects({"journalAccess": {"enabled": True}}), "Role", "everstep-journal-access")["rules"])
    here = {right for namespace, right in asked if namespace == TEAM}
    there = {right for namespace, right in asked if namespace in (OPS, EVERYWHERE)}
    assert here == author, f"missing {sorted(here - author)}, too many {sorted(author - here)}"
    assert there == access, f"missing {sorted(there - access)}, too many {sorted(access - there)}"
    assert {right for namespace, right in asked if namespace == EVERYWHERE} == {("apps", "deployments", "list")}


def test_without_the_right_to_look_everywhere_the_operators_namespace_is_named(
    cluster: tuple[KubectlCluster, dict[str, str]],
) -> None:
    server, env = cluster
    for verb in ("result", "steps", "verify", "export", "budget"):
        VERBS[f"{verb}-there"] = [*VERBS[verb], "--operator-namespace", OPS]
        asked = play(server, env, f"{verb}-there")
        assert {namespace for namespace, _ in asked} == {TEAM, OPS}


def test_journal_access_is_off_unless_asked_for_and_bound_to_nobody_else() -> None:
    """pods/exec in the operator's namespace gives away its account and all keys: nobody has it by default."""
    for values in ({}, {"watchNamespaces": ["team-a"]}):
        found = objects(values)
        rights = {r for o in found if o["kind"].endswith("Role") for r in granted(o["rules"])}
        assert not {r for r in rights if r[1].startswith("pods/")}
        assert not [o for o in found if o["metadata"]["name"].endswith("journal-access")]
    unbound = objects({"journalAccess": {"enabled": True}})
    only(unbound, "Role", "everstep-journal-access")
    assert not [o for o in unbound if o["kind"] == "RoleBinding" and o["metadata"]["name"].endswith("journal-access")]
    bound = objects({"journalAccess": {"enabled": True, "subjects": ADMINS}})
    binding = only(bound, "RoleBinding", "everstep-journal-access")
    assert binding["subjects"] == ADMINS
    assert binding["roleRef"]["kind"] == "Role"
    assert binding["metadata"]["namespace"] == only(bound, "Role", "everstep-journal-access")["metadata"]["namespace"]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"journalAccess": {"subjects": ADMINS}}, "journalAccess.enabled is false"),
        ({"journalAccess": {"enabled": True, "subjects": ["jane"]}}, "subjects"),
        ({"journalAccess": {"enabled": True, "subjects": [{"kind": "Team", "name": "x"}]}}, "kind"),
        ({"journalAccess": {"enabled": "yes"}}, "enabled"),
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any], told: str) -> None:
    with pytest.raises(HelmRefused, match=told):
        objects(values)


def test_no_role_of_people_is_counted_towards_kubernetes_own_but_view_and_edit() -> None:
    found = [o for o in objects(chart=CRDS_CHART) if o["kind"] == "ClusterRole"]
    aggregated = {
        o["metadata"]["name"] for o in found if any("aggregate-to" in label for label in o["metadata"]["labels"])
    }
    assert aggregated == {"everstep-view", "everstep-edit"}


def test_what_the_right_gives_away_is_said_where_it_is_given() -> None:
    """In the values, which whoever turns it on reads, and in the docs."""
    values = (Path(ROOT) / "charts/everstep/values.yaml").read_text(encoding="utf-8")
    said = values[values.index("# Who may have journals read") : values.index("journalAccess:")]
    for word in ("administrator", "service account", "keys that sign", "credentials of the store", "every pod"):
        assert word in said, word
    docs = (Path(ROOT) / "docs/access.md").read_text(encoding="utf-8")
    for word in ("everstep-approver", "everstep-author", "journalAccess", "pods/exec", "service account"):
        assert word in docs, word
