"""`MemoryRun`: one run on a journal in memory, attempt by attempt, on virtual time."""

import asyncio
import copy
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, NoReturn, TypeVar

from everstep import faults
from everstep.clock import Clock, SystemClock
from everstep.errors import Diverged, JournalLost, Terminated
from everstep.ids import Attempt as AttemptNumber
from everstep.ids import InboxId, JournalId, Owner, Seq
from everstep.journal import fork
from everstep.journal.chain import Chain
from everstep.journal.inbox import BudgetBody, CancelBody, SettleBody, make_entry
from everstep.journal.memory import MemoryJournal, MemoryStore
from everstep.journal.records import Finished, Park, Record, Waited, canonical, decode
from everstep.journal.store import FenceAnswer, Head, Store, Stored
from everstep.journal.verify import verify
from everstep.run.agents import Agent
from everstep.run.attempt import Attempt, AttemptEnd, RunIdentity
from everstep.run.blobs import read_value
from everstep.run.calls import StepCall
from everstep.run.config import NO_GRACE_BOUND_S, EngineConfig
from everstep.run.engine import Engine
from everstep.run.hosting import host
from everstep.run.lane import Lane
from everstep.run.loop import AgentLoop
from everstep.run.values import digest
from everstep.run.virtual import VirtualClock, VirtualSelector

R = TypeVar("R")


class SimulatedCrash(KeyboardInterrupt):
    """Ends an attempt where it stands. Of this kind, because asyncio lets it through at once."""


@dataclass(frozen=True)
class Ended(Generic[R]):
    """How an attempt ended."""

    kind: Literal["succeeded", "failed", "cancelled", "parked", "crashed", "stopped"]
    value: R | None = None
    """With `succeeded`: the agent's result."""
    error: BaseException | None = None
    """With `failed`: the agent's exception. With `stopped`: what ended the attempt (Diverged, Fenced, Terminated …)."""
    message: str = ""
    waits: tuple[Waited, ...] = ()
    """With `parked`: what for."""
    wake_epoch_ms: int | None = None


