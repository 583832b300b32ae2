"""Models of an AgentRun's spec and status, field by field as in `crds/agentruns.yaml` (a contract test compares them).

Reading is tolerant: unknown fields are ignored, so that an older operator serves a newer schema. Names are snake_case here and
camelCase on the wire (`by_alias`). Times on the wire are RFC 3339 with seconds; see `everstep_operator.api.times`.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.alias_generators import to_camel

Json: TypeAlias = (
    Any  # any JSON value: free input for the agent, or a part of the pod spec that Kubernetes itself checks
)

DesiredState: TypeAlias = Literal["Running", "Suspended", "Cancelled"]
NodeLossPolicy: TypeAlias = Literal["Fence", "Wait"]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)


class KeyRef(_Model):
    """One key of a ConfigMap or Secret in the run's namespace."""

    name: str
    key: str


class GoalFrom(_Model):
    """Where the goal is copied from, once, before attempt 1. Exactly one is set."""

    config_map_key_ref: KeyRef | None = None
    secret_key_ref: KeyRef | None = None


class AgentSpec(_Model):
    """What runs in the container `agent`."""

    entrypoint: str
    """`module:function`."""
    image: str | None = None
    """None = the operator's default agent image."""
    args: tuple[str, ...] = ()
    env: tuple[dict[str, Json], ...] = ()
    env_from: tuple[dict[str, Json], ...] = ()
    resources: dict[str, Json] | None = None
    """None = the operator's defaults."""


class Template(_Model):
    """The allow-listed overlay of the pod. Each field as in a Pod; what is not checked here Kubernetes checks."""

    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    node_selector: dict[str, str] = Field(default_factory=dict)
    affinity: dict[str, Json] | None = None
    tolerations: tuple[dict[str, Json], ...] = ()
    topology_spread_constraints: tuple[dict[str, Json], ...] = ()
    priority_class_name: str | None = None
    runtime_class_name: str | None = None
    scheduler_name: str | None = None
    volumes: tuple[dict[str, Json], ...] = ()
    volume_mounts: tuple[dict[str, Json], ...] = ()
    """Mounted into the container `agent`."""
    sidecars: tuple[dict[str, Json], ...] = ()
    """Containers beside `agent`."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """Of the container `agent`."""
    image_pull_secrets: tuple[dict[str, Json], ...] = ()
    termination_grace_period_seconds: int = 30
    service_account_name: str | None = None
    """Only where the operator's settings allow it."""
    security_context: dict[str, Json] | None = None
    """Pod level (fsGroup, runAsUser …), laid over the restricted default."""


class ApplicationRestarts(_Model):
    """Budget for losses the agent itself caused, reset by progress."""

    max: int = 5
    backoff_seconds: int = 5
    backoff_max_seconds: int = 300


class OutOfMemoryRestarts(_Model):
    """Budget for out-of-memory kills, reset by progress."""

    max: int = 3
    memory_factor_percent: int = 100


class Restarts(_Model):
    """Budgets of charged losses."""

    application: ApplicationRestarts = ApplicationRestarts()
    out_of_memory: OutOfMemoryRestarts = OutOfMemoryRestarts()


class NodeLoss(_Model):
    """What to do when the pod's node does not answer."""

    policy: NodeLossPolicy | None = None
    """None = the operator's setting."""
    after_seconds: int | None = None
    """None = the operator's setting."""


class AgentRunSpec(_Model):
    """What to run and how to keep it running; defaults as the CRD describes them."""

    goal: str | None = None
    goal_from: GoalFrom | None = None
    inputs: dict[str, Json] = Field(default_factory=dict)
    agent: AgentSpec
    template: Template = Template()
    desired_state: DesiredState = "Running"
    restarts: Restarts = Restarts()
    node_loss: NodeLoss = NodeLoss()
    deadline_seconds: int | None = None
    cancel_grace_seconds: int = 30
    ttl_seconds_after_finished: int | None = None


class Checkpoint(_Model):
    """The pointer into the journal, and the anchor: a copy of its head that only grows."""

    store: str = ""
    key: str = ""
    seq: int = 0
    hash: str = ""
    attempt: int = 0
    time: str | None = None


class LastStep(_Model):
    """The newest step the attempt told of."""

    name: str = ""
    key: str = ""
    state: str = ""
    time: str | None = None


