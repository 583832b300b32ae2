"""`everstep.run(agent, goal=…)`: a run in this very process, with the journal of local mode. No supervisor, no restarts.

Works in a script, under pytest and in a notebook (where a loop runs already: then on a thread). Journal, anchor and spec are
those of `everstep local`, so its commands see the run.
"""

import asyncio
import contextlib
import contextvars
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar, overload

from everstep.budget import Budget
from everstep.clock import SystemClock
from everstep.errors import (
    AgentFailed,
    BadCall,
    Cancelled,
    ConfigError,
    JournalLost,
    JournalTampered,
    JournalUnavailable,
    Parked,
    Terminated,
)
from everstep.ids import Attempt as AttemptNumber
from everstep.ids import JournalId, Owner, RunName, Seq
from everstep.journal.chain import Chain
from everstep.journal.open import open_store
from everstep.journal.records import Finished, Park
from everstep.journal.signing import require
from everstep.journal.store import FenceAnswer, Head, Store
from everstep.journal.told import anchor_field
from everstep.local import sealing
from everstep.local.anchors import AnchorFile
from everstep.local.files import DEFAULT_DIR, LocalDir
from everstep.local.locks import FileLock, RunBusy
from everstep.local.spec import RunSpec, check_run_id, differences, load
from everstep.run.agents import Agent, loading
from everstep.run.attempt import Attempt, AttemptEnd, RunIdentity
from everstep.run.blobs import read_value
from everstep.run.config import EngineConfig
from everstep.run.hosting import Tidy, attend, host
from everstep.run.lane import Lane
from everstep.run.loop import AgentLoop
from everstep.run.scope import SCOPE

R = TypeVar("R")
log = logging.getLogger("everstep.run")
FOREVER_S = float("inf")
ANCHOR_EVERY_S = 1.0
"""How often a snapshot that waits for an anchor is looked for; an anchor costs two file syncs."""


@overload
def run(
    agent: Agent[..., Coroutine[Any, Any, R]],  # of any signature
    goal: str = "",
    *,
    run_id: str | None = None,
    directory: str | None = None,
    budget: Budget | None = None,
    encrypt: bool = False,
    **inputs: object,
) -> R:
    """An async agent."""


@overload
def run(
    agent: Agent[..., R],
    goal: str = "",
    *,
    run_id: str | None = None,
    directory: str | None = None,
    budget: Budget | None = None,
    encrypt: bool = False,
    **inputs: object,
) -> R:
    """A sync agent."""


def run(
    agent: Agent[..., Any],  # of any signature
    goal: str = "",
    *,
    run_id: str | None = None,
    directory: str | None = None,
    budget: Budget | None = None,
    encrypt: bool = False,
    **inputs: object,
) -> Any:  # the agent's result
    """Run an agent to its end and return its result.

    goal, inputs  reach the agent by parameter name; inputs are checked against its annotations
    run_id        names the run: the same id again resumes it, or returns the result it has. None = a new run
    directory     where the journal is kept; default ./.everstep
    budget        what the run may use; None = no limit, or as the run has it. Another one than before counts from here on
    encrypt       encrypt what is recorded, so that `everstep local erase` can make it unreadable. Needs everstep[integrity]

    Long timers are waited for in the process. Raises ConfigError, AgentFailed (with the agent's own exception as its cause),
    Parked (a step is uncertain and waits for a person, or the budget has no room for it; answer or raise it and run again),
    Cancelled, JournalError, RunBusy."""
    there = prepare("run", agent, goal, run_id, directory, budget, encrypt, inputs)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return there.run()
    return _on_a_thread(there)


def prepare(
    name: str,
    agent: Agent[..., Any],  # of any signature
    goal: str,
    run_id: str | None,
    directory: str | None,
    budget: Budget | None,
    encrypt: bool,
    inputs: dict[str, object],
) -> "InProcess":
    """Check what `run` or `run_async` was called with."""
    called = f"everstep.{name}"
    if not isinstance(agent, Agent):
        raise ConfigError(f"{called} needs an @everstep.agent, not {agent!r}")
    if SCOPE.get() is not None:
        raise BadCall(f"{called}() was called inside a run; call the other agent directly, as a part of this one")
    if loading:
        raise ConfigError(
            f'{called}() is called while {loading[-1]} is imported: put it under `if __name__ == "__main__":`'
        )
    if budget is not None and not isinstance(budget, Budget):
        raise ConfigError(
            f"{called}: budget must be an everstep.Budget, not {budget!r}; an agent's input needs another name"
        )
    return InProcess(agent, goal, agent.encode_inputs(inputs), run_id, directory, budget, encrypt)


