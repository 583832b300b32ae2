"""The attempt's pod, as data (design §3, §6 and the process contract; E1, E16, E17)."""

from dataclasses import replace
from typing import Any

import pytest
from tests.support.observed import GENESIS, spec

from everstep import contract
from everstep.contract import AttemptSettings
from everstep.ids import Attempt, JournalId, RecordHash, RunName, Seq
from everstep_operator.api.meta import RunRef
from everstep_operator.api.models import AgentRunSpec, read_spec
from everstep_operator.api.pod import AttemptPlan, InvalidTemplate, PodDefaults, build_attempt_pod

REF = RunRef("default", RunName("triage"), JournalId("6f0e"))
PLAN = AttemptPlan(Attempt(2), Seq(75), RecordHash("4f" * 32), predecessor_dead=True)
DEFAULTS = PodDefaults(installation="prod")


def pod(plan: AttemptPlan = PLAN, defaults: PodDefaults = DEFAULTS, **changes: Any) -> dict[str, Any]:
    return build_attempt_pod(REF, parsed(**changes), plan, defaults)


def parsed(**changes: Any) -> AgentRunSpec:
    return read_spec(spec(**changes))


def agent_of(built: dict[str, Any]) -> dict[str, Any]:
    return next(c for c in built["spec"]["containers"] if c["name"] == "agent")


def env_of(built: dict[str, Any]) -> dict[str, str]:
    return {e["name"]: e.get("value", "") for e in agent_of(built)["env"]}


def test_the_same_input_gives_the_same_pod() -> None:
    assert pod() == pod()


def test_name_owner_and_labels() -> None:
    meta = pod()["metadata"]
    assert meta["name"] == "triage-2", "the name is the mutex of the attempt"
    assert meta["labels"]["everstep.dev/run"] == "triage"
    assert meta["labels"]["everstep.dev/run-uid"] == "6f0e"
    assert meta["labels"]["everstep.dev/attempt"] == "2"
    assert meta["labels"]["everstep.dev/installation"] == "prod"
    assert meta["ownerReferences"][0]["uid"] == "6f0e"
    assert meta["ownerReferences"][0]["controller"] is True
    assert meta["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "true"
    assert meta["annotations"]["kubectl.kubernetes.io/default-container"] == "agent"


def test_what_the_sdk_reads_from_it(tmp_path: Any) -> None:
    """The operator's half of the process contract meets the SDK's."""
    (tmp_path / contract.FILE_STORE_URL).write_text("redis://store")
    env = {**env_of(pod()), contract.ENV_SECRETS_DIR: str(tmp_path)}
    settings = AttemptSettings.from_env(env)
    assert (settings.journal_id, settings.attempt, settings.entrypoint) == ("6f0e", 2, "triage:run")
    assert (settings.anchor_seq, settings.anchor_hash, settings.predecessor_dead) == (75, "4f" * 32, True)
    assert (settings.installation, settings.namespace, settings.run_name) == ("prod", "default", "triage")
    assert (settings.grace_s, settings.cancel_grace_s) == (25.0, 30.0)
    assert settings.image == "registry.example/agent:1"


def test_dead_is_not_said_unless_proved() -> None:
    assert contract.ENV_PREDECESSOR not in env_of(pod(replace(PLAN, predecessor_dead=False)))


def test_the_command_and_the_secret() -> None:
    built = pod()
    agent = agent_of(built)
    assert agent["command"] == ["python", "-m", "everstep.run"]
    assert agent["terminationMessagePolicy"] == "FallbackToLogsOnError"
    volume = built["spec"]["volumes"][0]
    assert volume["secret"]["secretName"] == "triage-run"
    mount = agent["volumeMounts"][0]
    assert (mount["name"], mount["mountPath"], mount["readOnly"]) == (
        volume["name"],
        contract.DEFAULT_SECRETS_DIR,
        True,
    )
    assert not any("goal" in str(e).lower() or "redis://" in str(e) for e in agent["env"]), "secrets are files"


def test_restricted_by_default() -> None:
    built = pod()["spec"]
    assert built["restartPolicy"] == "Never"
    assert built["automountServiceAccountToken"] is False
    assert built["securityContext"]["runAsNonRoot"] is True
    assert built["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in built["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "serviceAccountName" not in built
    assert not any("emptyDir" in v for v in built["volumes"]), "a drain must not ask for --delete-emptydir-data"


def test_lost_nodes_are_left_after_a_minute() -> None:
    tolerations = pod()["spec"]["tolerations"]
    assert {(t["key"], t["tolerationSeconds"], t["effect"]) for t in tolerations} == {
        ("node.kubernetes.io/not-ready", 60, "NoExecute"),
        ("node.kubernetes.io/unreachable", 60, "NoExecute"),
    }
    own = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
    given = pod(template={"tolerations": [own]})["spec"]["tolerations"]
    assert [t["tolerationSeconds"] for t in given if t["key"].endswith("unreachable")] == [5]


def test_a_lost_node_is_kept_off_by_a_wish_that_leaves_the_template_s_affinity_alone() -> None:
    own = {
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]},
        "podAffinity": {},
    }
    affinity = pod(replace(PLAN, not_on_nodes=("worker",)), template={"affinity": own})["spec"]["affinity"]
    terms = affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert len(terms) == 2
    assert terms[1]["preference"]["matchFields"][0]["values"] == ["worker"]
    assert "podAffinity" in affinity
    assert "affinity" not in pod()["spec"]


