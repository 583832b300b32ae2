"""The process contract between whoever starts an attempt (operator, local supervisor) and the SDK in the agent process.

This module is the only bridge: names of environment variables, files, exit codes and the termination message. It
imports nothing but the standard library. The one place that reads the environment of an agent process is
`AttemptSettings.from_env`.
"""

import enum
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from everstep.ids import Attempt, JournalId, RecordHash, RunName, Seq


class ExitCode(enum.IntEnum):
    """How an agent process ends. The journal, not the exit code, says whether the run succeeded."""

    OK = 0
    """Finished or parked; the head record says which."""
    BAD_CONFIG = 64
    """Entrypoint, inputs or settings are wrong; another attempt would fail alike."""
    JOURNAL_REFUSED = 65
    """Diverged, lost or tampered: stop, a person must act."""
    JOURNAL_UNREACHABLE = 69
    """The store stayed unreachable, full, read-only or loading for the bounded time; wait and start again, uncharged."""
    AGENT_FAILED = 70
    """The agent raised; a `finished` record with the failure is in the journal."""
    SUPERSEDED = 75
    """Fenced or taken: a newer attempt owns the run; uncharged."""
    TERMINATED = 143
    """SIGTERM: flushed and left; the pod's status says why."""


ENV_JOURNAL_ID = "EVERSTEP_JOURNAL_ID"
ENV_INSTALLATION = "EVERSTEP_INSTALLATION"
ENV_RUN_NAME = "EVERSTEP_RUN_NAME"
ENV_NAMESPACE = "EVERSTEP_NAMESPACE"
ENV_ATTEMPT = "EVERSTEP_ATTEMPT"
ENV_ANCHOR_SEQ = "EVERSTEP_ANCHOR_SEQ"
ENV_ANCHOR_HASH = "EVERSTEP_ANCHOR_HASH"
ENV_PREDECESSOR = "EVERSTEP_PREDECESSOR"
ENV_ENTRYPOINT = "EVERSTEP_ENTRYPOINT"
ENV_STORE = "EVERSTEP_STORE"
ENV_SECRETS_DIR = "EVERSTEP_SECRETS_DIR"
ENV_POD_UID = "EVERSTEP_POD_UID"
ENV_IMAGE = "EVERSTEP_IMAGE"
ENV_IMAGE_NAMED = "EVERSTEP_IMAGE_NAMED"
ENV_GRACE_S = "EVERSTEP_GRACE_S"
ENV_CANCEL_GRACE_S = "EVERSTEP_CANCEL_GRACE_S"
ENV_PARK_LINGER_S = "EVERSTEP_PARK_LINGER_S"
ENV_TERMINATION_LOG = "EVERSTEP_TERMINATION_LOG"
ENV_BUDGET = "EVERSTEP_BUDGET"
ENV_FAULTS = "EVERSTEP_FAULTS"
ENV_DEBUG = "EVERSTEP_DEBUG"
"""1: a person debugs the process; steps and clean-up are not timed out (everstep.run.debugging)."""
ENV_ALWAYS_REPLAY = "EVERSTEP_ALWAYS_REPLAY"
"""1: the attempt ends after each recorded outcome of a step, so that the next one replays from the start."""

PREDECESSOR_DEAD = "dead"
"""Value of EVERSTEP_PREDECESSOR when a terminal status written by the kubelet (or waitpid) proves every earlier process gone
that may have had an effect in flight."""

FILE_GOAL = "goal"
"""In the secrets directory: the goal, UTF-8 text."""
FILE_INPUTS = "inputs.json"
"""In the secrets directory: the inputs, a JSON object (absent = {})."""
FILE_RUN_KEY = "run.key"
"""In the secrets directory: hex of the run's chain key (absent = plain SHA-256 chain, local mode)."""
FILE_KEY_ID = "run.key-id"
"""In the secrets directory: id of the operator key the run key was derived from."""
FILE_DATA_KEYS = "data-keys.json"
"""In the secrets directory: {data key id: hex of 32 bytes} where the run's payloads are encrypted (absent = they are not)."""
FILE_STORE_URL = "store.url"
"""In the secrets directory: URL of the store with credentials; wins over EVERSTEP_STORE."""
FILE_STORE_CA = "store-ca.crt"
"""In the secrets directory: CA bundle for a `rediss://` store (optional)."""