def _on_a_thread(there: "InProcess") -> Any:  # the agent's result
    """A loop is running here already (a notebook): run beside it, and wait."""
    ends: list[tuple[Any, BaseException | None]] = []

    def main() -> None:
        try:
            ends.append((there.run(), None))
        except BaseException as e:
            ends.append((None, e))

    thread = threading.Thread(target=main, name="everstep run", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.2)  # in slices, so that an interrupt gets through
    except KeyboardInterrupt:
        there.stop()
        raise
    value, error = ends[0]
    if error is not None:
        raise error
    return value


class InProcess:
    """One call of `run` or `run_async`."""

    def __init__(
        self,
        agent: Agent[..., Any],  # of any signature
        goal: str,
        inputs: dict[str, Any],  # JSON
        run_id: str | None,
        directory: str | None,
        budget: Budget | None = None,
        encrypt: bool = False,
    ) -> None:
        self.agent = agent
        self.budget = budget
        self.clock = SystemClock()
        self.run_name = check_run_id(run_id or f"{agent.name.replace('_', '-')[:40]}-{self.clock.nonce()[:8]}")
        self.directory = LocalDir(Path(directory or DEFAULT_DIR))
        self.directory.create()
        self._asked = (goal, inputs, encrypt)
        self.spec: RunSpec
        self.chain: Chain
        self.anchors: AnchorFile
        self.lane: Lane | None = None
        self.attempt: Attempt | None = None
        self._stopping = False

    def _spec(self, goal: str, inputs: dict[str, Any], encrypt: bool) -> RunSpec:  # JSON
        fn = self.agent.fn
        entrypoint = f"{fn.__module__}:{fn.__name__}"
        path = self.directory.spec_path(self.run_name)
        old = load(path)
        if old is not None:
            if found := differences(old, entrypoint=old.entrypoint, goal=goal, inputs=inputs, encrypt=encrypt):
                raise ConfigError(
                    f"run {self.run_name} was begun otherwise: {'; '.join(found)}. Take another run_id for a new run"
                )
            return old
        now = self.clock.now_epoch_ms()
        journal = JournalId(f"{self.run_name}.{self.clock.nonce()[:16]}")
        self.directory.anchor_path(self.run_name).unlink(missing_ok=True)  # of a fork that was never finished
        if encrypt:
            require()
        spec = RunSpec(self.run_name, journal, entrypoint, goal, inputs, os.getcwd(), now, encrypt=encrypt)
        spec.save(path)
        return spec

    def stop(self) -> None:
        """From another thread: end as after SIGTERM."""
        self._stopping = True
        if self.attempt is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended
                self.attempt.lane.loop.call_soon_threadsafe(self.attempt.terminate, context=contextvars.Context())

    def run(self) -> Any:  # the agent's result
        """Here and now, in a loop of its own."""
        locks = asyncio.run(self._take_up())
        try:
            end, value = host(*self._hosted(AgentLoop(self.clock)))
        except Terminated:
            raise KeyboardInterrupt from None
        finally:
            self._let_go(locks)
        return self._outcome(end, value)

    async def run_among(self, loop: AgentLoop) -> Any:  # the agent's result
        """In a loop that others share."""
        locks = await self._take_up()
        try:
            end, value = await attend(*self._hosted(loop))
        finally:
            self._let_go(locks)
        return self._outcome(end, value)

    async def _take_up(self) -> contextlib.ExitStack:
        """Lock the run, and begin it or see what it is. The supervisor's lock, so that `everstep local` sees that it runs;
        the agent's, as proof once we are gone. Raises RunBusy, ConfigError."""
        with contextlib.ExitStack() as locks:
            for path in (self.directory.supervisor_lock, self.directory.agent_lock):
                wanted = locks.enter_context(FileLock(path(self.run_name)))
                if not await wanted.acquire():
                    raise self._busy(wanted.holder_pid())
            self.spec = self._spec(*self._asked)
            self.chain = Chain(self.spec.journal)
            self.anchors = AnchorFile(self.directory.anchor_path(self.run_name), self.spec.journal)
            return locks.pop_all()

    def _hosted(self, loop: AgentLoop) -> tuple[Lane, Coroutine[Any, Any, tuple[AttemptEnd, Any]], Tidy]:
        """What `host` and `attend` take."""
        lane = self.lane = Lane(loop)
        store = open_store(self.directory.store_url, installation="local")
        return lane, self._attempt(lane, store), store.aclose

    def _let_go(self, locks: contextlib.ExitStack) -> None:
        """The attempt is over. The locks are kept until its last body is over, even one that nobody waits for any more: a thread
        cannot be stopped."""
        assert self.lane is not None
        self.lane.when_quiet(locks.close)
        if self.attempt is not None and self.attempt.engine is not None:
            self.attempt.engine.release()

    def _busy(self, pid: int) -> RunBusy:
        if pid == os.getpid():
            said = "this process (or a step of it that was given up has not ended yet); wait for it"
        else:
            said = f"process {pid}; wait for it, or end it: kill {pid}"
        return RunBusy(f"run {self.run_name} is being run by {said}", pid)

    async def _attempt(self, lane: Lane, store: Store) -> tuple[AttemptEnd, Any]:  # the agent's result
        number = await self._fence(store)
        anchor = self.anchors.read()
        head = anchor.head if anchor else None
        identity = RunIdentity(
            self.chain,
            Owner(f"{os.getpid()}-{self.clock.nonce()}"),
            goal=self.spec.goal,
            inputs=dict(self.spec.inputs),
            run_name=RunName(self.run_name),
            namespace="local",
            entrypoint=self.spec.entrypoint,
            anchor_seq=head.seq if head else Seq(0),
            anchor_hash=head.hash if head else None,
        )
        config = EngineConfig(self.spec.journal, number, grace_s=5.0, park_linger_s=FOREVER_S, budget=self.budget)
        attempt = self.attempt = Attempt(lane, store, lambda: self.agent, identity, config, self.clock)
        if self._stopping:
            attempt.terminate()
        remove = self._on_interrupt(lane.loop, attempt.terminate)
        lane.task(self._anchor_snapshots(attempt, store, number), "anchor")
        try:
            end = await attempt.run()
        finally:
            remove()
            self.anchors.grow(attempt.confirmed, number, self.clock.now_epoch_ms())
        value = None
        if isinstance(end.record, Finished) and end.record.outcome == "succeeded":
            value = self.agent.result.decode(await read_value(store, self.chain, end.record.value))
        return end, value

    async def _anchor_snapshots(self, attempt: Attempt, store: Store, number: AttemptNumber) -> None:
        """While the agent runs: once a snapshot waits for it, move the anchor and tell it, so that the journal can shrink."""
        while True:
            await asyncio.sleep(ANCHOR_EVERY_S)
            head = attempt.confirmed
            waits_for = attempt.engine.compaction.waits_for if attempt.engine is not None else 0
            if waits_for and head.seq >= waits_for:
                with contextlib.suppress(JournalUnavailable):
                    self.anchors.grow(head, number, self.clock.now_epoch_ms())
                    await store.set_fields(self.spec.journal, anchor_field(head))

    async def _fence(self, store: Store) -> AttemptNumber:
        """The next attempt number; there is no supervisor to do it."""
        genesis = Head(Seq(0), self.chain.genesis())
        anchor = self.anchors.read()
        if anchor is None:
            self.anchors.grow(genesis, AttemptNumber(0), self.clock.now_epoch_ms())
        head = anchor.head if anchor else genesis
        meta = await store.meta(self.spec.journal)
        number = AttemptNumber((meta.attempt if meta else 0) + 1)
        async with sealing.keyed(self.directory, self.spec, store, self.clock) as (self.chain, more):
            fields = {"name": self.run_name, "namespace": "local", **more}
            reply = await store.fence(self.spec.journal, number, head, fields)
        if reply.answer is FenceAnswer.LOST:
            have = reply.head.seq if reply.head else Seq(0)
            raise JournalLost(f"the journal ends at record {have}, behind the anchor at {head.seq}", have, head.seq)
        if reply.answer is FenceAnswer.TAMPERED:
            raise JournalTampered(f"record {head.seq} is not the one that was anchored", head.seq)
        return number

    @staticmethod
    def _on_interrupt(loop: AgentLoop, act: Callable[[], None]) -> Callable[[], object]:
        """Ctrl-C ends the run in good order where we may handle signals; a second one at once."""
        if threading.current_thread() is not threading.main_thread():
            return lambda: None

        def first() -> None:
            loop.remove_signal_handler(signal.SIGINT)
            act()

        loop.add_signal_handler(signal.SIGINT, first)
        return lambda: loop.remove_signal_handler(signal.SIGINT)

    def _outcome(self, end: AttemptEnd, value: Any) -> Any:  # the agent's result
        record = end.record
        if isinstance(record, Park):
            waits = "; ".join(f"{w.name} at {w.key}: {w.reason}" for w in record.waits if w.kind != "timer")
            asked = [
                how
                for kind, how in (
                    ("uncertain", f"Answer with `everstep local settle {self.run_name} KEY …`"),
                    ("budget", f"Raise its budget with `everstep local budget {self.run_name} …` or another budget="),
                )
                if any(w.kind == kind for w in record.waits)
            ]
            raise Parked(
                f"run {self.run_name} waits for a person: {waits}. {'. '.join(asked)}, "
                f"and run it again with run_id={self.run_name!r}"
            )
        if record.outcome == "cancelled":
            raise Cancelled(f"run {self.run_name} was cancelled")
        if record.outcome == "failed":
            raise AgentFailed(record.type, record.message, record.data) from end.error
        return value