class Steps(_Model):
    """Counts of steps."""

    recorded: int = 0
    replayed: int = 0


class Usage(_Model):
    """Sums of what the steps reported."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cost_micro_usd: int = Field(default=0, alias="costMicroUSD")


class AttemptStatus(_Model):
    """One attempt: one number, at most one pod."""

    number: int
    cause: str = ""
    """Why it was started: a reason word (First, Lost, Answered, TimerDue, Resumed, Cancelling, Renumbered)."""
    pod: str = ""
    pod_uid: str = Field(default="", alias="podUID")
    node: str = ""
    start_time: str | None = None
    end_time: str | None = None
    class_: str = Field(default="", alias="class")
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    first_seq: int | None = None
    last_seq: int | None = None
    proven: bool = False
    """A terminal status written by the kubelet proves that its process ended (or never began)."""
    inbox: tuple[str, ...] = ()
    """Ids of the inbox entries it was started for: an attempt is never started twice for the same answer."""


class Losses(_Model):
    """Losses since the last progress of the journal, per class."""

    disruption: int = 0
    out_of_memory: int = 0
    application: int = 0
    not_started: int = 0
    """Attempts since the last progress whose agent container never ran."""


class Waiting(_Model):
    """What a parked run waits for."""

    kind: str
    request: str | None = None
    key: str = ""
    name: str = ""
    since: str | None = None
    deadline: str | None = None
    wake_time: str | None = None


class RunResult(_Model):
    """Identity of the result; the result itself is in the journal."""

    digest: str
    bytes: int


class Condition(_Model):
    """As metav1.Condition."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""
    observed_generation: int = 0
    last_transition_time: str = ""


class AgentRunStatus(_Model):
    """Where the run stands. Bounded; never prompt or answer text."""

    observed_generation: int = 0
    attempt: int = 0
    agent_image: str = ""
    """Image of the first attempt as the kubelet resolved it, with digest where it has one."""
    agent_image_from: str = ""
    """`spec.agent.image` when `agentImage` was pinned; another value there unpins."""
    checkpoint: Checkpoint | None = None
    last_step: LastStep | None = None
    steps: Steps = Steps()
    usage: Usage = Usage()
    attempts: tuple[AttemptStatus, ...] = ()
    losses: Losses = Losses()
    memory_limit_bytes: int | None = None
    """Memory limit raised after out-of-memory kills (`memoryFactorPercent`); None = as in the spec."""
    restarts: int = 0
    """All losses of the run's life. Parks and pods that never started do not count."""
    progress_seq: int = 0
    """Head when the journal last made progress as far as the operator saw; budgets count from here."""
    unproven_attempt: int = 0
    """Newest attempt whose process was given up without proof of its death; 0 = none since the last park."""
    start_time: str | None = None
    cancel_time: str | None = None
    """When the wish to cancel was first seen; `cancelGraceSeconds` counts from here."""
    finish_time: str | None = None
    waiting: Waiting | None = None
    result: RunResult | None = None
    summary: str = ""
    reason: str = ""
    pod: str = ""
    node: str = ""
    conditions: tuple[Condition, ...] = ()

    def condition(self, kind: str) -> Condition | None:
        """The condition of this type, None before it was first written."""
        return next((c for c in self.conditions if c.type == kind), None)

    def to_wire(self) -> dict[str, Json]:
        """As it stands in the object: camelCase, without absent and empty fields."""
        wire = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        return {name: _bare(value) for name, value in wire.items() if value not in ("", [])}

    @field_validator("conditions", "attempts", mode="before")
    @classmethod
    def _null_is_empty(cls, value: Json) -> Json:
        return () if value is None else value


def _bare(value: Json) -> Json:
    """Without empty texts and lists in objects: what `kubectl describe` shows then says something."""
    if isinstance(value, dict):
        return {name: _bare(inner) for name, inner in value.items() if inner not in ("", [])}
    return [_bare(inner) for inner in value] if isinstance(value, list) else value


def read_spec(raw: Mapping[str, Json]) -> AgentRunSpec:
    """Raises pydantic.ValidationError, which names the field; the CRD's schema refuses the same before."""
    return AgentRunSpec.model_validate(raw)


def read_status(raw: Mapping[str, Json] | None) -> AgentRunStatus:
    """An absent status reads as the empty one. Raises pydantic.ValidationError."""
    return AgentRunStatus.model_validate(raw or {})
