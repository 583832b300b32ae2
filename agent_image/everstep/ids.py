"""Types for the ids and words that travel between the parts, so that a swapped pair does not type-check."""

from typing import Literal, NewType, TypeAlias

JournalId = NewType("JournalId", str)
"""Names one journal: the AgentRun's uid on a cluster, the run id on a laptop."""

RunName = NewType("RunName", str)
"""What people call the run: `metadata.name`, or `--run-id`."""

StepKey = NewType("StepKey", str)
"""Place of a call in the agent's source order, e.g. `12`, `t0/3` (see everstep.run.scope)."""

Seq = NewType("Seq", int)
"""Number of a record in its journal; the first record is 1, and 0 stands for the empty journal."""

Attempt = NewType("Attempt", int)
"""Number of an attempt (one process, one pod); the first is 1. Also the fencing token."""

Owner = NewType("Owner", str)
"""Who claimed an attempt: pod uid and a nonce made at process start."""

RecordHash = NewType("RecordHash", str)
"""Lower-case hex of one link of the chain (32 bytes)."""

EpochMs = NewType("EpochMs", int)
"""Wall-clock time in milliseconds since 1970-01-01 UTC."""

InboxId = NewType("InboxId", str)
"""Id of one inbox entry, chosen by its writer; the same id is added once."""

EffectClass: TypeAlias = Literal["read", "idempotent", "at_most_once"]
"""What a step does to the outside."""

Decision: TypeAlias = Literal["done", "again", "fail"]
"""What is said of an uncertain step: it was done, run it again, take it as failed."""
