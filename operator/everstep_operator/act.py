"""Acting on one decision, in the order that `everstep_operator.decide.model` fixes. Every act is idempotent: a crash between any
two is answered by looking again. Fault points lie before and after each, for the tests that kill the operator there.
"""

import base64
import contextlib
import enum
import logging
from collections.abc import Coroutine, Mapping
from typing import Final

from everstep.clock import Clock
from everstep.errors import ConfigError, JournalUnavailable, TerminalError
from everstep.ids import Attempt, JournalId, Seq
from everstep.journal.datakeys import fresh_keys
from everstep.journal.store import FenceAnswer, Head
from everstep_operator import faults
from everstep_operator.api.meta import RunRef
from everstep_operator.api.models import AgentRunSpec, Json, KeyRef
from everstep_operator.api.pod import AttemptPlan, InvalidTemplate, PodDefaults, build_attempt_pod, pod_name
from everstep_operator.api.request import asks_the_same, build_request
from everstep_operator.api.secret import (
    InvalidSecretData,
    RunSecretData,
    build_run_secret,
    data_keys_in,
    is_ours,
    secret_name,
)
from everstep_operator.api.times import whole_seconds
from everstep_operator.api.words import ANNOTATION_SEAL, API_VERSION, LABEL_ATTEMPT, RUN_KIND
from everstep_operator.cluster import events
from everstep_operator.cluster.client import MOVED_ON, Cluster
from everstep_operator.cluster.views import controller_uid
from everstep_operator.decide.model import (
    Action,
    AddInbox,
    Asked,
    CreatePod,
    CreateRequest,
    Decision,
    DeletePod,
    DeleteRun,
    EmitEvent,
    EnsureRunSecret,
    Fence,
    JournalView,
    MarkDeleted,
    Observed,
    PatchStatus,
    Prepare,
    Refusal,
    SetRequestState,
)
from everstep_operator.errors import AlreadyExists, ClusterRefused, NotFound
from everstep_operator.journal_view import Journals, anchor_to_tell
from everstep_operator.memory import RunMemory
from everstep_operator.metrics import Metrics
from everstep_operator.settings import Settings

GOAL_NOT_FOUND: Final = "GoalNotFound"
SECRET_CONFLICT: Final = "SecretConflict"
FOREIGN_POD: Final = "ForeignPod"
DATA_KEY_MISSING: Final = "DataKeyMissing"
INVALID_INPUTS: Final = "InvalidInputs"
INVALID_TEMPLATE: Final = "InvalidTemplate"
FOREIGN_REQUEST: Final = "ForeignRequest"

log = logging.getLogger(__name__)


class Outcome(enum.StrEnum):
    """How an act went."""

    DONE = "done"
    MOVED = "moved"
    """The world had changed under us, or the journal did not answer: the turn ends, look again."""
    REFUSED = "refused"
    """The API server, or what the user wrote, does not allow it; kept in memory as a Refusal. The turn ends, look again."""


