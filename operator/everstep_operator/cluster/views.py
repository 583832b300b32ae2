"""From the API server's dictionaries to the views that decide reads. Pure; tolerant of everything that may be absent.

A pod is read from its container `agent` alone: a sidecar must neither keep a dead run Running nor end a live one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from pydantic import ValidationError

from everstep.contract import AGENT_CONTAINER
from everstep.ids import Attempt, EpochMs, JournalId, RunName
from everstep_operator.api.models import AgentRunStatus, read_spec, read_status
from everstep_operator.api.times import epoch_ms
from everstep_operator.api.words import LABEL_ATTEMPT
from everstep_operator.cluster.api import Json
from everstep_operator.decide.model import (
    Answer,
    ContainerState,
    ContainerView,
    NodeView,
    PodCondition,
    PodView,
    RequestView,
    RunView,
)


def run_view(run: Json) -> RunView:
    """The AgentRun. A spec that cannot be read is data too (`spec_error`)."""
    meta = run["metadata"]
    raw_status = run.get("status")
    spec, spec_error = None, ""
    try:
        spec = read_spec(run.get("spec") or {})
    except ValidationError as e:
        first = e.errors()[0]
        spec_error = f"spec.{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    try:
        status = read_status(raw_status)
    except ValidationError:
        # Only something other than this operator can have written it; what it holds of attempts must still be honoured.
        status = AgentRunStatus(attempt=_whole((raw_status or {}).get("attempt")) or 0)
    return RunView(
        namespace=meta["namespace"],
        name=RunName(meta["name"]),
        uid=JournalId(meta["uid"]),
        generation=_whole(meta.get("generation")) or 0,
        resource_version=meta.get("resourceVersion", ""),
        created_epoch_ms=epoch_ms(meta.get("creationTimestamp")) or EpochMs(0),
        spec=spec,
        status=status,
        raw_status=raw_status,
        deletion_epoch_ms=epoch_ms(meta.get("deletionTimestamp")),
        spec_error=spec_error,
        labels=meta.get("labels") or {},
        annotations=meta.get("annotations") or {},
    )


def controller_uid(thing: Json) -> str:
    """The uid of its controller; "" without one."""
    owners: Sequence[Json] = thing["metadata"].get("ownerReferences") or []
    return next((owner.get("uid", "") for owner in owners if owner.get("controller")), "")


def pod_view(pod: Json, run_uid: str, *, gone: bool = False) -> PodView:
    """A pod with the label of the run `run_uid`."""
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    number = _whole((meta.get("labels") or {}).get(LABEL_ATTEMPT))
    return PodView(
        name=meta["name"],
        uid=meta["uid"],
        owned=controller_uid(pod) == run_uid,
        attempt=None if number is None else Attempt(number),
        phase=status.get("phase") or "Pending",
        created_epoch_ms=epoch_ms(meta.get("creationTimestamp")) or EpochMs(0),
        agent=_container(spec, status),
        node=spec.get("nodeName") or "",
        reason=status.get("reason") or "",
        message=status.get("message") or "",
        conditions=tuple(_condition(c) for c in status.get("conditions") or []),
        deletion_epoch_ms=epoch_ms(meta.get("deletionTimestamp")),
        gone=gone,
        init_waiting=_init_waiting(status),
    )


def in_doubt(pod: PodView) -> bool:
    """Whether the node must be looked at to judge this pod: it is being deleted, is bound but does not run, or its readiness
    was withdrawn while its container is said to run (what the node controller does to a lost node's pods)."""
    if not pod.node or pod.gone or pod.phase in ("Succeeded", "Failed"):
        return False
    if pod.deletion_epoch_ms is not None or pod.agent.state is not ContainerState.RUNNING:
        return True
    ready = next((c for c in pod.conditions if c.type == "Ready"), None)
    return ready is not None and ready.status != "True"


def with_node(pod: PodView, node: NodeView | None) -> PodView:
    """The pod with what is known of its node."""
    return replace(pod, node_view=node)


def node_view(node: Json | None) -> NodeView:
    """Readiness of a node; one that does not exist is neither there nor ready."""
    if node is None:
        return NodeView(exists=False, ready=False)
    conditions = (node.get("status") or {}).get("conditions") or []
    ready: Json = next((c for c in conditions if c.get("type") == "Ready"), {})
    unknown = ready.get("status") == "Unknown"
    return NodeView(
        exists=True,
        ready=ready.get("status") == "True",
        unreachable_since_epoch_ms=epoch_ms(ready.get("lastTransitionTime")) if unknown else None,
    )


def request_view(request: Json) -> RequestView:
    """A HumanRequest."""
    meta, spec = request["metadata"], request.get("spec") or {}
    ref, response = spec.get("runRef") or {}, spec.get("response")
    answer = None
    if isinstance(response, dict):
        answer = Answer(
            decision=str(response.get("decision") or ""),
            value=response.get("value"),
            reason=str(response.get("reason") or ""),
            by=str(response.get("by") or ""),
            arguments_digest=str(response.get("argumentsDigest") or ""),
        )
    return RequestView(
        name=meta["name"],
        uid=meta["uid"],
        run_uid=str(ref.get("uid") or ""),
        kind=str(spec.get("kind") or ""),
        key=str(spec.get("key") or ""),
        arguments_digest=str(spec.get("argumentsDigest") or ""),
        response=answer,
        state=str((request.get("status") or {}).get("state") or ""),
        prompt=str(spec.get("prompt") or ""),
    )


def _container(spec: Json, status: Json) -> ContainerView:
    declared: Json = next((c for c in spec.get("containers") or [] if c.get("name") == AGENT_CONTAINER), {})
    limit = quantity(((declared.get("resources") or {}).get("limits") or {}).get("memory"))
    told = next((c for c in status.get("containerStatuses") or [] if c.get("name") == AGENT_CONTAINER), None)
    if told is None:
        return ContainerView(memory_limit_bytes=limit)
    state: Mapping[str, Any] = told.get("state") or {}
    kind = next((k for k in (ContainerState.TERMINATED, ContainerState.RUNNING) if k.value in state), None)
    detail = state.get(kind.value if kind else "waiting") or {}
    return ContainerView(
        state=kind or ContainerState.WAITING,
        reason=detail.get("reason") or "",
        message=detail.get("message") or "",
        exit_code=_whole(detail.get("exitCode")),
        started_epoch_ms=epoch_ms(detail.get("startedAt")),
        finished_epoch_ms=epoch_ms(detail.get("finishedAt")),
        container_id=told.get("containerID") or detail.get("containerID") or "",
        image_id=told.get("imageID") or "",
        memory_limit_bytes=limit,
    )


def _condition(condition: Json) -> PodCondition:
    return PodCondition(
        type=condition.get("type") or "",
        status=condition.get("status") or "",
        reason=condition.get("reason") or "",
        message=condition.get("message") or "",
        since_epoch_ms=epoch_ms(condition.get("lastTransitionTime")),
    )


def _init_waiting(status: Json) -> str:
    for container in status.get("initContainerStatuses") or []:
        waiting = (container.get("state") or {}).get("waiting")
        if waiting and waiting.get("reason") not in (None, "PodInitializing"):
            return f"{waiting['reason']}: {waiting.get('message') or container.get('name')}"
    return ""


_SUFFIXES: Final[Mapping[str, int | Decimal]] = {
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
    "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18, "m": Decimal("0.001"),
}  # fmt: skip


def quantity(text: object) -> int | None:
    """A Kubernetes quantity such as `512Mi`, rounded down; None for what is absent or is none."""
    if text is None:
        return None
    digits = str(text)
    factor: int | Decimal = 1
    for suffix, value in _SUFFIXES.items():
        if digits.endswith(suffix):
            digits, factor = digits[: -len(suffix)], value
            break
    try:
        return int(Decimal(digits) * factor)
    except InvalidOperation:
        return None


def _whole(value: object) -> int | None:
    try:
        return None if value is None else int(str(value))
    except ValueError:
        return None
