"""The data between observe → decide → act.

One reconcile of a run is a bounded loop of *turns* (at most TURNS_MAX, then the key goes back to the queue):

    seen     = observe(key)          # live GET of the run, live LIST of its pods, then journal meta and head: no cache
    decision = decide(seen, rules=…, now_epoch_ms=…)
    act(decision)
    again while decision.again, or while a write was refused because the world had moved on

`act` runs one decision in this order:

    1. `status`   PATCH of the status subresource with the JSON patch it holds (its tests included). A failed test
                  ends the turn: observe again. Nothing else of the turn runs.
    2. `events`   best effort; an Event that is lost is lost.
    3. `actions`  in order. The first one whose outcome is not "done" ends the turn. Each is idempotent: "already so"
                  is done (a Secret that exists and is ours, a pod that is gone, an inbox id that is known).
    4. `again`    True: observe and decide once more now. False: look again at `look_again_epoch_ms` (None: at the
                  next event or resync).

Pods are listed before the journal is read: what a pod wrote before it ended is then always seen together with its end.

So one turn is one protocol step, and every step starts from a fresh look. The attempt protocol is three turns: the
status bump (a turn of its own: `status` with attempt n), then `Fence(n), EnsureRunSecret, CreatePod(n)` in one turn,
then a look at the new pod. `Fence` names the head that decide saw: when the fence answers OK but with another head,
somebody wrote in between and the turn ends there, so a `finished` record is always seen before a pod is made. A crash
between any two writes is harmless: the next look finds what was written and decides the rest.

What an action was *refused* (quota, pod security, missing ConfigMap, …) comes back in `Observed.refusals`: the worker
keeps the last refusal per action in memory until that action succeeds or the run's generation changes. decide turns it
into a condition and a retry time; a retry happens only when decide asks for the action again. What the API server
answers with 429, 5xx or nothing is not a refusal: the worker retries with its own back-off.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from everstep.ids import Attempt, EpochMs, InboxId, JournalId, Owner, RecordHash, RunName, Seq
from everstep.journal.inbox import CancelBody, SettleBody
from everstep.journal.progress import Progress
from everstep.journal.records import Json, Record, Waited
from everstep.journal.store import Head
from everstep_operator.api.models import AgentRunSpec, AgentRunStatus, NodeLossPolicy

TURNS_MAX = 12
"""Turns per reconcile. The longest honest chain (prepare, dry run, bump, fence + create, look) is 6; more means a
loop."""


# --- observed


@dataclass(frozen=True)
class RunView:
    """The AgentRun as a live GET returned it."""

    namespace: str
    name: RunName
    uid: JournalId
    """`metadata.uid`, which is also the journal's id."""
    generation: int
    resource_version: str
    created_epoch_ms: EpochMs
    spec: AgentRunSpec | None
    """None when it cannot be read; then `spec_error` says why."""
    status: AgentRunStatus
    raw_status: Mapping[str, Json] | None
    """As the server holds it, for the tests of a status patch; None when there is none yet."""
    deletion_epoch_ms: EpochMs | None = None
    spec_error: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


class ContainerState(enum.StrEnum):
    """State of a container, as the kubelet told it."""

    ABSENT = "absent"
    """No status of the container yet."""
    WAITING = "waiting"
    RUNNING = "running"
    TERMINATED = "terminated"


@dataclass(frozen=True)
class ContainerView:
    """The container `agent`. What its state does not have is empty or None."""

    state: ContainerState = ContainerState.ABSENT
    reason: str = ""
    """Waiting: ImagePullBackOff …; terminated: Completed, Error, OOMKilled, StartError, ContainerStatusUnknown …"""
    message: str = ""
    """Terminated: the termination message."""
    exit_code: int | None = None
    started_epoch_ms: EpochMs | None = None
    finished_epoch_ms: EpochMs | None = None
    container_id: str = ""
    image_id: str = ""
    """The digest that runs, e.g. `docker.io/library/x@sha256:…`; pinned at the first attempt."""
    memory_limit_bytes: int | None = None