class Refused(TerminalError):
    """An act cannot be done as asked; becomes a Refusal."""

    def __init__(self, reason: str, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.reason, self.message, self.code = reason, message, code


class Actor:
    """Does what was decided. Raises ClusterUnavailable when the API server does not answer (the queue retries) and
    ClusterRefused for what must never be refused, such as our own status."""

    def __init__(
        self, cluster: Cluster, journals: Journals, settings: Settings, metrics: Metrics, clock: Clock, *, instance: str
    ) -> None:
        self._cluster, self._journals, self._metrics, self._clock = cluster, journals, metrics, clock
        self._settings, self._instance = settings, instance
        self._defaults = PodDefaults(
            installation=settings.installation,
            image=settings.default_image,
            resources=settings.default_resources(),
            toleration_s=settings.toleration_s,
            service_accounts=frozenset(settings.allowed_service_accounts),
        )

    async def act(self, seen: Observed, decision: Decision, memory: RunMemory) -> Outcome:
        """One turn: status, Events, actions. Stops at the first act that is not done."""
        if decision.status is not None and await self._patch_status(seen, decision.status, memory) is not Outcome.DONE:
            return Outcome.MOVED
        if decision.status is not None:
            await self._tell_anchor(seen, decision.status)
        for event in decision.events:
            await self._emit(seen, event)
        for action in decision.actions:
            outcome = await self._one(seen, action, memory)
            kind = type(action).__name__
            self._metrics.actions.labels(kind, outcome.value).inc()
            log.log(
                logging.INFO if outcome is Outcome.DONE else logging.WARNING,
                "%s/%s: %s: %s", seen.namespace, seen.name, _shown(action), outcome.value,
            )  # fmt: skip
            if outcome is not Outcome.DONE:
                return outcome
        return Outcome.DONE

    async def _one(self, seen: Observed, action: Action, memory: RunMemory) -> Outcome:
        """One action; refusals go to memory."""
        asked, attempt = _asked(action)
        try:
            outcome = await self._do(seen, action, memory)
        except MOVED_ON:
            return Outcome.MOVED
        except JournalUnavailable as e:
            log.warning("%s/%s: %s", seen.namespace, seen.name, e)
            return Outcome.MOVED
        except (ClusterRefused, Refused) as e:
            if asked is None:
                raise
            code = e.status if isinstance(e, ClusterRefused) else e.code
            now = self._clock.now_epoch_ms()
            refusal = Refusal(asked, code, e.reason, e.message, now, memory.generation, attempt)
            memory.refusals[asked] = refusal
            log.warning("%s/%s: %s refused: %s", seen.namespace, seen.name, asked, e.message)
            return Outcome.REFUSED
        if outcome is Outcome.DONE and asked is not None:
            memory.refusals.pop(asked, None)
        return outcome

    async def _do(self, seen: Observed, action: Action, memory: RunMemory) -> Outcome:
        outcome = Outcome.DONE
        match action:
            case Prepare():
                outcome = await self._prepare(seen, action, memory)
            case Fence():
                point = "fence" if seen.run is not None else "fence_deleted"
                outcome = await _between(point, self._fence(seen, action))
            case EnsureRunSecret():
                outcome = await self._ensure_secret(seen)
            case CreatePod():
                outcome = await self._create_pod(seen, action)
            case DeletePod():
                outcome = await _between("delete_pod", self._delete_pod(seen, action))
            case AddInbox():
                outcome = await _between("inbox", self._add_inbox(seen, action))
            case CreateRequest():
                outcome = await self._create_request(seen, action)
            case SetRequestState():
                outcome = await self._set_request_state(seen, action)
            case MarkDeleted():
                await self._journals.mark_deleted(seen.uid, action.at)
            case DeleteRun():
                version = action.resource_version
                if not await self._cluster.delete_run(seen.namespace, seen.name, seen.uid, version):
                    outcome = Outcome.MOVED
        return outcome

    # --- status and Events

    async def _patch_status(self, seen: Observed, patch: PatchStatus, memory: RunMemory) -> Outcome:
        """The bump of status.attempt has fault points of its own, as it is a step of the attempt protocol."""
        before = (seen.run.raw_status or {}) if seen.run else {}
        what = "bump" if patch.status.get("attempt", 0) != before.get("attempt", 0) else "status"
        faults.reach(f"before_{what}")
        try:
            answer = await self._cluster.patch_status(seen.namespace, seen.name, patch.operations)
        except (*MOVED_ON, NotFound) as e:
            self._metrics.actions.labels("PatchStatus", Outcome.MOVED.value).inc()
            log.debug("%s/%s: status not written: %s", seen.namespace, seen.name, e)
            return Outcome.MOVED
        faults.reach(f"after_{what}")
        memory.written_version = str((answer.get("metadata") or {}).get("resourceVersion") or "")
        self._metrics.actions.labels("PatchStatus", Outcome.DONE.value).inc()
        self._count_ends(before, patch.status)
        return Outcome.DONE

    async def _tell_anchor(self, seen: Observed, patch: PatchStatus) -> None:
        """Only now that it is in etcd. Best effort: the next status write tells it again."""
        anchor = (
            anchor_to_tell(seen.journal, patch.status.get("checkpoint"))
            if isinstance(seen.journal, JournalView)
            else None
        )
        if anchor is not None:
            with contextlib.suppress(JournalUnavailable):
                await self._journals.tell_anchor(seen.uid, anchor)

    def _count_ends(self, before: Json, after: Json) -> None:
        ended = {a.get("number") for a in before.get("attempts") or [] if a.get("class")}
        for attempt in after.get("attempts") or []:
            if attempt.get("class") and attempt.get("number") not in ended:
                self._metrics.attempts_ended.labels(attempt["class"]).inc()

    async def _emit(self, seen: Observed, event: EmitEvent) -> None:
        about = {
            "apiVersion": API_VERSION,
            "kind": RUN_KIND,
            "namespace": seen.namespace,
            "name": seen.name,
            "uid": seen.uid,
        }
        faults.reach("before_event")
        now = whole_seconds(self._clock.now_epoch_ms())
        await events.record(
            self._cluster,
            about,
            kind=event.type.value,
            reason=event.reason,
            note=event.note,
            now=now,
            instance=self._instance,
        )

    # --- attempts

    async def _fence(self, seen: Observed, action: Fence) -> Outcome:
        keys = await self._first_data_keys(seen)
        reply = await self._journals.fence(
            seen.uid, action.attempt, action.anchor, namespace=seen.namespace, name=seen.name, data_keys=keys
        )
        if reply.answer is not FenceAnswer.OK:
            return Outcome.MOVED
        return Outcome.DONE if action.expect is None or reply.head == action.expect else Outcome.MOVED

    async def _first_data_keys(self, seen: Observed) -> Mapping[str, bytes]:
        """For a journal that is yet to begin: those that the run's Secret holds, {} if it was made without; new ones if somebody
        removed it, which the next one is made with."""
        if seen.run is None or not isinstance(seen.journal, JournalView) or seen.journal.attempt > 0:
            return {}
        found = await self._cluster.get_secret(seen.namespace, secret_name(_ref(seen)))
        if found is not None and is_ours(found, _ref(seen)):
            with contextlib.suppress(InvalidSecretData):
                return data_keys_in(found)
        return fresh_keys(self._clock.random_bytes) if self._settings.encrypt else {}

    async def _prepare(self, seen: Observed, action: Prepare, memory: RunMemory) -> Outcome:
        await self._ensure_secret(seen)
        genesis = seen.journal.genesis if isinstance(seen.journal, JournalView) else None
        if genesis is None:
            return Outcome.MOVED
        plan = AttemptPlan(action.attempt, _NO_SEQ, genesis)
        pod = self._build(seen, plan)
        with contextlib.suppress(AlreadyExists):  # the attempt itself will tell whose pod it is
            await self._cluster.create_pod(seen.namespace, pod, dry_run=True)
        memory.prepared_generation = seen.run.generation if seen.run else None
        return Outcome.DONE

    async def _create_pod(self, seen: Observed, action: CreatePod) -> Outcome:
        plan = AttemptPlan(
            attempt=action.attempt,
            anchor_seq=action.anchor.seq,
            anchor_hash=action.anchor.hash,
            predecessor_dead=action.predecessor_dead,
            image=action.image,
            not_on_nodes=action.not_on_nodes,
            memory_limit_bytes=action.memory_limit_bytes,
        )
        pod = self._build(seen, plan)
        faults.reach("before_create_pod")
        try:
            await self._cluster.create_pod(seen.namespace, pod)
        except AlreadyExists:
            return await self._whose_pod(seen, action.attempt)
        faults.reach("after_create_pod")
        self._metrics.attempts.inc()
        return Outcome.DONE

    async def _whose_pod(self, seen: Observed, attempt: Attempt) -> Outcome:
        name = pod_name(seen.name, attempt)
        found = await self._cluster.get_pod(seen.namespace, name)
        if found is None:
            return Outcome.MOVED
        label = (found["metadata"].get("labels") or {}).get(LABEL_ATTEMPT)
        if controller_uid(found) == seen.uid and label == str(attempt):
            return Outcome.MOVED  # ours, made before a crash or by another replica: the next look adopts it
        raise Refused(FOREIGN_POD, f"a pod named {name} exists and does not belong to this run", 409)

    def _build(self, seen: Observed, plan: AttemptPlan) -> dict[str, Json]:
        try:
            return build_attempt_pod(_ref(seen), _spec(seen), plan, self._defaults)
        except InvalidTemplate as e:
            raise Refused(INVALID_TEMPLATE, str(e)) from e

    async def _delete_pod(self, seen: Observed, action: DeletePod) -> Outcome:
        await self._cluster.delete_pod(seen.namespace, action.name, action.uid)
        return Outcome.DONE

    # --- the run's Secret

    async def _ensure_secret(self, seen: Observed) -> Outcome:
        ref, spec = _ref(seen), _spec(seen)
        name = secret_name(ref)
        found = await self._cluster.get_secret(seen.namespace, name)
        if found is None:
            secret = await self._build_secret(seen, ref, spec)
            faults.reach("before_create_secret")
            try:
                await self._cluster.create_secret(seen.namespace, secret)
                faults.reach("after_create_secret")
                return Outcome.DONE
            except AlreadyExists:
                found = await self._cluster.get_secret(seen.namespace, name)
        if found is not None and not is_ours(found, ref):
            raise Refused(
                SECRET_CONFLICT, f"a Secret named {name} exists and does not belong to this run; delete it", 409
            )
        if found is not None:
            await self._same_data_keys(seen, name, found)
        return Outcome.DONE

    async def _same_data_keys(self, seen: Observed, name: str, found: dict[str, Json]) -> None:
        """What a pod seals with must be what the journal keeps, or nobody else could read it."""
        kept = await self._kept_data_keys(seen)
        try:
            same = kept is None or data_keys_in(found) == kept
        except InvalidSecretData:
            same = False
        if not same:
            raise Refused(SECRET_CONFLICT, f"Secret {name} holds another data key than the journal; delete it", 409)

    async def _kept_data_keys(self, seen: Observed) -> Mapping[str, bytes] | None:
        try:
            return await self._journals.data_keys(seen.uid)
        except ConfigError as e:
            raise Refused(DATA_KEY_MISSING, str(e)) from e

    async def _build_secret(self, seen: Observed, ref: RunRef, spec: AgentRunSpec) -> dict[str, Json]:
        anchor = None
        if isinstance(seen.journal, JournalView):
            anchor = Head(_NO_SEQ, seen.journal.genesis)
        key_id, key = await self._journals.run_key(seen.uid, anchor)
        data_keys = await self._kept_data_keys(seen)
        if data_keys is None:
            data_keys = fresh_keys(self._clock.random_bytes) if self._settings.encrypt else {}
        try:
            data = RunSecretData(
                goal=await self._goal(seen.namespace, spec),
                inputs=spec.inputs,
                run_key=key,
                key_id=key_id,
                store_url=self._settings.agent_store_url(),
                store_ca_pem=self._settings.store_ca_pem(),
                data_keys=data_keys,
            )
            return build_run_secret(ref, data, self._settings.installation)
        except InvalidSecretData as e:
            raise Refused(INVALID_INPUTS, str(e)) from e
        except ConfigError as e:
            raise Refused("OperatorMisconfigured", f"the operator's settings: {e}") from e

    async def _goal(self, namespace: str, spec: AgentRunSpec) -> str:
        source = spec.goal_from
        if source is None:
            return spec.goal or ""
        if source.secret_key_ref is not None:
            ref = source.secret_key_ref
            found = await self._cluster.get_secret(namespace, ref.name)
            text = ((found or {}).get("data") or {}).get(ref.key)
            return _decoded(_there(text, "Secret", ref, found is not None), ref)
        if source.config_map_key_ref is not None:
            ref = source.config_map_key_ref
            found = await self._cluster.get_config_map(namespace, ref.name)
            text = ((found or {}).get("data") or {}).get(ref.key)
            return _there(text, "ConfigMap", ref, found is not None)
        raise Refused(GOAL_NOT_FOUND, "spec.goalFrom names neither a ConfigMap nor a Secret")

    # --- people

    async def _add_inbox(self, seen: Observed, action: AddInbox) -> Outcome:
        await self._journals.inbox_add(seen.uid, action.entry_id, action.body)
        return Outcome.DONE

    async def _create_request(self, seen: Observed, action: CreateRequest) -> Outcome:
        """The seal proves later that we made this question, even if we died before noting its uid and it was answered since."""
        wanted = build_request(_ref(seen), action.wait, self._settings.installation, action.number)
        seal = await self._journals.seal_request(seen.uid, action.name, wanted["spec"])
        wanted["metadata"].setdefault("annotations", {})[ANNOTATION_SEAL] = seal
        faults.reach("before_create_request")
        try:
            made = await self._cluster.create_request(seen.namespace, wanted)
        except AlreadyExists:
            found = await self._cluster.get_request(seen.namespace, action.name)
            if found is None:
                return Outcome.MOVED
            kept = seen.journal.requests if isinstance(seen.journal, JournalView) else {}
            if kept.get(action.name) == found["metadata"]["uid"]:
                return Outcome.DONE
            sealed = (found["metadata"].get("annotations") or {}).get(ANNOTATION_SEAL) == seal
            if controller_uid(found) != seen.uid or not (sealed or asks_the_same(found, wanted)):
                message = f"a HumanRequest named {action.name} exists and is not this run's question; delete it"
                raise Refused(FOREIGN_REQUEST, message, 409) from None
            made = found
        faults.reach("after_create_request")
        await self._journals.keep_request(seen.uid, action.name, made["metadata"]["uid"])
        return Outcome.DONE

    async def _set_request_state(self, seen: Observed, action: SetRequestState) -> Outcome:
        status: dict[str, Json] = {"state": action.state, "message": action.message or None}
        if action.state == "Applied":
            status["appliedTime"] = whole_seconds(self._clock.now_epoch_ms())
        try:
            await self._cluster.patch_request_status(seen.namespace, action.name, action.uid, status)
        except NotFound:
            return Outcome.DONE  # a question that is gone has no state
        return Outcome.DONE


_NO_SEQ: Final = Seq(0)


async def _between(point: str, act: Coroutine[None, None, Outcome]) -> Outcome:
    try:
        faults.reach(f"before_{point}")
    except faults.FaultInjected:
        act.close()
        raise
    outcome = await act
    faults.reach(f"after_{point}")
    return outcome


def _asked(action: Action) -> tuple[Asked | None, Attempt | None]:
    """What a refusal of this action is called; None: it must never be refused."""
    match action:
        case Prepare():
            return Asked.PREPARE, action.attempt
        case CreatePod():
            return Asked.CREATE_POD, action.attempt
        case EnsureRunSecret():
            return Asked.PREPARE, None
        case CreateRequest() | SetRequestState():
            return Asked.CREATE_REQUEST, None
        case DeletePod():
            return Asked.DELETE_POD, None
    return None, None


def _shown(action: Action) -> str:
    """For the log: kind, and what it is about; never a goal, an answer or a key."""
    match action:
        case Fence() | CreatePod() | Prepare():
            return f"{type(action).__name__}({action.attempt})"
        case DeletePod() | CreateRequest() | SetRequestState():
            return f"{type(action).__name__}({action.name})"
        case AddInbox():
            return f"AddInbox({action.entry_id})"
    return type(action).__name__


def _ref(seen: Observed) -> RunRef:
    return RunRef(seen.namespace, seen.name, JournalId(seen.uid))


def _spec(seen: Observed) -> AgentRunSpec:
    if seen.run is None or seen.run.spec is None:
        raise Refused("SpecInvalid", seen.run.spec_error if seen.run else "the run is gone")
    return seen.run.spec


def _there(text: object, kind: str, ref: KeyRef, exists: bool) -> str:
    if isinstance(text, str):
        return text
    what = f"{kind} {ref.name} has no key {ref.key}" if exists else f"there is no {kind} {ref.name}"
    raise Refused(GOAL_NOT_FOUND, f"spec.goalFrom: {what}; create it, the run starts by itself then", 404)


def _decoded(text: str, ref: KeyRef) -> str:
    try:
        return base64.b64decode(text).decode()
    except ValueError as e:
        raise Refused(GOAL_NOT_FOUND, f"spec.goalFrom: key {ref.key} of Secret {ref.name} is not UTF-8 text") from e