def test_resources() -> None:
    assert agent_of(pod())["resources"]["limits"] == {"memory": "1Gi"}
    own = {"requests": {"cpu": "1"}, "limits": {"memory": "2Gi", "cpu": "2"}}
    changed = pod(agent={"entrypoint": "a:b", "image": "x", "resources": own})
    assert agent_of(changed)["resources"] == own
    raised = pod(
        replace(PLAN, memory_limit_bytes=3 * 2**30), agent={"entrypoint": "a:b", "image": "x", "resources": own}
    )
    assert agent_of(raised)["resources"]["limits"] == {"memory": str(3 * 2**30), "cpu": "2"}
    assert own["limits"]["memory"] == "2Gi", "inputs are not changed"


def test_images() -> None:
    assert agent_of(pod(replace(PLAN, image="x@sha256:1")))["image"] == "x@sha256:1"
    without = {"entrypoint": "a:b"}
    assert agent_of(pod(defaults=replace(DEFAULTS, image="default:1"), agent=without))["image"] == "default:1"
    with pytest.raises(InvalidTemplate, match=r"spec\.agent\.image"):
        pod(agent=without)


def test_the_template_adds_what_is_allowed() -> None:
    built = pod(
        template={
            "labels": {"team": "a", "everstep.dev/attempt": "99"},
            "annotations": {"note": "x", "everstep.dev/x": "y"},
            "nodeSelector": {"disk": "ssd"},
            "priorityClassName": "low",
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            "sidecars": [{"name": "proxy", "image": "p", "securityContext": {"readOnlyRootFilesystem": True}}],
            "imagePullSecrets": [{"name": "pull"}],
            "imagePullPolicy": "Never",
            "terminationGracePeriodSeconds": 3,
            "securityContext": {"runAsUser": 2000},
        }
    )
    assert built["metadata"]["labels"]["team"] == "a"
    assert built["metadata"]["labels"]["everstep.dev/attempt"] == "2", "the operator's labels win"
    assert "everstep.dev/x" not in built["metadata"]["annotations"]
    inner = built["spec"]
    assert (inner["nodeSelector"], inner["priorityClassName"], inner["imagePullSecrets"]) == (
        {"disk": "ssd"},
        "low",
        [{"name": "pull"}],
    )
    assert [v["name"] for v in inner["volumes"]] == ["everstep-run", "data"]
    assert [m["mountPath"] for m in agent_of(built)["volumeMounts"]] == [contract.DEFAULT_SECRETS_DIR, "/data"]
    assert agent_of(built)["imagePullPolicy"] == "Never"
    assert inner["containers"][1]["securityContext"] == {
        "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True,
    }  # fmt: skip
    assert (inner["securityContext"]["runAsUser"], inner["securityContext"]["runAsNonRoot"]) == (2000, True)
    assert env_of(built)[contract.ENV_GRACE_S] == "0", "C34: nothing relies on grace"


FORBIDDEN = [
    ({"template": {"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}}, "hostPath is not allowed"),
    ({"template": {"volumes": [{"name": "everstep-run", "secret": {}}]}}, "choose another name"),
    ({"template": {"serviceAccountName": "admin"}}, "admin is not allowed"),
    (
        {"template": {"volumes": [{"name": "t", "projected": {"sources": [{"serviceAccountToken": {}}]}}]}},
        "serviceAccountToken",
    ),
    ({"template": {"sidecars": [{"name": "agent", "image": "x"}]}}, "the agent's own container"),
    (
        {"template": {"sidecars": [{"name": "s", "volumeMounts": [{"name": "everstep-run", "mountPath": "/x"}]}]}},
        "the agent alone",
    ),
    (
        {"agent": {"entrypoint": "a:b", "image": "x", "env": [{"name": "EVERSTEP_ATTEMPT", "value": "1"}]}},
        "EVERSTEP_ATTEMPT is set",
    ),
]


@pytest.mark.parametrize(("changes", "says"), FORBIDDEN, ids=[f[1] for f in FORBIDDEN])
def test_what_is_not_allowed_is_refused_by_name(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidTemplate) as refused:
        pod(**changes)
    assert says in str(refused.value)
    assert "spec." in str(refused.value), "names the field"


def test_a_service_account_that_the_settings_allow() -> None:
    built = pod(
        defaults=replace(DEFAULTS, service_accounts=frozenset({"cloud"})), template={"serviceAccountName": "cloud"}
    )
    assert built["spec"]["serviceAccountName"] == "cloud"
    assert built["spec"]["automountServiceAccountToken"] is False


def test_users_variables_come_through() -> None:
    own = [
        {"name": "OPENAI_API_KEY", "valueFrom": {"secretKeyRef": {"name": "k", "key": "k"}}},
        {"name": "EVERSTEP_FAULTS", "value": "x"},
    ]
    agent = agent_of(
        pod(
            agent={
                "entrypoint": "a:b",
                "image": "x",
                "env": own,
                "args": ["--fast"],
                "envFrom": [{"secretRef": {"name": "e"}}],
            }
        )
    )
    assert agent["env"][:2] == own
    assert (agent["args"], agent["envFrom"]) == (["--fast"], [{"secretRef": {"name": "e"}}])


def test_the_first_attempt_carries_the_first_anchor() -> None:
    first = env_of(pod(AttemptPlan(Attempt(1), Seq(0), GENESIS)))
    assert (first[contract.ENV_ANCHOR_SEQ], first[contract.ENV_ANCHOR_HASH]) == ("0", GENESIS)
