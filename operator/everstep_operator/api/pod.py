"""The pod of one attempt, as a dict. Pure: the same input gives the same pod.

The operator owns the container `agent` and the process contract; the run's `template` adds what is allow-listed in the CRD.
Restricted by default: no root, no capabilities, no service-account token, no API rights; the run's Secret is mounted as files.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from everstep import contract
from everstep.ids import Attempt, RecordHash, Seq
from everstep_operator.api.meta import RunRef, object_metadata
from everstep_operator.api.models import AgentRunSpec, Json, Template
from everstep_operator.api.secret import secret_name
from everstep_operator.api.words import (
    ANNOTATION_DEFAULT_CONTAINER,
    ANNOTATION_SAFE_TO_EVICT,
    LABEL_ATTEMPT,
    RESERVED_PREFIX,
)

RUN_VOLUME = "everstep-run"
GRACE_MARGIN_S = 5
"""Between the end of a step's grace time and SIGKILL: enough to flush the journal and leave."""
USER_ID = 10001
"""Any number but 0: images whose user is a name, or root, run under `runAsNonRoot` as well."""
LOST_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


class InvalidTemplate(ValueError):
    """The run's template or agent asks for something that is not allowed; the message names the field and the cure."""


@dataclass(frozen=True)
class PodDefaults:
    """The operator's settings that shape a pod."""

    installation: str = "default"
    image: str = ""
    """Where the run names none."""
    resources: Mapping[str, Json] = field(
        default_factory=lambda: {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
    )
    toleration_s: int = 60
    """How long the pod stays bound to a node that is not ready or unreachable; Kubernetes' own default is 300 s."""
    service_accounts: frozenset[str] = frozenset()
    """Service accounts a template may name."""


@dataclass(frozen=True)
class AttemptPlan:
    """What this attempt adds to the spec."""

    attempt: Attempt
    anchor_seq: Seq
    anchor_hash: RecordHash
    predecessor_dead: bool = False
    image: str = ""
    """Pinned image; "" = the spec's, or the operator's default."""
    not_on_nodes: tuple[str, ...] = ()
    memory_limit_bytes: int | None = None


def pod_name(run: str, attempt: int) -> str:
    """`<run>-<attempt>`: the name is the mutex of the attempt."""
    return f"{run}-{attempt}"


def build_attempt_pod(ref: RunRef, spec: AgentRunSpec, plan: AttemptPlan, defaults: PodDefaults) -> dict[str, Json]:
    """The pod. Raises InvalidTemplate."""
    template = spec.template
    _check_template(template, defaults)
    metadata = object_metadata(ref, pod_name(ref.name, plan.attempt), defaults.installation)
    metadata["labels"] = _allowed(template.labels) | metadata["labels"] | {LABEL_ATTEMPT: str(plan.attempt)}
    metadata["annotations"] = {ANNOTATION_SAFE_TO_EVICT: "true"} | _allowed(template.annotations)
    metadata["annotations"][ANNOTATION_DEFAULT_CONTAINER] = contract.AGENT_CONTAINER
    agent = _agent_container(ref, spec, plan, defaults)
    pod_spec: dict[str, Json] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": template.termination_grace_period_seconds,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": _pod_security(template),
        "tolerations": _tolerations(template, defaults.toleration_s),
        "containers": [agent, *(_sidecar(i, s) for i, s in enumerate(template.sidecars))],
        "volumes": [
            {"name": RUN_VOLUME, "secret": {"secretName": secret_name(ref), "defaultMode": 0o440}},
            *template.volumes,
        ],
    }
    optional = {
        "nodeSelector": template.node_selector,
        "affinity": _affinity(template, plan.not_on_nodes),
        "topologySpreadConstraints": list(template.topology_spread_constraints),
        "priorityClassName": template.priority_class_name,
        "runtimeClassName": template.runtime_class_name,
        "schedulerName": template.scheduler_name,
        "imagePullSecrets": list(template.image_pull_secrets),
        "serviceAccountName": template.service_account_name,
    }
    pod_spec |= {name: value for name, value in optional.items() if value}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec}


def _agent_container(ref: RunRef, spec: AgentRunSpec, plan: AttemptPlan, defaults: PodDefaults) -> dict[str, Json]:
    image = plan.image or spec.agent.image or defaults.image
    if not image:
        raise InvalidTemplate(
            "spec.agent.image is not set and the operator has no default image: name the agent's image"
        )
    container: dict[str, Json] = {
        "name": contract.AGENT_CONTAINER,
        "image": image,
        "command": list(contract.AGENT_COMMAND),
        "env": _env(ref, spec, plan, image, defaults.installation),
        "resources": _resources(spec, plan, defaults),
        "securityContext": _container_security(),
        "volumeMounts": [
            {"name": RUN_VOLUME, "mountPath": contract.DEFAULT_SECRETS_DIR, "readOnly": True},
            *spec.template.volume_mounts,
        ],
        # The SDK writes JSON; where it never ran, the last log lines say why (no Python, no everstep).
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "terminationMessagePath": contract.DEFAULT_TERMINATION_LOG,
    }
    if spec.agent.args:
        container["args"] = list(spec.agent.args)
    if spec.agent.env_from:
        container["envFrom"] = list(spec.agent.env_from)
    if spec.template.image_pull_policy:
        container["imagePullPolicy"] = spec.template.image_pull_policy
    return container


