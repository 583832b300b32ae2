"""Every setting of the operator, read from the environment in this one place.

`python -m everstep_operator --settings` prints the table below as text. A bad value stops the operator at its start with
a message naming the variable; nothing is guessed.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from everstep.errors import ConfigError

DURABILITIES: Final = ("EveryWrite", "EverySecond", "Replicated", "None")
NODE_LOSS_POLICIES: Final = ("Fence", "Wait")
LOG_FORMATS: Final = ("text", "json")
LOG_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")

T = TypeVar("T")
_NAME = re.compile(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")


def _setting(env: str, default: T, unit: str, doc: str, *, shown: bool = True) -> T:
    """A dataclass field that knows its variable, unit and reason."""
    # dataclasses.field returns a Field that only poses as T until the class is made
    return field(default=default, repr=shown, metadata={"env": env, "unit": unit, "doc": doc})


@dataclass(frozen=True)
class Settings:
    """The operator's settings. Every field says meaning, unit, default and the reason for it."""

    # --- identity and scope
    installation: str = _setting(
        "EVERSTEP_INSTALLATION",
        "default",
        "name",
        "Prefix of every journal key, label of every pod. Two installations may share a Redis and a cluster if this "
        "differs. Changing it orphans the journals of running runs.",
    )
    operator_namespace: str = _setting(
        "EVERSTEP_OPERATOR_NAMESPACE",
        "",
        "namespace",
        "Where the operator's own key Secret lives; required. The chart fills it from the downward API.",
    )
    watch_namespaces: tuple[str, ...] = _setting(
        "EVERSTEP_WATCH_NAMESPACES",
        (),
        "comma-separated names",
        "Namespaces whose AgentRuns are served; empty = the whole cluster. With names, Roles suffice and no ClusterRole "
        "is needed.",
    )

    # --- journal
    store_url: str = _setting(
        "EVERSTEP_STORE_URL",
        "",
        "redis:// or rediss:// URL",
        "The journal store as the operator reaches it; required here or by file.",
        shown=False,
    )
    store_url_file: str = _setting(
        "EVERSTEP_STORE_URL_FILE",
        "",
        "path",
        "File with the store's URL (a mounted Secret); wins over EVERSTEP_STORE_URL, as credentials do not belong in a "
        "pod's environment.",
    )
    store_ca_file: str = _setting(
        "EVERSTEP_STORE_CA_FILE",
        "",
        "path",
        "PEM bundle that signed a rediss:// server's certificate; empty = the system's CAs. Its content is handed to "
        "agent pods too.",
    )
    agent_store_url_file: str = _setting(
        "EVERSTEP_AGENT_STORE_URL_FILE",
        "",
        "path",
        "File with the URL that agent pods get, for an ACL user with fewer rights or another host name; empty = the "
        "operator's own URL.",
    )
    durability: str = _setting(
        "EVERSTEP_DURABILITY",
        "EveryWrite",
        "EveryWrite | EverySecond | Replicated | None",
        "What an acknowledged write must survive. EveryWrite (appendfsync always): a power loss costs nothing. A weaker "
        "level is accepted only when it is asked for here. No new attempt starts while the store keeps less.",
    )
    durability_declared: bool = _setting(
        "EVERSTEP_DURABILITY_DECLARED",
        False,
        "true | false",
        "Take EVERSTEP_DURABILITY at its word where the server does not let its configuration be read (managed Redis "
        "blocks CONFIG). Off, so that nobody trusts an unchecked server unknowingly.",
    )
    durability_check_s: float = _setting(
        "EVERSTEP_DURABILITY_CHECK_SECONDS",
        60.0,
        "s",
        "How often the store is checked again (also at once when its run_id changes). One INFO a minute costs nothing.",
    )
    store_timeout_s: float = _setting(
        "EVERSTEP_STORE_TIMEOUT_SECONDS",
        5.0,
        "s",
        "After this long without an answer the store counts as unreachable for this reconcile; it is tried again with "
        "back-off.",
    )
    key_secret: str = _setting(
        "EVERSTEP_KEY_SECRET",
        "everstep-keys",
        "Secret name",
        "Holds the operator's chain keys (key id → 32 bytes). Made once if absent and never overwritten: losing it makes "
        "every running journal unverifiable.",
    )
    encrypt: bool = _setting(
        "EVERSTEP_ENCRYPT",
        False,
        "true | false",
        "Encrypt what new runs record under a data key of each run's own, so that the store holds nothing readable and a run can "
        "be erased. Runs keep what they began with. Off, since losing the Secret <key Secret>-wrapping then loses the records.",
    )
    anchor_s: float = _setting(
        "EVERSTEP_ANCHOR_SECONDS",
        30.0,
        "s",
        "At most this long between two anchors in status.checkpoint while steps advance: what a store may lose unseen "
        "after its writer died.",
    )
    progress_s: float = _setting(
        "EVERSTEP_PROGRESS_SECONDS",
        5.0,
        "s",
        "How often the journal of a run with a live pod is looked at, to keep Step and Summary current. One HMGET each.",
    )

    # --- pods
    default_image: str = _setting(
        "EVERSTEP_DEFAULT_IMAGE",
        "",
        "image reference",
        "Agent image of runs that name none; empty = spec.agent.image is required.",
    )
    agent_resources: str = _setting(
        "EVERSTEP_AGENT_RESOURCES",
        '{"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}',
        "JSON ResourceRequirements",
        "Requests and limits of the agent container where a run gives none. A memory limit keeps one run from taking a "
        "node; no CPU limit, as throttling only makes steps late.",
    )
    toleration_s: int = _setting(
        "EVERSTEP_TOLERATION_SECONDS",
        60,
        "s",
        "How long a pod stays bound to a not-ready or unreachable node. Kubernetes' own 300 s would make every lost node "
        "cost five minutes.",
    )
    node_loss_policy: str = _setting(
        "EVERSTEP_NODE_LOSS_POLICY",
        "Fence",
        "Fence | Wait",
        "Default of spec.nodeLoss.policy. Fence: replace a pod on a lost node after fencing it. Wait: until the cluster "
        "proves it dead.",
    )
    node_loss_after_s: int = _setting(
        "EVERSTEP_NODE_LOSS_AFTER_SECONDS",
        60,
        "s",
        "Default of spec.nodeLoss.afterSeconds: patience after a Terminating pod's own deadline before it is replaced. "
        "Fencing makes a short value safe; a longer one spares needless replays.",
    )
    allowed_service_accounts: tuple[str, ...] = _setting(
        "EVERSTEP_ALLOWED_SERVICE_ACCOUNTS",
        (),
        "comma-separated names",
        "Values of spec.template.serviceAccountName that runs may use. Empty = none: who may create runs must not gain "
        "another account's rights.",
    )

    # --- reconciling
    workers: int = _setting(
        "EVERSTEP_WORKERS",
        16,
        "count",
        "Runs reconciled at the same time (one worker per run at most). Reconciles wait on the network, so more than "
        "cores is right.",
    )
    resync_s: float = _setting(
        "EVERSTEP_RESYNC_SECONDS",
        180.0,
        "s",
        "Every run is looked at this often without any event: heals whatever a watch missed.",
    )
    api_qps: float = _setting(
        "EVERSTEP_API_QPS",
        50.0,
        "requests/s",
        "Sustained rate of writes to the API server. Reads are bounded by the number of workers.",
    )
    api_burst: int = _setting(
        "EVERSTEP_API_BURST",
        100,
        "requests",
        "Writes that may go out at once before EVERSTEP_API_QPS holds.",
    )
    api_timeout_s: float = _setting(
        "EVERSTEP_API_TIMEOUT_SECONDS",
        20.0,
        "s",
        "One request to the API server may take this long; then its outcome is unknown and the run is observed anew.",
    )
    backoff_base_s: float = _setting(
        "EVERSTEP_BACKOFF_BASE_SECONDS", 0.5, "s", "First pause after a reconcile that failed; doubles, with jitter."
    )
    backoff_max_s: float = _setting(
        "EVERSTEP_BACKOFF_MAX_SECONDS",
        60.0,
        "s",
        "Longest pause between two tries of a failing reconcile: bounds how late an ended outage is noticed.",
    )

    # --- sweeping
    sweep_every_s: float = _setting(
        "EVERSTEP_SWEEP_EVERY_SECONDS",
        600.0,
        "s",
        "How often journals of deleted runs are looked for. Also how late a run deleted while the operator was down is "
        "fenced.",
    )
    sweep_after_s: float = _setting(
        "EVERSTEP_SWEEP_AFTER_SECONDS",
        3600.0,
        "s",
        "How long the journal of a deleted run is kept: time to notice a mistaken deletion.",
    )

    # --- process
    health_port: int = _setting(
        "EVERSTEP_HEALTH_PORT", 8080, "port", "Serves /healthz and /readyz. 0 = a free port (tests)."
    )
    metrics_port: int = _setting(
        "EVERSTEP_METRICS_PORT",
        8081,
        "port",
        "Serves /metrics; its own port, so that a NetworkPolicy can open it to the scraper alone. 0 = a free port.",
    )
    log_level: str = _setting("EVERSTEP_LOG_LEVEL", "INFO", "level", "Least severe log line written to standard error.")
    log_format: str = _setting(
        "EVERSTEP_LOG_FORMAT", "text", "text | json", "json = one object a line, for log collectors."
    )
    faults: str = _setting(
        "EVERSTEP_OPERATOR_FAULTS",
        "",
        "point[:nth]=action;…",
        "Test only: kill, stop or fail the operator at a named point (everstep_operator.faults). Empty = off.",
    )

    faults_dir: str = _setting(
        "EVERSTEP_OPERATOR_FAULTS_DIR",
        "",
        "path",
        "Test only: remembers which points acted, so that each acts once although the operator was restarted.",
    )

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "Settings":
        """Read the environment. Raises ConfigError naming the variable, what was wrong and what to write."""
        given: dict[str, Any] = {}  # Any: values of many types, checked one by one below
        for f in dataclasses.fields(cls):
            text = env.get(f.metadata["env"], "").strip()
            if text:
                given[f.name] = _parse(f.metadata["env"], text, f.default)
        settings = cls(**given)
        if settings.store_url_file:
            settings = dataclasses.replace(
                settings, store_url=_file("EVERSTEP_STORE_URL_FILE", settings.store_url_file)
            )
        settings.check()
        return settings

    def check(self) -> None:
        """Raise ConfigError for values that do not fit, alone or together."""
        _name("EVERSTEP_INSTALLATION", self.installation)
        if not self.operator_namespace:
            raise ConfigError("EVERSTEP_OPERATOR_NAMESPACE is not set: name the namespace of the operator's key Secret")
        for namespace in (self.operator_namespace, *self.watch_namespaces):
            _name("EVERSTEP_OPERATOR_NAMESPACE/EVERSTEP_WATCH_NAMESPACES", namespace)
        if not self.store_url:
            raise ConfigError("no journal store: set EVERSTEP_STORE_URL_FILE (or EVERSTEP_STORE_URL) to a redis:// URL")
        _one_of("EVERSTEP_DURABILITY", self.durability, DURABILITIES)
        _one_of("EVERSTEP_NODE_LOSS_POLICY", self.node_loss_policy, NODE_LOSS_POLICIES)
        _one_of("EVERSTEP_LOG_FORMAT", self.log_format, LOG_FORMATS)
        _one_of("EVERSTEP_LOG_LEVEL", self.log_level.upper(), LOG_LEVELS)
        self.default_resources()
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            least = 0 if f.metadata["unit"] == "port" else _LEAST.get(f.name, 0.001)
            if is_number and value < least:
                raise ConfigError(f"{f.metadata['env']} must be at least {least} {f.metadata['unit']}, not {value}")

    def default_resources(self) -> dict[str, Any]:  # Any: a Kubernetes ResourceRequirements object
        """EVERSTEP_AGENT_RESOURCES, parsed."""
        try:
            value = json.loads(self.agent_resources)
        except ValueError as e:
            raise ConfigError(f"EVERSTEP_AGENT_RESOURCES is not JSON: {e}") from e
        if not isinstance(value, dict):
            raise ConfigError('EVERSTEP_AGENT_RESOURCES must be a JSON object like {"limits": {"memory": "1Gi"}}')
        return value

    def agent_store_url(self) -> str:
        """The URL that agent pods get. Read each time: a rotated Secret reaches the next pod."""
        if self.agent_store_url_file:
            return _file("EVERSTEP_AGENT_STORE_URL_FILE", self.agent_store_url_file)
        return self.store_url

    def store_ca_pem(self) -> str | None:
        """Content of the CA bundle, None where the system's CAs are used."""
        return _file("EVERSTEP_STORE_CA_FILE", self.store_ca_file) if self.store_ca_file else None

    @classmethod
    def table(cls) -> list[tuple[str, str, str, str]]:
        """(variable, unit, default, meaning and reason) of every setting, in order."""
        rows = []
        for f in dataclasses.fields(cls):
            rows.append((f.metadata["env"], f.metadata["unit"], _shown(f.default), f.metadata["doc"]))
        return rows