DEFAULT_SECRETS_DIR = "/var/run/everstep"
DEFAULT_TERMINATION_LOG = "/dev/termination-log"
AGENT_COMMAND = ("python", "-m", "everstep.run")
AGENT_CONTAINER = "agent"

DEFAULT_GRACE_S = 25.0
"""Time a step body in flight may take to finish after SIGTERM; below the pod's default 30 s."""
DEFAULT_CANCEL_GRACE_S = 30.0
DEFAULT_PARK_LINGER_S = 30.0
"""A timer longer than this parks the run; a shorter one is waited for in the process, as a new pod costs seconds."""


class ContractError(Exception):
    """A variable or file of the process contract is missing or malformed. Not retried: exit 64."""


class AttemptSettings(NamedTuple):
    """What an agent process is told at its start. Built from the environment once, in `everstep.run.__main__`."""

    journal_id: JournalId
    attempt: Attempt
    entrypoint: str
    """`module:function`."""
    store_url: str
    """`redis://`, `rediss://` or `sqlite:///path`."""
    installation: str = "local"
    """Prefix of the journal's keys: two installations may share a Redis."""
    run_name: RunName = RunName("")
    namespace: str = ""
    anchor_seq: Seq = Seq(0)
    anchor_hash: RecordHash | None = None
    """The anchor the journal was fenced with; None only with seq 0."""
    predecessor_dead: bool = False
    goal: str = ""
    inputs: Mapping[str, object] = MappingProxyType({})
    run_key: bytes | None = None
    key_id: str = ""
    data_keys: Mapping[str, bytes] = MappingProxyType({})
    """By id; empty = payloads are not encrypted."""
    store_ca_path: str | None = None
    pod_uid: str = ""
    image: str = ""
    """Reference the pod was started with; with its digest once that is pinned."""
    image_named: str | None = None
    """What `spec.agent.image` says; "" = nothing, None = whoever started the attempt does not tell."""
    grace_s: float = DEFAULT_GRACE_S
    cancel_grace_s: float = DEFAULT_CANCEL_GRACE_S
    park_linger_s: float = DEFAULT_PARK_LINGER_S
    termination_log: str = DEFAULT_TERMINATION_LOG
    budget: Mapping[str, object] | None = None
    """What the run may use, in the JSON form of everstep.budget; None = as its journal tells."""
    always_replay: bool = False
    debug: bool = False

    def __repr__(self) -> str:
        return f"<attempt {self.attempt} of {self.journal_id}>"  # not its keys

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "AttemptSettings":
        """Read the environment and the secrets directory. Raises ContractError naming the variable or file."""
        secrets = Path(env.get(ENV_SECRETS_DIR, DEFAULT_SECRETS_DIR))
        key_hex = _read(secrets / FILE_RUN_KEY)
        store_url = _read(secrets / FILE_STORE_URL) or env.get(ENV_STORE, "")
        if not store_url:
            raise ContractError(f"no store: set {ENV_STORE} or the file {secrets / FILE_STORE_URL}")
        ca = secrets / FILE_STORE_CA
        return cls(
            journal_id=JournalId(_need(env, ENV_JOURNAL_ID)),
            attempt=Attempt(_whole(env, ENV_ATTEMPT, None)),
            entrypoint=_need(env, ENV_ENTRYPOINT),
            store_url=store_url,
            installation=env.get(ENV_INSTALLATION, "local"),
            run_name=RunName(env.get(ENV_RUN_NAME, "")),
            namespace=env.get(ENV_NAMESPACE, ""),
            anchor_seq=Seq(_whole(env, ENV_ANCHOR_SEQ, 0)),
            anchor_hash=RecordHash(env[ENV_ANCHOR_HASH]) if env.get(ENV_ANCHOR_HASH) else None,
            predecessor_dead=env.get(ENV_PREDECESSOR, "") == PREDECESSOR_DEAD,
            goal=_read(secrets / FILE_GOAL) or "",
            inputs=_json_object(secrets / FILE_INPUTS),
            data_keys={
                key_id: _hex(secrets / FILE_DATA_KEYS, str(text))
                for key_id, text in _json_object(secrets / FILE_DATA_KEYS).items()
            },
            run_key=_hex(secrets / FILE_RUN_KEY, key_hex) if key_hex else None,
            key_id=(_read(secrets / FILE_KEY_ID) or "").strip(),
            store_ca_path=str(ca) if ca.exists() else None,
            pod_uid=env.get(ENV_POD_UID, ""),
            image=env.get(ENV_IMAGE, ""),
            image_named=env.get(ENV_IMAGE_NAMED),
            grace_s=_seconds(env, ENV_GRACE_S, DEFAULT_GRACE_S),
            cancel_grace_s=_seconds(env, ENV_CANCEL_GRACE_S, DEFAULT_CANCEL_GRACE_S),
            park_linger_s=_seconds(env, ENV_PARK_LINGER_S, DEFAULT_PARK_LINGER_S),
            termination_log=env.get(ENV_TERMINATION_LOG, DEFAULT_TERMINATION_LOG),
            budget=_object(ENV_BUDGET, env[ENV_BUDGET]) if env.get(ENV_BUDGET) else None,
            always_replay=env.get(ENV_ALWAYS_REPLAY, "") not in ("", "0"),
            debug=env.get(ENV_DEBUG, "") not in ("", "0"),
        )


