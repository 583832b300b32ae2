"""Testing agents: a journal in memory, time that jumps, and crashes at named points. No server, no files, no waiting.

    run = MemoryRun(triage, goal="Triage", inputs={"backlog": "b.json"})
    assert run.attempt(crash_at="after_effect:2").kind == "crashed"     # killed after the second body, before its result
    assert run.attempt().value == "triaged"                             # another attempt goes on from the record
    run.replay()                                                        # the finished journal replays, and no body runs

`for_every_crash(triage, goal="Triage", inputs=…, effects=…)` does that for each moment of a run; `replay` runs today's code over
a recorded journal. Points are those of everstep.faults; `any:17` is the 17th point reached. `run.clock` is the time of a run
(VirtualClock), `ScriptedModel` a language model that says what a script says. docs/testing.md shows all of it.

Belongs here: what agent authors use in their own tests. Must not be here: what only Everstep's own tests need, and an import
of pytest outside the plugin.
"""

from everstep.run.virtual import VirtualClock
from everstep.testing.crashes import CrashReport, each_crash, for_every_crash
from everstep.testing.effects import Effects
from everstep.testing.memory import Ended, MemoryRun, SimulatedCrash
from everstep.testing.models import ScriptedModel, tool_call
from everstep.testing.recorded import RecordedRun, Replay, replay

__all__ = [
    "CrashReport",
    "Effects",
    "Ended",
    "MemoryRun",
    "RecordedRun",
    "Replay",
    "ScriptedModel",
    "SimulatedCrash",
    "VirtualClock",
    "each_crash",
    "for_every_crash",
    "replay",
    "tool_call",
]
