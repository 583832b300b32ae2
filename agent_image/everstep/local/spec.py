"""What a local run was started with: the AgentRun object's `spec` in a file. Written once, compared at every resume.

    {"run": "monday", "journal": "monday.5f1c…", "entrypoint": "triage:run", "goal": "…", "inputs": {…},
     "directory": "/home/jane/triage", "created": 1767225600000}

`journal` is the run id and 16 random hex digits: idempotency keys are made from it, and two people's `monday`, or this
week's and last week's, must not look like the same run to the outside.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from everstep.errors import ConfigError
from everstep.ids import EpochMs, JournalId, RunName
from everstep.journal.records import canonical
from everstep.local.files import write_atomic

RUN_ID_MAX = 52
"""As `metadata.name` of an AgentRun, so that a local run can move to a cluster under its name."""
INPUTS_MAX_BYTES = 64 * 1024
"""As `spec.inputs` of an AgentRun."""
GOAL_MAX_BYTES = 64 * 1024
"""As `spec.goal` of an AgentRun."""

_RUN_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
_ENTRYPOINT = re.compile(r"^[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*$")


@dataclass(frozen=True)
class RunSpec:
    """One run's identity and input."""

    run: RunName
    journal: JournalId
    entrypoint: str
    goal: str
    inputs: Mapping[str, object] = field(default_factory=dict)
    directory: str = ""
    """Working directory of the agent, which is also where its module is looked for."""
    created: EpochMs = EpochMs(0)
    budget: Mapping[str, object] | None = None
    """What the run may use, as last given (everstep.budget); None = never given."""
    encrypt: bool = False
    """Payloads are encrypted in the journal, from its first record on."""
    erased: EpochMs = EpochMs(0)
    """When its data key was erased; goal and inputs are no longer told here. 0: it was not."""

    def save(self, path: Path) -> None:
        """Write the file durably."""
        write_atomic(path, json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")


def load(path: Path) -> RunSpec | None:
    """Read a spec; None when there is no such run. Raises ConfigError naming a file that cannot be read."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return RunSpec(
            run=RunName(data["run"]),
            journal=JournalId(data["journal"]),
            entrypoint=data["entrypoint"],
            goal=data["goal"],
            inputs=data["inputs"],
            directory=data["directory"],
            created=EpochMs(int(data["created"])),
            budget=data.get("budget"),
            encrypt=bool(data.get("encrypt", False)),
            erased=EpochMs(int(data.get("erased", 0))),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise ConfigError(f"{path} cannot be read ({e!r}); restore it from a copy, or delete the run") from e


def check_run_id(text: str) -> RunName:
    """A run id that is a file name and may become `metadata.name`. Raises ConfigError."""
    if not _RUN_ID.match(text) or len(text) > RUN_ID_MAX:
        raise ConfigError(
            f"run id {text!r}: use letters, digits, '.', '_' and '-', a letter or digit first, at most {RUN_ID_MAX} characters"
        )
    return RunName(text)


def check_entrypoint(text: str) -> str:
    """`module:function`. Raises ConfigError that shows the right form."""
    if not _ENTRYPOINT.match(text) or text.partition(":")[0].endswith(".py"):
        module, _, function = text.partition(":")
        guess = f"{module.removesuffix('.py').replace('/', '.').strip('.') or 'module'}:{function or 'run'}"
        raise ConfigError(f"entrypoint {text!r}: write MODULE:FUNCTION, for example {guess}")
    return text


def check_sizes(goal: str, inputs: Mapping[str, object]) -> None:
    """The bounds an AgentRun has, checked before anything is written. Raises ConfigError."""
    if not goal.strip():
        raise ConfigError('the goal is empty: say what the agent shall do, with --goal "…" or --goal-file FILE')
    if (size := len(goal.encode())) > GOAL_MAX_BYTES:
        raise ConfigError(f"goal: {size} bytes, at most {GOAL_MAX_BYTES}; put long texts into files the agent reads")
    try:
        size = len(canonical(dict(inputs)))
    except ValueError as e:
        raise ConfigError(f"inputs: not JSON: {e} (NaN and infinities have no JSON form)") from e
    if size > INPUTS_MAX_BYTES:
        raise ConfigError(f"inputs: {size} bytes as JSON, at most {INPUTS_MAX_BYTES}; pass a path or URL instead")


def differences(
    old: RunSpec, *, entrypoint: str, goal: str, inputs: Mapping[str, object], encrypt: bool = False
) -> list[str]:
    """What a command says otherwise than the run it would resume; one phrase each, naming both values."""
    found = []
    if old.erased:
        return ["it was erased: what it recorded cannot be read, so it cannot go on"]
    if encrypt and not old.encrypt:
        found.append("it was begun without encryption, which holds for all of a run")
    if old.entrypoint != entrypoint:
        found.append(f"entrypoint: was {old.entrypoint}, now {entrypoint}")
    if old.goal != goal:
        found.append(f"goal: was {_short(old.goal)}, now {_short(goal)}")
    for name in sorted({*old.inputs, *inputs}):
        was, now = old.inputs.get(name, _ABSENT), inputs.get(name, _ABSENT)
        if was is _ABSENT or now is _ABSENT or canonical(was) != canonical(now):
            found.append(f"input {name}: was {_shown(was)}, now {_shown(now)}")
    return found


_ABSENT = object()


def _shown(value: object) -> str:
    return "absent" if value is _ABSENT else _short(canonical(value).decode())


def _short(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= 60 else line[:57] + "…")