class MemoryRun(Generic[R]):
    """One run on a journal in memory, attempt by attempt. `seed` decides latencies' jitter and drawn values; `key` signs the
    chain as on a cluster (None = as in local mode). `real_time` waits really: threads do not know virtual time.
    `always_replay` ends the attempt after each outcome of a step and replays from the start, so that an agent which does not
    repeat itself is Diverged at its first step, not at its first crash."""

    def __init__(
        self,
        agent: "Agent[..., Any]",  # of any signature; R is its result
        goal: str = "",
        inputs: Mapping[str, object] | None = None,
        *,
        seed: int = 0,
        store: MemoryStore | None = None,
        key: bytes | None = None,
        park_linger_s: float = 30.0,
        real_time: bool = False,
        always_replay: bool = False,
    ) -> None:
        self.agent = agent
        self.goal = goal
        self.inputs = agent.encode_inputs(inputs or {})
        self.store = store or MemoryStore()
        self.journal_id = JournalId("memory-run")
        self.chain = Chain(self.journal_id, key)
        self.clock = VirtualClock(seed)
        self.real_time = real_time
        self.always_replay = always_replay
        self.park_linger_s = park_linger_s
        self.image, self.image_named, self.python = "", None, ""  # type: str, str | None, str
        """What each attempt is told of its image, and a Python to stand for this one (everstep.run.pins)."""
        self.number = 0
        self.bodies: Counter[str] = Counter()
        """How often each step body was started, by step key, over all attempts."""
        self.reached: list[str] = []
        """Fault points of the last attempt, in order."""
        self.on_call: Callable[[StepCall], bool] | None = None
        """Asked at each call of a step, before it is looked up in the journal; True: the call goes no further."""
        self._last: Attempt | None = None
        self._entries = 0
        self._dead = False

    # --- attempts -----------------------------------------------------------------------------------------------

    def attempt(
        self,
        *,
        crash_at: str | None = None,
        predecessor_dead: bool = True,
        on_point: Callable[[str], None] | None = None,
        run_to_end: bool = False,
        **config: Any,  # fields of EngineConfig
    ) -> Ended[R]:
        """Fence and run the next attempt. `crash_at` is `point` or `point:n` (its nth time) or `any:n`. `on_point` hears of every
        point that is reached. With `always_replay`: attempts until one ends for another reason than a recorded outcome."""
        if not self.always_replay:
            return self._one(crash_at, predecessor_dead, on_point, run_to_end, config)
        while True:
            before = len(self.raw_records)
            ended = self._one(
                crash_at,
                predecessor_dead,
                on_point,
                run_to_end,
                {"grace_s": NO_GRACE_BOUND_S} | config | {"always_replay": True},
            )
            if not isinstance(ended.error, Terminated) or len(self.raw_records) == before:
                return ended

    def _one(
        self,
        crash_at: str | None,
        predecessor_dead: bool,
        on_point: Callable[[str], None] | None,
        run_to_end: bool,
        config: dict[str, Any],  # fields of EngineConfig
    ) -> Ended[R]:
        self.number += 1
        clock: Clock = SystemClock() if self.real_time else self.clock
        lane = Lane(self._make_loop(clock))
        faults.listen(self._listener(crash_at, on_point))
        try:
            end, value = host(lane, self._run(lane, clock, predecessor_dead, run_to_end, config), self.store.aclose)
        except BaseException as e:
            if self._dead:
                return Ended("crashed")
            if isinstance(e, KeyboardInterrupt):
                raise
            return Ended("stopped", error=e, message=str(e))
        finally:
            faults.listen(None)
            self._count_bodies()
        if self._dead:
            return Ended("crashed")
        record = end.record
        if isinstance(record, Park):
            return Ended("parked", waits=tuple(record.waits), wake_epoch_ms=record.wake)
        return Ended(record.outcome, value, end.error, record.message)

    def run(self, **config: Any) -> R:  # fields of EngineConfig
        """Attempts until the run is finished; its result. Sleeps through parked timers. Raises the agent's exception, or
        AssertionError if the run waits for a person."""
        while True:
            ended = self.attempt(**config)
            if ended.kind == "succeeded":
                return ended.value  # type: ignore[return-value]  # None only if the agent returned None
            if ended.kind == "parked" and ended.wake_epoch_ms is not None:
                self.sleep(max(0.0, (ended.wake_epoch_ms - self.clock.now_epoch_ms()) / 1000))
                continue
            raise ended.error or AssertionError(f"the run {ended.kind}: {ended.message or ended.waits}")

    def replay(self) -> R:
        """Run agent code over the finished journal, on a copy. Raises Diverged if it takes another way, AssertionError if a body
        runs or a record is written."""
        twin = self.copy()
        before = len(self.records)
        ended = twin.attempt(run_to_end=True)
        if ended.kind == "stopped" and isinstance(ended.error, Diverged):
            raise ended.error
        if twin.bodies or len(twin.records) != before:
            raise AssertionError(f"the replay ran {dict(twin.bodies)} and wrote {len(twin.records) - before} records")
        if ended.kind == "stopped" and ended.error is not None:
            raise ended.error
        return ended.value  # type: ignore[return-value]  # as in `run`

    def copy(self) -> "MemoryRun[R]":
        """The same run on a copy of its journal; what happens to one does not reach the other."""
        twin = copy.copy(self)
        twin.store = self.store.copy()
        twin.bodies = Counter()
        twin.reached = []
        return twin

    def fork(
        self,
        step: str,
        *,
        agent: "Agent[..., Any] | None" = None,  # of any signature
        goal: str | None = None,
        inputs: Mapping[str, object] | None = None,
    ) -> "MemoryRun[R]":
        """Another run whose journal begins with the proved records of this one before `step` (a key, a name, `end`), perhaps with
        other code, goal or inputs. Raises ConfigError, JournalTampered."""
        twin = self.copy()
        twin.agent = agent or self.agent
        twin.goal = self.goal if goal is None else goal
        twin.inputs = dict(self.inputs) | twin.agent.encode_inputs({**self.inputs, **(inputs or {})})
        twin.journal_id = JournalId(f"{self.journal_id}-fork-{step}")
        sealer = self.chain.sealer and replace(self.chain.sealer, journal_id=twin.journal_id)
        twin.chain = Chain(twin.journal_id, self.chain.key, sealer)
        report = asyncio.run(verify(self.store, self.chain, self.journal_id, keep=True))
        made = fork.plan(report, "memory-run", step, self.chain.sealer)
        records = fork.begin(made, {"goal": digest(twin.goal.encode()), "inputs": digest(canonical(twin.inputs))})
        asyncio.run(_write_fork(twin, self.chain, made, records))
        twin.number = fork.ATTEMPT
        return twin

    def cut(self, seq: int) -> None:
        """Take every record after `seq` away, as if the process had been lost before they were written."""
        journal = self.store.journals_by_id[self.journal_id]
        journal.records[:] = [r for r in journal.records if r.seq <= seq]
        journal.head = Head(Seq(seq), journal.records[-1].hash if seq else self.chain.genesis())

    def sleep(self, seconds: float) -> None:
        """Let time pass between two attempts."""
        self.clock.advance(seconds)

    async def _run(
        self,
        lane: Lane,
        clock: Clock,
        predecessor_dead: bool,
        run_to_end: bool,
        config: dict[str, Any],  # fields of EngineConfig
    ) -> tuple[AttemptEnd, Any]:  # the agent's result
        store: Store = self.store
        meta = await store.meta(self.journal_id)
        anchor = meta.head if meta else Head(Seq(0), self.chain.genesis())
        number = AttemptNumber(self.number)
        reply = await store.fence(self.journal_id, number, anchor, {})
        if reply.answer is not FenceAnswer.OK:
            raise JournalLost(
                f"the fence answered {reply.answer}", reply.head.seq if reply.head else Seq(0), anchor.seq
            )
        identity = RunIdentity(
            self.chain,
            Owner(f"memory-{self.number}"),
            goal=self.goal,
            inputs=self.inputs,
            entrypoint=f"{self.agent.fn.__module__}:{self.agent.fn.__name__}",
            anchor_seq=anchor.seq,
            anchor_hash=anchor.hash,
            image=self.image,
            image_named=self.image_named,
            python=self.python,
        )
        settings: dict[str, Any] = {"park_linger_s": self.park_linger_s} | config
        engine_config = EngineConfig(
            self.journal_id, number, predecessor_dead=predecessor_dead, count_bodies=True, **settings
        )
        attempt = self._last = Attempt(
            lane, store, lambda: self.agent, identity, engine_config, clock, run_to_end=run_to_end
        )
        attempt.on_call = self.on_call
        end = await attempt.run()
        value = None
        if isinstance(end.record, Finished) and end.record.outcome == "succeeded":
            value = self.agent.result.decode(await read_value(store, self.chain, end.record.value))
        return end, value

    @property
    def engine(self) -> Engine | None:
        """Of the last attempt, to look at."""
        return self._last.engine if self._last is not None else None

    def terminate(self) -> None:
        """SIGTERM, for use in `on_point`."""
        if self._last is not None:
            self._last.terminate()

    def _make_loop(self, clock: Clock) -> AgentLoop:
        return AgentLoop(clock, None if self.real_time else VirtualSelector(self.clock, self._threads_busy))

    def _threads_busy(self) -> bool:
        engine = self._last.engine if self._last is not None else None
        return engine is not None and engine.bodies.threads_busy

    def _listener(self, crash_at: str | None, on_point: Callable[[str], None] | None) -> Callable[[str], None]:
        name, _, nth = (crash_at or "").partition(":")
        if name and name != "any" and name not in faults.POINTS:
            raise ValueError(f"unknown point {name!r}; known: any, {', '.join(faults.POINTS)}")
        left = int(nth or 1)
        self.reached = []
        self._dead = False

        def listen(point: str) -> None:
            nonlocal left
            self.reached.append(point)
            if on_point is not None:
                on_point(point)
            if name in (point, "any"):
                left -= 1
                if left == 0:
                    self._die(point)

        return listen

    def _die(self, point: str) -> NoReturn:
        """As SIGKILL: agent code that is unwound by this must reach neither the journal nor the outside with its `finally`."""
        self._dead = True
        crash = SimulatedCrash(point)
        engine = self._last.engine if self._last is not None else None
        if engine is not None:
            engine.stop(crash)
            engine.writer.freeze()
        raise crash

    def _count_bodies(self) -> None:
        engine = self._last.engine if self._last is not None else None
        if engine is not None:
            self.bodies.update(engine.bodies.started)

    @property
    def replayed_steps(self) -> int:
        """Steps that the last attempt had from the record."""
        engine = self._last.engine if self._last is not None else None
        return engine.delivery.replayed if engine is not None else 0

    # --- the journal, and what people say -----------------------------------------------------------------------

    @property
    def records(self) -> list[Record]:
        """The journal, decoded."""
        journal = self.store.journals_by_id.get(self.journal_id)
        return [decode(stored.record, stored.seq, self.chain.sealer) for stored in journal.records] if journal else []

    def load(self, records: Sequence[bytes]) -> None:
        """Make the journal of this run from recorded bytes (`raw_records` of another), e.g. of an older version."""
        prev = self.chain.genesis()
        stored = []
        for raw in records:
            told = json.loads(raw)  # a compacted journal begins later than at 1
            link = self.chain.link(prev, raw)
            stored.append(Stored(Seq(told["seq"]), raw, prev, link, AttemptNumber(told["attempt"])))
            prev = link
        self.number = max((s.attempt for s in stored), default=0)
        journal = MemoryJournal(
            AttemptNumber(self.number), Head(stored[-1].seq if stored else Seq(0), prev), records=stored
        )
        self.store.journals_by_id[self.journal_id] = journal

    @property
    def raw_records(self) -> list[bytes]:
        """The journal as it is stored."""
        journal = self.store.journals_by_id.get(self.journal_id)
        return [stored.record for stored in journal.records] if journal else []

    def kinds(self) -> list[str]:
        """`kind key` of every record, to look at."""
        return [f"{r.kind} {r.key}".strip() for r in self.records]

    def settle(
        self,
        key: str,
        decision: Literal["done", "again", "fail"],
        value: object = None,
        *,
        by: str = "tester",
        reason: str = "",
    ) -> None:
        """A person's answer to an uncertain step."""
        asked = next(r for r in reversed(self.records) if r.kind == "uncertain" and r.key == key)
        self._add(
            SettleBody(
                key=key, input=asked.input, since=asked.time, decision=decision, value=value, by=by, reason=reason
            )
        )

    def cancel(self, by: str = "tester", reason: str = "") -> None:
        """A person's wish to cancel the run."""
        self._add(CancelBody(by=by, reason=reason))

    def set_budget(self, limits: Mapping[str, Any], by: str = "tester", reason: str = "") -> None:  # JSON
        """A person's word on what the run may use, in the form of everstep.budget: {"maxTokens": 400000}."""
        self._add(BudgetBody(limits=dict(limits), by=by, reason=reason))

    def _add(self, body: SettleBody | CancelBody | BudgetBody) -> None:
        self._entries += 1
        entry = make_entry(self.chain, InboxId(f"entry-{self._entries}"), body)
        entries = self.store.inboxes.setdefault(self.journal_id, [])
        entries.append(type(entry)(entry.id, entry.body, entry.mac, str(len(entries) + 1)))


async def _write_fork(
    twin: "MemoryRun[Any]",  # of any result
    source: Chain,
    made: fork.Fork,
    records: Sequence[Record],
) -> None:
    renamed = await fork.rename_blobs(twin.store, source, twin.chain, made.blobs)
    await fork.write(twin.store, twin.chain, Owner("fork"), fork.seal(twin.chain, records, renamed), {})
    await fork.copy_blobs(twin.store, source, twin.chain, made.blobs)


__all__ = ["Ended", "MemoryRun", "SimulatedCrash"]