@dataclass(frozen=True)
class PodCondition:
    """As in a pod's status."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    since_epoch_ms: EpochMs | None = None


@dataclass(frozen=True)
class NodeView:
    """What is known of the pod's node. `None` in PodView.node_view = not looked at, or not allowed to."""

    exists: bool = True
    ready: bool = True
    """Ready condition is True."""
    unreachable_since_epoch_ms: EpochMs | None = None
    """lastTransitionTime of Ready=Unknown; None while the kubelet reports (also while Ready=False)."""


@dataclass(frozen=True)
class PodView:
    """A pod that carries the label of this run, whoever owns it."""

    name: str
    uid: str
    owned: bool
    """Its controller ownerReference is this run's uid."""
    attempt: Attempt | None
    """From the label `everstep.dev/attempt`; None when absent or not a number."""
    phase: str
    """Pending, Running, Succeeded, Failed, Unknown."""
    created_epoch_ms: EpochMs
    agent: ContainerView = ContainerView()
    node: str = ""
    node_view: NodeView | None = None
    reason: str = ""
    """status.reason: Evicted, NodeAffinity, OutOfcpu, Terminated, NodeShutdown, Preempting …"""
    message: str = ""
    conditions: tuple[PodCondition, ...] = ()
    deletion_epoch_ms: EpochMs | None = None
    """deletionTimestamp. Kubernetes sets it to the time of the request plus the grace period: it is the pod's
    deadline."""
    gone: bool = False
    """True: a live GET or LIST does not have it any more; the rest is what the watch last showed (its DELETED
    event carries the last
    state). The worker remembers such a pod until the attempt after it has a pod. It is proof of death only if the
    kubelet's terminal
    status was in that last state."""
    init_waiting: str = ""
    """First cause shown by an init container that waits, `reason: message`."""

    def condition(self, kind: str) -> PodCondition | None:
        """The condition of this type if its status is True, or PodScheduled in any status."""
        return next(
            (c for c in self.conditions if c.type == kind and (c.status == "True" or kind == "PodScheduled")), None
        )


@dataclass(frozen=True)
class News:
    """From the records with checkpoint.seq < seq <= head; kinds the operator does not know are skipped."""

    progress_seq: Seq | None = None
    """Seq of the newest record of kind result, wait_resolved, fired or settled; None = no progress since the anchor."""
    applied: frozenset[InboxId] = frozenset()
    """`inbox` of records of kind settled, wait_resolved and cancel: these answers are in the chain."""


@dataclass(frozen=True)
class JournalView:
    """The journal as read just now: meta and the newest record."""

    genesis: RecordHash
    """h0 of this journal; the first anchor is (0, h0)."""
    attempt: Attempt = Attempt(0)
    """meta.attempt, the fence in force; 0 = there is no journal."""
    owner: Owner | None = None
    head: Head | None = None
    """None = there is no journal."""
    last: Record | None = None
    """The newest record, decoded; None for an empty journal or when `unreadable`."""
    unreadable: str = ""
    """Why the newest record cannot be decoded (a kind or schema of a newer SDK)."""
    tampered: str = ""
    """Why the newest record is not genuine: its hash is not what its bytes, its previous hash and the run's key give,
    or differs from meta.hash. An anchor is only ever taken from a head that was checked like this."""
    news: News = field(default_factory=News)
    """What the records after `status.checkpoint.seq` tell; read at every look, as anchors keep that tail short."""
    at_anchor: RecordHash | None = None
    """Hash stored at `status.checkpoint.seq`; None when there is no such record (or seq is 0)."""
    progress: Progress | None = None
    inbox: frozenset[InboxId] = frozenset()
    """Ids of all entries in the inbox, read or not."""
    requests: Mapping[str, str] = field(default_factory=dict)
    """HumanRequests of ours: object name → uid, kept in meta (fields `request/<name>`)."""
    deleted_at: str = ""
    """meta field deletedAt."""
    encrypted: bool = False
    """Payloads of `last` are shown as (encrypted), except what a park asks people."""
    erased: bool = False
    """The data key was destroyed: nothing can go on from here."""


@dataclass(frozen=True)
class JournalDown:
    """The journal could not be read."""

    reason: str
    """In words a user can act on, without credentials."""
    since_epoch_ms: EpochMs


@dataclass(frozen=True)
class StoreHealth:
    """The durability check of the whole store."""

    problems: tuple[str, ...] = ()
    """Each with its cure. Not empty: no new runs."""
    server: str = ""


