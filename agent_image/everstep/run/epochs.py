"""Epochs: where a restart begins, so that neither a replay nor a journal grows without end.

`snapshot(state)` and `continue_as_new(**inputs)` each open a new epoch, when nothing is pending: from there on all keys begin
with `@<epoch>/` and count from 0, in the process that goes on as in the one that starts there. A later attempt begins at the
newest of these records; it carries what still counts of the records before it (sums, applied inbox entries, run_started, the
newest segment, a cancel that has not reached the agent), so those may be deleted (everstep.run.compaction).
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from everstep import faults
from everstep.errors import BadCall, ConfigError, ContinuedAsNew, Diverged, Frozen, LimitError
from everstep.ids import Seq, StepKey
from everstep.journal.records import BLOB_OVER_BYTES, Json, Record, Segment, Snapshot, canonical, encode
from everstep.run.bodies import idempotency_key
from everstep.run.calls import StepCall
from everstep.run.scope import Scope
from everstep.run.values import Codec, Encoded

if TYPE_CHECKING:
    from everstep.run.engine import Engine
    from everstep.run.history import History

log = logging.getLogger("everstep.run")
KEPT = frozenset({"run_started", "pinned", "cancel"})
"""Kinds of the run itself that are carried whole by each later snapshot and segment."""
ABSENT = object()


class Epochs:
    """Of one attempt: the epoch in force, and the ways into the next. In the loop's thread, but for `restored`."""

    def __init__(self, engine: "Engine") -> None:
        began = engine.history.began
        self._engine = engine
        self.number = began.epoch if began else 0
        self.segment = began.segment if began else 0
        self.began_seq = began.seq if began else 0
        """The record that opened the epoch in force; 0 = the run's beginning."""
        self.applied = set(engine.history.inbox_ids)
        """Inbox entries that became records."""
        self.leaving: dict[str, Json] | None = None
        """The inputs of `continue_as_new`, from its call until the agent has left."""
        self._listed = began.files["$blob"] if began and began.files else ""
        """Blob of the list of files that the record in force names; compaction removes any other."""
        self._scope: Scope | None = None
        self._state: object = ABSENT
        """JSON of the newest snapshot's state."""
        self._codec = Codec(Any, "everstep.snapshot", "state")
        self._asked = False
        if isinstance(began, Snapshot):
            self._state = engine.history.state

    # --- keys -----------------------------------------------------------------------------------------------------

    @property
    def prefix(self) -> str:
        return f"@{self.number}/" if self.number else ""

    def idem(self, key: StepKey) -> str:
        """The idempotency key of a step of this epoch."""
        return idempotency_key(self._engine.config.journal_id, key, self.segment, self.number)

    def root_scope(self) -> Scope:
        """The scope of an agent function that starts now."""
        self._scope = Scope(self._engine, self.prefix)
        self._asked = False
        return self._scope

    def note(self, record: Record) -> None:
        """A record was put that later epochs may have to carry."""
        if inbox := getattr(record, "inbox", ""):
            self.applied.add(inbox)
        if record.kind in KEPT:
            self._engine.history.keep(record)

    def _open(self, record: Snapshot | Segment) -> None:
        engine = self._engine
        engine.compaction.carried(encode(record))
        self.number, self.segment, self.began_seq = record.epoch, record.segment, record.seq
        self._listed = record.files["$blob"] if record.files else ""
        engine.compaction.opened(record.epoch, record.seq)
        self._state = ABSENT
        engine.limits.restart()
        engine.patches.clear()
        if isinstance(record, Segment):
            engine.history.keep(record)
            engine.lane.restart_orders(1)
        else:
            engine.lane.restart_orders(2)  # 1 is the root
            assert self._scope is not None
            self._scope.restart(self.prefix)

    # --- restored -------------------------------------------------------------------------------------------------

    def restored(self, scope: Scope, type_: object) -> Any:  # of the type that was asked for, or None
        """See `everstep.restored`."""
        if not self._asked and self._scope is not None and self._scope.used:
            raise BadCall(
                "everstep.restored() must be asked before the first step, timer, value or task of the agent: a restart begins at "
                "the agent's first line, so what stands before it would be done again. Put it first, and what belongs before the "
                "loop under `if state is None:`"
            )
        self._asked = True
        self._engine.history.unasked = False
        if type_ is not None:
            self._codec = Codec(type_, "everstep.snapshot", "state")
        if self._state is ABSENT or self._state is None:
            return None
        return self._codec.decode(json.loads(canonical(self._state)))  # a copy: the agent may change what it gets

    # --- snapshot -------------------------------------------------------------------------------------------------

    def encode(self, scope: Scope, state: object) -> Encoded:
        """Check the caller and its state. Raises BadCall, NotJSON, ValueTooLarge."""
        self._check_root(scope, "snapshot")
        if not self._asked:
            raise BadCall(
                "everstep.snapshot() needs an agent that takes its state up: a restart begins at the agent's first line. Write "
                "`state = everstep.restored(State)` before the first step, and put what belongs before the loop under "
                "`if state is None:`"
            )
        try:
            return self._codec.encode(state)
        except LimitError as e:
            if self._codec.typed:
                raise
            raise type(e)(f"{e}. State that is not plain JSON needs its type: everstep.restored(State)") from e

    def snapshot(self, encoded: Encoded) -> None:
        """Open an epoch here, or put it off while something that the agent cancelled has not ended. Raises BadCall."""
        engine = self._engine
        engine.check_alive()
        if self._pending("snapshot"):
            log.debug("the snapshot is put off: a step or timer that the agent cancelled has not ended yet")
            return
        faults.reach("before_snapshot")
        blobs: dict[str, bytes] = {}
        try:
            record = engine.put(Snapshot, value=self._kept_apart(encoded, blobs), **self._carried(blobs, 0))
        except LimitError:
            raise
        except BaseException as e:
            engine.stop(e)
            raise Frozen("the run has stopped") from e
        if blobs:
            engine.writer.hold_until(Seq(record.seq), engine.lane.task(self._store(blobs), "state of a snapshot"))
        engine.compaction.carried(encoded.raw)
        self._open(record)
        self._state = encoded.data
        faults.reach("after_snapshot")

    async def _store(self, blobs: Mapping[str, bytes]) -> None:
        for name, raw in blobs.items():
            await self._engine.delivery.blobs.store(name, raw)

    # --- continue_as_new ------------------------------------------------------------------------------------------

    def leave(self, scope: Scope, inputs: Mapping[str, object]) -> None:
        """Check the call and keep the inputs; raising ContinuedAsNew is the caller's."""
        self._check_root(scope, "continue_as_new")
        self._engine.check_alive()
        agent = self._engine.agent
        assert agent is not None
        try:
            data = agent.encode_inputs(inputs)
            agent.bind("", data)
        except ConfigError as e:
            raise BadCall(f"everstep.continue_as_new: {e}") from e
        self._pending("continue_as_new")
        self._engine.delivery.blobs.artifacts.check_carried()
        self.leaving = data

    async def continue_as_new(self) -> dict[str, Json]:
        """The agent has left: write the segment. The inputs it starts again with. Raises ValueTooLarge if it has left too many
        files behind since its call."""
        engine = self._engine
        inputs, self.leaving = self.leaving, None
        assert inputs is not None
        if engine.history.finished is not None:
            raise self._not_recorded("continue_as_new")
        blobs: dict[str, bytes] = {}
        raw = canonical(inputs)
        fields = self._carried(blobs, 1)
        engine.finishing = True
        faults.reach("before_segment")
        value = self._kept_apart(Encoded(inputs, raw), blobs)
        await self._store(blobs)
        engine.compaction.carried(raw)
        record = engine.put(Segment, value=value, **fields)
        await engine.writer.drain()
        faults.reach("after_segment")
        self._open(record)
        engine.finishing = False
        return inputs

    def left(self, error: BaseException | None) -> BaseException | None:
        """How the agent ended, once it has: a ContinuedAsNew that an `except` swallowed is an error of its own."""
        if self.leaving is None or isinstance(error, asyncio.CancelledError):
            self.leaving = None
            return error
        if self._engine.delivery.cancel_delivered:
            self.leaving = None
            return asyncio.CancelledError("the run was cancelled")
        if isinstance(error, BaseExceptionGroup) and error.split(ContinuedAsNew)[1] is None:
            return ContinuedAsNew()  # it left through a TaskGroup
        if isinstance(error, ContinuedAsNew):
            return error
        self.leaving = None
        return error or BadCall(
            "everstep.continue_as_new() was called, but its ContinuedAsNew did not leave the agent: an `except BaseException` or "
            "a `finally: return` swallowed it. Let it pass"
        )

    # --- what both need -------------------------------------------------------------------------------------------

    def _check_root(self, scope: Scope, what: str) -> None:
        if scope is not self._scope:
            raise BadCall(
                f"everstep.{what}() was called in a task; it belongs to the agent's own function, with no task beside it: a "
                "restart begins there"
            )

    def _pending(self, what: str) -> bool:
        """Whether things that agent code has cancelled are still on their way. Raises BadCall if it waits for anything."""
        engine = self._engine
        delivery = engine.delivery
        if delivery.cancel_delivered:
            raise BadCall(f"everstep.{what}() was called while the run is being cancelled; clean up and return")
        recorded = engine.history.pass_markers() or engine.history.finished is not None
        if not recorded:
            delivery.pass_gone()
        if waits := [_name(call) for call in delivery.waits()] + self._other_tasks():
            raise BadCall(
                f"everstep.{what}() was called while something is pending: {', '.join(waits[:5])}"
                + (f" and {len(waits) - 5} more" if len(waits) > 5 else "")
                + ". Await or cancel it first: a restart begins at the agent's first line and would know nothing of it"
            )
        if recorded and not delivery.pending and what == "snapshot":
            error = self._not_recorded(what)
            engine.stop(error)
            raise Frozen("the run has stopped") from error
        return bool(delivery.pending)

    def _not_recorded(self, what: str) -> Diverged:
        history = self._engine.history
        does = f"calls everstep.{what}()"
        if history.claims:
            return history.unclaimed(does)
        assert history.finished is not None
        return history.unexpected(history.finished, does)

    def _other_tasks(self) -> list[str]:
        engine = self._engine
        tasks = [t for t in engine.lane.tasks if t is not engine.root and not t.done()]
        return [f"task {t.get_name()}" for t in sorted(tasks, key=hash)]

    def _carried(self, blobs: dict[str, bytes], segments: int) -> dict[str, Any]:  # fields of the records
        engine = self._engine
        kept = [json.loads(encode(r)) for r in engine.history.kept if not (segments and isinstance(r, Segment))]
        applied = sorted(self.applied - {""})
        ids = self._kept_apart(Encoded(applied, canonical(applied)), blobs, over_bytes=INBOX_OVER_BYTES)
        return {
            "epoch": self.number + 1,
            "segment": self.segment + segments,
            "clock": engine.delivery.run_time_ms,
            "totals": {"steps": engine.steps_recorded, "spend": engine.history.spend.carried()},
            "applied": ids if applied else None,
            "kept": [{name: told for name, told in data.items() if name != "files"} for data in kept],
            "files": self._files(blobs),
        }

    def _files(self, blobs: dict[str, bytes]) -> Json:
        """Those of steps that are still there. A list that has not changed is the blob that is there already."""
        carried = self._engine.delivery.blobs.artifacts.carried()
        if carried is None:
            return None
        raw, parts = carried
        name, kept = self._engine.delivery.blobs.seal(raw)
        if name != self._listed:
            blobs[name] = kept
        return {"$blob": name, "bytes": len(raw), "parts": parts}

    def _kept_apart(self, encoded: Encoded, blobs: dict[str, bytes], over_bytes: int = BLOB_OVER_BYTES) -> Json:
        if len(encoded.raw) <= over_bytes and not self._engine.needs_blob(encoded):
            return encoded.data
        name, kept = self._engine.delivery.blobs.seal(encoded.raw)
        blobs[name] = kept
        return {"$blob": name, "bytes": len(encoded.raw)}


async def load(history: "History", read: Callable[[Json], Awaitable[Json]]) -> None:
    """Fetch what the record at which replay begins, and what it carries, only names: state, inputs, ids of applied inbox entries.
    Raises what `read` raises."""
    began, segment = history.began, history.segment
    if began is None:
        return
    if isinstance(began.applied, dict):
        history.inbox_ids.update(await read(began.applied))
    if isinstance(began, Snapshot):
        history.state = await read(began.value)
    if segment is not None:
        history.inputs = await read(segment.value)


INBOX_OVER_BYTES = 16 * 1024
"""So that state, ids and kept records together stay well below RECORD_MAX_BYTES."""


def _name(call: object) -> str:
    return f"step {call.step.name}" if isinstance(call, StepCall) else "a timer (asyncio.sleep, timeout, wait_for)"
