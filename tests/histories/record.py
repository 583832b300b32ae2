"""`python -m tests.histories.record NAME`: plays one of the scripts below and keeps its journal."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import everstep
import everstep.run.attempt
from everstep.testing import MemoryRun
from tests.histories import agents

HERE = Path(__file__).parent


def everything() -> MemoryRun[Any]:
    """Five losses at different moments, a question and an answer, a park."""
    run: MemoryRun[Any] = MemoryRun(agents.everything, "history", {"n": 4}, seed=7)
    for point in ("after_append:3", "after_effect:6", "in_body:9", "in_replay:9", "after_effect:2"):
        run.attempt(crash_at=point)
    while True:
        ended = run.attempt()
        if ended.kind != "parked":
            return run
        for wait in ended.waits:
            if wait.kind == "uncertain":
                run.settle(wait.key, "done", 5, by="jane")
        if ended.wake_epoch_ms is not None:
            run.sleep((ended.wake_epoch_ms - run.clock.now_epoch_ms()) / 1000)


def cancelled() -> MemoryRun[Any]:
    run: MemoryRun[Any] = MemoryRun(agents.leaves, "history")
    run.cancel(by="jane", reason="changed her mind")
    run.attempt(crash_at="in_body:2")
    run.attempt()
    return run


def plainly() -> MemoryRun[Any]:
    run: MemoryRun[Any] = MemoryRun(agents.plainly, "history")
    run.attempt(crash_at="after_append:2")
    run.attempt()
    return run


def unfinished() -> MemoryRun[Any]:
    """Lost in the middle: today's code must take it up."""
    run: MemoryRun[Any] = MemoryRun(agents.everything, "history", {"n": 4}, seed=8)
    run.attempt(crash_at="after_result:9")
    return run


def patched_old() -> MemoryRun[Any]:
    """Finished by the code before a change."""
    run: MemoryRun[Any] = MemoryRun(agents.patched_old, "history")
    run.attempt(crash_at="after_append:3")
    run.attempt()
    return run


def patched_new() -> MemoryRun[Any]:
    """With the marker of the change."""
    run: MemoryRun[Any] = MemoryRun(agents.patched_new, "history")
    run.attempt(crash_at="after_append:4")
    run.attempt()
    return run


def pinned() -> MemoryRun[Any]:
    """The image was changed on purpose in the middle."""
    run: MemoryRun[Any] = MemoryRun(agents.patched_old, "history")
    run.image = run.image_named = "registry.example/agent:1"
    run.attempt(crash_at="in_body:2")
    run.image = run.image_named = "registry.example/agent:2"
    run.attempt()
    return run


def ledger() -> MemoryRun[Any]:
    """Snapshots and segments, all records kept; lost right after a snapshot, in a segment, and before the end."""
    run: MemoryRun[Any] = MemoryRun(agents.ledger, "history", seed=9)
    for point in ("after_snapshot", "after_effect:2", "before_segment", "after_segment", "before_finished"):
        run.attempt(crash_at=point, compact=False)
    run.attempt(compact=False)
    return run


def compacted() -> MemoryRun[Any]:
    """The same, lost in the middle, and begun at a snapshot: what was before is gone."""
    run: MemoryRun[Any] = MemoryRun(agents.ledger, "history", seed=10)
    run.attempt(crash_at="before_append:9")
    run.attempt(crash_at="before_snapshot")
    return run


def busy() -> MemoryRun[Any]:
    """Heartbeats, a map and a race, lost in the middle of each."""
    run: MemoryRun[Any] = MemoryRun(agents.busy, "history", seed=9, park_linger_s=1e9)
    for point in ("in_body:2", "after_append:9", "in_body:4", "after_append:3"):
        run.attempt(crash_at=point)
    run.attempt()
    return run


def capped() -> MemoryRun[Any]:
    """A budget that holds a step back until a person raises it."""
    run: MemoryRun[Any] = MemoryRun(agents.capped, "history")
    budget = everstep.Budget(max_tokens=150)
    assert run.attempt(budget=budget).kind == "parked"
    run.set_budget({"maxTokens": 400}, by="jane")
    run.attempt(budget=budget, crash_at="after_append:3")
    run.attempt(budget=budget)
    return run


def epochs() -> MemoryRun[Any]:
    """Two segments with snapshots, lost after each kind of them."""
    run: MemoryRun[Any] = MemoryRun(agents.epochs, "history", {"part": 0})
    for point in ("in_body:3", "after_append:4", "in_body:2"):
        run.attempt(crash_at=point)
    run.attempt()
    return run


SCRIPTS: dict[str, Callable[[], MemoryRun[Any]]] = {
    "everything": everything,
    "cancelled": cancelled,
    "plainly": plainly,
    "unfinished": unfinished,
    "ledger": ledger,
    "unfinished_compacted": compacted,
    "patched_old": patched_old,
    "patched_new": patched_new,
    "pinned": pinned,
    "busy": busy,
    "capped": capped,
    "epochs": epochs,
}


def main(name: str) -> None:
    path = HERE / f"{everstep.run.attempt.SDK_VERSION}-{name}.jsonl"
    if path.exists():
        sys.exit(f"{path} exists; journals of a release are not changed")
    agents.calls = 0
    run = SCRIPTS[name]()
    head = {"agent": run.agent.name, "goal": run.goal, "inputs": run.inputs, "sdk": everstep.run.attempt.SDK_VERSION}
    lines = [json.dumps(head), *(raw.decode() for raw in run.raw_records)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(path, len(lines) - 1, "records")


if __name__ == "__main__":
    for wanted in sys.argv[1:] or SCRIPTS:
        main(wanted)