class StopReason(enum.StrEnum):
    """Why an attempt stopped, in its termination message; frozen words that conditions and Events reuse."""

    FINISHED = "Finished"
    PARKED = "Parked"
    BAD_ENTRYPOINT = "BadEntrypoint"
    BAD_INPUTS = "BadInputs"
    BAD_CONFIG = "BadConfig"
    DIVERGED = "Diverged"
    JOURNAL_TAMPERED = "JournalTampered"
    JOURNAL_LOST = "JournalLost"
    JOURNAL_UNREADABLE = "JournalUnreadable"
    """A record of an unknown kind or of a newer schema: use the SDK version that wrote it."""
    JOURNAL_UNREACHABLE = "JournalUnreachable"
    AGENT_FAILED = "AgentFailed"
    FENCED = "Fenced"
    TERMINATED = "Terminated"


class Termination(NamedTuple):
    """The termination message: one JSON object of at most 4 KiB (the kubelet's limit), written before the exit."""

    reason: StopReason
    message: str
    attempt: Attempt
    seq: Seq = Seq(0)
    """Last confirmed head; with JournalTampered the first bad seq instead is in `bad_seq`."""
    hash: str = ""
    bad_seq: int | None = None

    def to_json(self) -> str:
        data = {
            "reason": self.reason.value,
            "message": self.message[:2048],
            "attempt": self.attempt,
            "seq": self.seq,
            "hash": self.hash,
            "badSeq": self.bad_seq,
        }
        return json.dumps(data)

    @classmethod
    def from_json(cls, text: str) -> "Termination | None":
        """Parse a message; None when it is not ours (a crash before the SDK ran, or the last log lines)."""
        try:
            data = json.loads(text)
            bad = data.get("badSeq")
            return cls(
                reason=StopReason(data["reason"]),
                message=str(data["message"]),
                attempt=Attempt(int(data["attempt"])),
                seq=Seq(int(data["seq"])),
                hash=str(data["hash"]),
                bad_seq=None if bad is None else int(bad),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as e:
        raise ContractError(f"cannot read {path}: {e}") from e


def _need(env: Mapping[str, str], name: str) -> str:
    if not env.get(name):
        raise ContractError(f"{name} is not set; attempts are started by the operator or by `everstep local run`")
    return env[name]


def _whole(env: Mapping[str, str], name: str, default: int | None) -> int:
    text = env.get(name, "") if default is not None else _need(env, name)
    if not text and default is not None:
        return default
    try:
        return int(text)
    except ValueError as e:
        raise ContractError(f"{name} must be a whole number, not {text!r}") from e


def _seconds(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name, "")
    try:
        return float(text) if text else default
    except ValueError as e:
        raise ContractError(f"{name} must be a number of seconds, not {text!r}") from e


def _hex(path: Path, text: str) -> bytes:
    try:
        return bytes.fromhex(text.strip())
    except ValueError as e:
        raise ContractError(f"{path} must hold hex digits") from e


def _json_object(path: Path) -> Mapping[str, object]:
    text = _read(path)
    return {} if text is None else _object(str(path), text)


def _object(where: str, text: str) -> Mapping[str, object]:
    try:
        data = json.loads(text)
    except ValueError as e:
        raise ContractError(f"{where} is not JSON: {e}") from e
    if not isinstance(data, dict):
        raise ContractError(f"{where} must hold a JSON object, not {type(data).__name__}")
    return data