_LEAST: Final = {"workers": 1, "api_burst": 1, "toleration_s": 0, "node_loss_after_s": 0, "sweep_after_s": 0}
"""Smallest sensible value where it is not "more than nothing"."""


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def _parse(env: str, text: str, default: object) -> object:
    """Turn the text of a variable into the type of its default."""
    readers: list[tuple[type, Callable[[str], object], str]] = [
        (bool, _boolean, "true or false"),
        (int, int, "a whole number"),
        (float, float, "a number"),
        (tuple, lambda t: tuple(p.strip() for p in t.split(",") if p.strip()), "a comma-separated list"),
    ]
    for kind, read, wanted in readers:
        if isinstance(default, kind):
            try:
                return read(text)
            except ValueError as e:
                raise ConfigError(f"{env} must be {wanted}, not {text!r}") from e
    return text


def _boolean(text: str) -> bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    raise ValueError(text)


def _file(env: str, path: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{env}: cannot read {path}: {e}") from e
    if not text:
        raise ConfigError(f"{env}: {path} is empty")
    return text


def _name(env: str, value: str) -> None:
    if not _NAME.match(value):
        raise ConfigError(f"{env} must be lower-case letters, digits and '-', at most 63 characters, not {value!r}")


def _one_of(env: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{env} must be one of {', '.join(known)}, not {value!r}")
