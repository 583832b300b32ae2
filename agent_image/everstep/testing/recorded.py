"""Recorded runs as tests: a journal in a file, replayed by today's code in CI.

    everstep local history monday -o tests/histories/monday.jsonl

    @pytest.mark.parametrize("path", sorted(Path("tests/histories").glob("*.jsonl")), ids=lambda p: p.stem)
    def test_running_runs_survive_this_change(path):
        everstep.testing.replay(path, triage.run)

A history is JSON lines: a head, one record per line exactly as it is stored, and large values behind the first record that names
them. An export (`everstep local export`) is read as well, but does not tell goal and inputs.

    head     {"agent": "triage:run", "goal": "…", "inputs": {…}, "sdk": "0.1.0"}
    record   {"attempt": 1, "kind": "run_started", …}
    blob     {"blob": "<sha-256>", "b": "<base64>"}
"""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everstep.errors import ConfigError, Replayed
from everstep.ids import Seq
from everstep.journal.records import Finished, Json, Pinned, Record, RunStarted, decode
from everstep.run.agents import Agent, load_agent
from everstep.testing.memory import MemoryRun


@dataclass(frozen=True)
class RecordedRun:
    """A journal outside any store."""

    records: Sequence[bytes]
    """As they are stored, from record 1."""
    goal: str | None = None
    inputs: Mapping[str, Json] | None = None
    agent: str = ""
    """`module:function`, as the run was started."""
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    sdk: str = ""

    @classmethod
    def read(cls, path: Path | str) -> "RecordedRun":
        """From a history or an export. Raises ConfigError that names the line."""
        found = Path(path)
        try:
            lines = found.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as e:
            raise ConfigError(f"the history {found} cannot be read: {e}") from e
        return cls.parse([line for line in lines if line.strip()], str(found))

    @classmethod
    def parse(cls, lines: Sequence[str], name: str) -> "RecordedRun":
        """From the lines of a file called `name`."""
        head: dict[str, Any] = {}  # of JSON
        records: list[bytes] = []
        blobs: dict[str, bytes] = {}
        for number, line in enumerate(lines, 1):
            try:
                data = json.loads(line)
                if not isinstance(data, dict):
                    raise TypeError("no JSON object")
                if "blob" in data:
                    blobs[data["blob"]] = base64.b64decode(data["b"])
                elif "kind" in data:
                    records.append(line.strip().encode())
                elif "r" in data:
                    records.append(data["r"].encode())
                elif number == 1:
                    head = data
                elif "end" not in data:
                    raise ValueError("neither a record nor a blob")
            except (ValueError, TypeError, KeyError, AttributeError) as e:
                raise ConfigError(f"{name}:{number}: no line of a history: {e!r}") from e
        if not records:
            raise ConfigError(f"{name} holds no record")
        return cls(records, head.get("goal"), head.get("inputs"), head.get("agent", ""), blobs, head.get("sdk", ""))

    def lines(self) -> Iterator[str]:
        """As a history file, line by line."""
        yield json.dumps(
            {"agent": self.agent, "goal": self.goal, "inputs": self.inputs, "sdk": self.sdk}, ensure_ascii=False
        )
        for raw in self.records:
            yield raw.decode()
        for digest, raw in self.blobs.items():
            yield json.dumps({"blob": digest, "b": base64.b64encode(raw).decode()})


@dataclass(frozen=True)
class Replay:
    """What came of a replay that did not diverge."""

    steps: int
    """Steps that were answered from the record."""
    finished: bool
    """The history ends with the run; else agent code was stopped where the record ends, before any new step ran."""
    value: Any = None  # the agent's result
    """With `finished`: the agent's result, None unless it succeeded."""


def replay(
    history: "Path | str | RecordedRun | MemoryRun[Any]",
    agent: "Agent[..., Any] | str",  # of any signature
    *,
    goal: str | None = None,
    inputs: Mapping[str, Json] | None = None,
) -> Replay:
    """Run agent code over a recorded journal: no step body runs, nothing is written, no server is needed.

    history       a file (`everstep local history`, `everstep local export`), a RecordedRun, or a MemoryRun
    agent         the agent, or `module:function`
    goal, inputs  where the history does not tell them (an export)

    Any Python replays it: the minor version that the run pins is not compared here. Raises Diverged, with the difference, if the
    code takes another way than the record; ConfigError if the file or the inputs are not those of this run."""
    run = memory_run_of(history, load_agent(agent) if isinstance(agent, str) else agent, goal, inputs)
    before = len(run.records)
    over = isinstance(run.records[-1], Finished)
    ended = run.attempt(run_to_end=True) if over else run.attempt(replay_only=True)
    if ended.kind == "stopped" and ended.error is not None and not isinstance(ended.error, Replayed):
        raise ended.error
    if run.bodies or (over and len(run.records) != before):
        raise AssertionError(f"the replay ran {dict(run.bodies)} and wrote {len(run.records) - before} records")
    return Replay(run.replayed_steps, over, ended.value if over else None)


def memory_run_of(
    history: "Path | str | RecordedRun | MemoryRun[Any]",
    agent: Agent[..., Any],  # of any signature
    goal: str | None = None,
    inputs: Mapping[str, Json] | None = None,
) -> MemoryRun[Any]:
    """The recorded run in memory, ready for an attempt of `agent`. Raises ConfigError."""
    if isinstance(history, MemoryRun):
        if not history.records:
            raise ConfigError("this MemoryRun has no records yet")
        run = history.copy()
        run.agent = agent
    else:
        told = history if isinstance(history, RecordedRun) else RecordedRun.read(history)
        goal = told.goal if goal is None else goal
        inputs = told.inputs if inputs is None else inputs
        if goal is None:
            raise ConfigError("the history does not tell goal and inputs; pass goal= and inputs=")
        run = MemoryRun(agent, goal, inputs or {}, real_time=not agent.is_async)
        run.load(told.records)
        for digest, raw in told.blobs.items():
            run.store.blobs[run.journal_id, digest] = raw
    run.image_named = None
    run.python = _python(run.records)
    return run


def _python(records: Sequence[Record]) -> str:
    return next((r.python for r in reversed(records) if isinstance(r, RunStarted | Pinned)), "")


def decoded(records: Sequence[bytes]) -> list[Record]:
    """Records of a RecordedRun."""
    return [decode(raw, Seq(n)) for n, raw in enumerate(records, 1)]