@dataclass(frozen=True)
class Answer:
    """`spec.response` of a HumanRequest."""

    decision: str
    value: Json = None
    reason: str = ""
    by: str = ""
    arguments_digest: str = ""


@dataclass(frozen=True)
class RequestView:
    """A HumanRequest whose runRef names this run."""

    name: str
    uid: str
    run_uid: str
    kind: str
    key: str
    arguments_digest: str
    response: Answer | None = None
    state: str = ""
    """status.state: Open, Answered, Applied, Stale; "" before it was written."""
    prompt: str = ""


class Asked(enum.StrEnum):
    """Actions that the API server may refuse for a reason a user must know."""

    PREPARE = "Prepare"
    CREATE_POD = "CreatePod"
    CREATE_REQUEST = "CreateRequest"
    DELETE_POD = "DeletePod"


@dataclass(frozen=True)
class Refusal:
    """An action was answered with a 4xx other than 409 and 429, or could not be built."""

    action: Asked
    code: int
    """HTTP status; 0 when it was refused before any request (e.g. the goal's ConfigMap has no such key)."""
    reason: str
    """Status reason of the server (Forbidden, Invalid, NotFound …), or ours: GoalNotFound, SecretConflict,
    ForeignPod, InvalidInputs."""
    message: str
    at_epoch_ms: EpochMs
    generation: int
    """The run's generation when it was asked."""
    attempt: Attempt | None = None
    """CreatePod: the number that was tried."""


@dataclass(frozen=True)
class Observed:
    """Everything decide may know of one run."""

    namespace: str
    name: RunName
    uid: JournalId
    run: RunView | None
    """None: a live GET answered 404, or another uid lives under this name."""
    pods: tuple[PodView, ...] = ()
    journal: JournalView | JournalDown = field(default_factory=lambda: JournalDown("not read yet", EpochMs(0)))
    requests: tuple[RequestView, ...] = ()
    store: StoreHealth = StoreHealth()
    prepared_generation: int | None = None
    """Generation for which `Prepare` succeeded in this process; None = not yet."""
    refusals: tuple[Refusal, ...] = ()


@dataclass(frozen=True)
class Rules:
    """The operator's settings that deciding needs. Times in seconds."""

    store_name: str = "redis"
    """`status.checkpoint.store`: a name for people, never a URL with credentials."""
    journal_key_format: str = "{uid}"
    """`status.checkpoint.key`, formatted with the run's uid."""
    default_image: str = ""
    """Agent image of runs that name none."""
    anchor_every_s: int = 30
    """While steps advance the anchor is written at least this often; a cut behind it goes unnoticed."""
    progress_every_s: int = 5
    """lastStep, steps and usage ride in a status write at most this often: fresh enough for the eye, 0.2 writes a
    second per busy run."""
    poll_live_s: int = 5
    """How often a run with a live pod is looked at: the journal has no watch that reaches the operator."""
    poll_start_s: int = 1
    """The same while an attempt starts or replays, or a pod is awaited to end: short, and people look at it."""
    resync_s: int = 180
    """Every run is looked at at least this often, whatever the watches said."""
    disruption_backoff_s: int = 1
    """Before the second disruption in a row without progress; doubles. The first one is made good at once."""
    disruption_backoff_max_s: int = 60
    not_started_backoff_s: int = 5
    """After a pod that the kubelet refused or could not start; doubles."""
    not_started_backoff_max_s: int = 300
    node_loss_policy: NodeLossPolicy = "Fence"
    """Where the run says nothing."""
    node_loss_after_s: int = 60
    """Where the run says nothing."""
    not_started_retry_s: int = 30
    """After a refused create that can heal by itself (quota, missing goal)."""
    refused_retry_s: int = 300
    """After a refusal that only a change of the spec or of the namespace's labels can cure (pod security, invalid pod): a
    new generation is tried at once, a changed label after this at the latest. The try costs one refused request."""
    pending_deadline_s: int = 600
    """A pod bound to a node whose container still has not started is replaced after this (E13)."""
    no_progress_losses: int = 20
    """Disruptions in a row without progress after which an Event warns; they stay uncharged."""
    failed_pods_kept: int = 2
    store_down_retry_s: int = 5