def _env(ref: RunRef, spec: AgentRunSpec, plan: AttemptPlan, image: str, installation: str) -> list[dict[str, Json]]:
    """The user's variables, then ours: of two equal names Kubernetes takes the last, but one of ours must not even be named."""
    grace_s = max(0, spec.template.termination_grace_period_seconds - GRACE_MARGIN_S)
    ours: dict[str, str] = {
        contract.ENV_JOURNAL_ID: ref.uid,
        contract.ENV_INSTALLATION: installation,
        contract.ENV_RUN_NAME: ref.name,
        contract.ENV_NAMESPACE: ref.namespace,
        contract.ENV_ATTEMPT: str(plan.attempt),
        contract.ENV_ANCHOR_SEQ: str(plan.anchor_seq),
        contract.ENV_ANCHOR_HASH: plan.anchor_hash,
        contract.ENV_ENTRYPOINT: spec.agent.entrypoint,
        contract.ENV_SECRETS_DIR: contract.DEFAULT_SECRETS_DIR,
        contract.ENV_TERMINATION_LOG: contract.DEFAULT_TERMINATION_LOG,
        contract.ENV_IMAGE: image,
        contract.ENV_IMAGE_NAMED: spec.agent.image or "",
        contract.ENV_GRACE_S: str(grace_s),
        contract.ENV_CANCEL_GRACE_S: str(spec.cancel_grace_seconds),
    }
    if plan.predecessor_dead:
        ours[contract.ENV_PREDECESSOR] = contract.PREDECESSOR_DEAD
    reserved = {*ours, contract.ENV_PREDECESSOR, contract.ENV_POD_UID, contract.ENV_STORE}
    taken = sorted(str(e.get("name")) for e in spec.agent.env if e.get("name") in reserved)
    if taken:
        raise InvalidTemplate(f"spec.agent.env: {', '.join(taken)} is set by the operator; remove it")
    return [
        *spec.agent.env,
        *({"name": name, "value": value} for name, value in ours.items()),
        {"name": contract.ENV_POD_UID, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
    ]


def _resources(spec: AgentRunSpec, plan: AttemptPlan, defaults: PodDefaults) -> dict[str, Json]:
    given = spec.agent.resources
    resources = {key: dict(value) for key, value in (defaults.resources if given is None else given).items() if value}
    if plan.memory_limit_bytes is not None:
        resources["limits"] = {**resources.get("limits", {}), "memory": str(plan.memory_limit_bytes)}
    return resources


def _container_security() -> dict[str, Json]:
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _pod_security(template: Template) -> dict[str, Json]:
    default = {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return default | (template.security_context or {})


def _sidecar(index: int, sidecar: Mapping[str, Json]) -> dict[str, Json]:
    where = f"spec.template.sidecars[{index}]"
    if sidecar.get("name") == contract.AGENT_CONTAINER:
        raise InvalidTemplate(
            f"{where}.name: {contract.AGENT_CONTAINER} is the agent's own container; choose another name"
        )
    if any(mount.get("name") == RUN_VOLUME for mount in sidecar.get("volumeMounts") or []):
        raise InvalidTemplate(
            f"{where}.volumeMounts: {RUN_VOLUME} holds the run's key and is for the agent alone; remove it"
        )
    return {**sidecar, "securityContext": _container_security() | (sidecar.get("securityContext") or {})}


def _tolerations(template: Template, toleration_s: int) -> list[Json]:
    given = {t.get("key") for t in template.tolerations}
    ours = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": toleration_s}
        for key in LOST_NODE_TAINTS
        if key not in given
    ]
    return [*template.tolerations, *ours]


def _affinity(template: Template, not_on_nodes: Iterable[str]) -> dict[str, Json] | None:
    """The template's affinity, and a wish to keep off nodes that were lost. A wish, not a rule: where no other node is left,
    the pod must be able to come back."""
    terms = [
        {
            "weight": 100,
            "preference": {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": [node]}]},
        }
        for node in not_on_nodes
    ]
    if not terms:
        return template.affinity
    affinity = dict(template.affinity or {})
    node_affinity = dict(affinity.get("nodeAffinity") or {})
    key = "preferredDuringSchedulingIgnoredDuringExecution"
    node_affinity[key] = [*(node_affinity.get(key) or []), *terms]
    affinity["nodeAffinity"] = node_affinity
    return affinity


def _allowed(given: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in given.items() if not key.startswith(RESERVED_PREFIX)}


def _check_template(template: Template, defaults: PodDefaults) -> None:
    account = template.service_account_name
    if account and account not in defaults.service_accounts:
        allowed = ", ".join(sorted(defaults.service_accounts)) or "none"
        raise InvalidTemplate(
            f"spec.template.serviceAccountName: {account} is not allowed (allowed: {allowed}); remove it, or ask whoever "
            "runs the operator to allow it"
        )
    for i, volume in enumerate(template.volumes):
        if "hostPath" in volume:
            raise InvalidTemplate(
                f"spec.template.volumes[{i}]: hostPath is not allowed; use a claim, an emptyDir or CSI"
            )
        if volume.get("name") == RUN_VOLUME:
            raise InvalidTemplate(
                f"spec.template.volumes[{i}].name: {RUN_VOLUME} is the operator's; choose another name"
            )
        if _projects_token(volume) and not account:
            raise InvalidTemplate(
                f"spec.template.volumes[{i}]: a serviceAccountToken needs spec.template.serviceAccountName, which must be allowed"
            )


def _projects_token(volume: Mapping[str, Json]) -> bool:
    return any("serviceAccountToken" in source for source in (volume.get("projected") or {}).get("sources") or [])