# --- decided


@dataclass(frozen=True)
class PatchStatus:
    """A JSON patch of the status subresource, tests included; send it as it is."""

    operations: tuple[Mapping[str, Json], ...]
    status: Mapping[str, Json]
    """The whole new status, for tests and logs."""


class EventType(enum.StrEnum):
    """Kubernetes knows these two."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True)
class EmitEvent:
    """An events.k8s.io Event about the run."""

    type: EventType
    reason: str
    note: str
    """At most 1,024 bytes."""
    action: str = "Reconcile"


@dataclass(frozen=True)
class Prepare:
    """Before attempt 1: make the run's Secret (the goal resolved and copied, immutable from then on), then create
    the first pod
    as a dry run. Done = both went through; the worker then sets `prepared_generation`. Writes no journal and no
    status."""

    attempt: Attempt = Attempt(1)


@dataclass(frozen=True)
class Fence:
    """Store.fence with this attempt and anchor. Done only if the answer is OK *and* the head in the reply equals
    `expect`
    (None: no check). Any other answer ends the turn: observe again."""

    attempt: Attempt
    anchor: Head
    expect: Head | None


@dataclass(frozen=True)
class EnsureRunSecret:
    """Create the run's Secret if it is absent; never overwrite it. Refused with SecretConflict if one of that
    name is not ours."""


@dataclass(frozen=True)
class CreatePod:
    """POST the pod `<run>-<attempt>`, built by `api.pod`. 409 ends the turn: the next look adopts it if it is ours, and
    decide goes to the next number if it is not (`Refusal` ForeignPod)."""

    attempt: Attempt
    anchor: Head
    predecessor_dead: bool
    image: str
    """The pinned image, or the spec's (or the operator's default) for the first attempt: "" = the operator's
    default."""
    not_on_nodes: tuple[str, ...] = ()
    """Nodes to keep off: the attempt before was lost there and it may not be over."""
    memory_limit_bytes: int | None = None
    """Raised limit after out-of-memory; None = as in the spec."""


@dataclass(frozen=True)
class DeletePod:
    """DELETE with the uid as precondition and the pod's own grace period; never forced. 404 and another uid are
    done."""

    name: str
    uid: str
    reason: str


@dataclass(frozen=True)
class AddInbox:
    """Store.inbox_add, sealed with the run's key by `everstep.journal.inbox.make_entry`."""

    entry_id: InboxId
    body: CancelBody | SettleBody


@dataclass(frozen=True)
class CreateRequest:
    """POST a HumanRequest built by `api.request`, then keep its uid in the journal's meta (`request/<name>`).
    409: done, if its uid is
    already kept, or it has no response and asks the same (then keep its uid); else a Refusal."""

    name: str
    wait: Waited
    number: int = 1
    """How often this wait has been asked about, this time included (`api.request.request_name`)."""


@dataclass(frozen=True)
class SetRequestState:
    """Write `status.state` (and message, appliedTime with Applied) of a HumanRequest, by merge patch with a uid test."""

    name: str
    uid: str
    state: str
    message: str = ""


@dataclass(frozen=True)
class MarkDeleted:
    """Set meta.deletedAt once (RFC 3339): the sweeper takes the journal after a delay and a live 404 for the uid."""

    at: str


@dataclass(frozen=True)
class DeleteRun:
    """DELETE the AgentRun with uid and resourceVersion as preconditions (ttlSecondsAfterFinished is over)."""

    resource_version: str


Action: TypeAlias = (
    Prepare
    | Fence
    | EnsureRunSecret
    | CreatePod
    | DeletePod
    | AddInbox
    | CreateRequest
    | SetRequestState
    | MarkDeleted
    | DeleteRun
)


@dataclass(frozen=True)
class Decision:
    """One turn. See the module's docstring for the order in which it is acted on."""

    status: PatchStatus | None = None
    events: tuple[EmitEvent, ...] = ()
    actions: tuple[Action, ...] = ()
    again: bool = False
    look_again_epoch_ms: EpochMs | None = None
    summary: str = ""
    """For logs and metrics: the summary after this turn."""
    reason: str = ""
