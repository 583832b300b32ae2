"""The supervisor: the operator's place on one machine. It fences, starts the agent process, follows the journal, starts it again.

One supervisor per run (a lock), one agent process at a time: the next one starts only when the earlier one and everything it left
behind are gone. The order of an attempt is the operator's: prove the journal whole, fence with the anchor, anchor, start.
"""

import asyncio
import contextlib
import enum
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from everstep.clock import Clock, SystemClock
from everstep.contract import ENV_ALWAYS_REPLAY, ENV_DEBUG, Termination
from everstep.errors import JournalLost, JournalTampered, JournalUnavailable
from everstep.ids import Attempt, Seq
from everstep.journal.chain import Chain
from everstep.journal.progress import Progress
from everstep.journal.records import Park, Record
from everstep.journal.store import FenceAnswer, Head, Store
from everstep.journal.told import anchor_field
from everstep.local import child, losses, sealing, stragglers
from everstep.local.anchors import AnchorFile, AnchorMissing
from everstep.local.files import LocalDir
from everstep.local.locks import FileLock, RunBusy
from everstep.local.losses import ChildEnd, Losses
from everstep.local.spec import RunSpec
from everstep.local.state import RunState
from everstep.local.tail import Tail, applied_ids, read_whole


class Listener(Protocol):
    """What the supervisor tells while it works; the command line prints it. Calls come in order, from one thread."""

    def opened(self, history: Sequence[Record]) -> None:
        """The journal is proved whole; `history` is everything recorded before this supervisor."""

    def attempt_started(self, attempt: Attempt) -> None: ...

    def records(self, records: Sequence[Record]) -> None:
        """New records of the live attempt, proved."""

    def progress(self, progress: Progress) -> None:
        """What the live attempt says of itself; only when it changed."""

    def idle(self) -> None:
        """The live attempt was looked at."""

    def attempt_ended(
        self, attempt: Attempt, end: ChildEnd, said: Termination | None, follows: losses.Next
    ) -> None: ...

    def waiting(self, park: Park) -> None:
        """The run is parked and the supervisor waits, or is about to leave it so."""

    def stopping(self, grace_s: float) -> None:
        """A stop was asked for and the agent was told."""


class Ending(enum.StrEnum):
    """Why the supervisor is done."""

    FINISHED = "finished"
    WAITING = "waiting"
    """Parked until a person answers."""
    REFUSED = "refused"
    """The agent said that another attempt is useless (64, 65)."""
    GIVEN_UP = "given-up"
    INTERRUPTED = "interrupted"
    """Stopped by a signal; the same command resumes."""


@dataclass(frozen=True)
class Outcome:
    """How supervising ended."""

    ending: Ending
    state: RunState
    head: Head
    status: int = 0
    """With REFUSED and GIVEN_UP: the agent's exit code, or minus its signal."""
    said: Termination | None = None


@dataclass(frozen=True)
class Options:
    """How a supervisor behaves."""

    grace_s: float = 10.0
    """After a stop: time for the step in flight; shorter than a pod's 25 s, since a person waits at the terminal."""
    wait_for_people: bool = False
    """Keep waiting for an answer instead of leaving the run parked."""
    poll_s: float = 0.1
    """How often the journal is looked at: a line appears this late at most."""
    anchor_every_s: float = 1.0
    """While steps advance; what a cut of the journal could take unseen. Two file syncs each, so not at every step."""
    gone_within_s: float = 10.0
    """How long the remains of an earlier attempt may take to go."""
    always_replay: bool = False
    """Each attempt ends after an outcome of a step; the next one replays from the start."""
    stdout_fd: int | None = None
    """Where the agent's standard output goes; None = ours."""


@dataclass
class Supervisor:
    """Supervises one run. `environment` is what the agent inherits besides the contract's variables."""

    directory: LocalDir
    spec: RunSpec
    store: Store
    listener: Listener
    environment: Mapping[str, str]
    options: Options = field(default_factory=Options)
    clock: Clock = field(default_factory=SystemClock)

    def __post_init__(self) -> None:
        self._chain = Chain(self.spec.journal)
        self._anchors = AnchorFile(self.directory.anchor_path(self.spec.run), self.spec.journal)
        self._tail = Tail(self.store, self._chain, Head(Seq(0), self._chain.genesis()))
        self._state = RunState()
        self._losses = Losses()
        self._attempt = Attempt(0)
        self._stops = 0
        self._stop = asyncio.Event()
        self._inbox_read = ""
        self._told: bytes | None = None
        self._told_anchor = self._tail.head

    def request_stop(self) -> None:
        """Called by a signal handler: the first time the agent may finish its step, the second time it is killed."""
        self._stops += 1
        self._stop.set()

    async def run(self) -> Outcome:
        """Until the run is finished, waits for a person, is given up, or a stop was asked for.

        Raises RunBusy, JournalTampered, JournalLost, JournalUnreadable, AnchorMissing, ConfigError, JournalUnavailable.
        """
        with await self._supervise():
            await self._open()
            while not self._state.finished:
                if self._state.park is not None and (ending := await self._parked(self._state.park)):
                    return self._outcome(ending)
                if outcome := await self._one_attempt():
                    return outcome
            self._grow_anchor()
            return self._outcome(Ending.FINISHED)

    async def become_agent(self) -> Outcome:
        """Start one attempt in this very process, which keeps the terminal (a debugger's). Returns only if there is nothing to
        run: the run is finished."""
        supervising = await self._supervise()
        await self._open()
        if self._state.finished:
            return self._outcome(Ending.FINISHED)
        lock = await self._agent_lock()
        env = {ENV_DEBUG: "1"} | await self._prepare()
        await self.store.aclose()
        os.set_inheritable(lock.fd, True)
        os.set_inheritable(supervising.fd, True)
        os.chdir(self.spec.directory)
        argv = child.command()
        os.execve(argv[0], argv, env)
        raise AssertionError("execve returned")

    def _outcome(self, ending: Ending, status: int = 0, said: Termination | None = None) -> Outcome:
        return Outcome(ending, self._state, self._tail.head, status, said)

    async def _supervise(self) -> FileLock:
        lock = FileLock(self.directory.supervisor_lock(self.spec.run))
        if not await lock.acquire():
            pid = lock.holder_pid()
            raise RunBusy(
                f"run {self.spec.run} is being run by process {pid}; wait for it, or stop it: kill {pid}", pid
            )
        return lock

    async def _open(self) -> None:
        """Read and prove what is there."""
        anchor = self._anchors.read()
        if anchor is None:
            if await self.store.meta(self.spec.journal) is not None:
                raise AnchorMissing(
                    f"the anchor {self._anchors.path} is gone, the journal is there: whether its end was cut cannot be told. "
                    f"Restore the file, or take the journal as it is: everstep local accept {self.spec.run} --reason …"
                )
            self._anchors.grow(self._tail.head, Attempt(0), self.clock.now_epoch_ms())
        elif anchor.attempt > 0 and await self.store.meta(self.spec.journal) is None:
            # an attempt was fenced, so there was a journal, even if its anchor is still at 0
            raise JournalLost(
                f"{self.directory.journal_path} has no journal of this run any more", Seq(0), anchor.head.seq
            )
        self._chain = self._tail.chain = await sealing.chain_of(self.directory, self.spec, self.store)
        history, self._tail.head = await read_whole(self.store, self._chain, anchor.head if anchor else self._tail.head)
        self._state.add(history)
        self._state.inbox_ids |= await applied_ids(self.store, self._chain, history)
        self.listener.opened(history)

    async def _one_attempt(self) -> Outcome | None:
        """One attempt and the pause after it; None to go on with another, or because the run finished."""
        if self._stops:
            return self._outcome(Ending.INTERRUPTED)
        inbox = await self.store.inbox_read(self.spec.journal)
        lock = await self._agent_lock()
        try:
            env = await self._prepare()
            process = child.AgentProcess.start(env, self.spec.directory, lock.fd, self.options.stdout_fd)
            lock.sign(process.pid)
        finally:
            lock.close()
        self.listener.attempt_started(self._attempt)
        try:
            end = await self._follow(process)
        finally:
            child.forget_keys(self.directory, self.spec)
        self._grow_anchor()
        said = child.termination(self.directory, self.spec)
        follows = losses.decide(end, self._state.last, self._losses)
        self.listener.attempt_ended(self._attempt, end, said, follows)
        if isinstance(follows, losses.Stop):
            return self._outcome(Ending.GIVEN_UP if follows.given_up else Ending.REFUSED, follows.status, said)
        if isinstance(follows, losses.Waits):
            # that attempt read everything that was in the inbox before it: an entry it did not heed is not for it
            self._inbox_read = inbox[-1].position if inbox else ""
        if isinstance(follows, losses.Restart):
            self._losses = follows.losses
            await self._pause(follows.after_s)
        return None

    async def _agent_lock(self) -> FileLock:
        """Wait until nothing of an earlier attempt lives, ending what it left behind. Raises RunBusy if that takes too long."""
        lock = FileLock(self.directory.agent_lock(self.spec.run))
        until = self.clock.monotonic_s() + self.options.gone_within_s
        while True:
            if stragglers.find(self._mark):  # each look reads the environment of every process
                stragglers.end(self._mark)
            elif lock.try_acquire():
                return lock
            if self.clock.monotonic_s() > until:
                pid = next(iter(stragglers.find(self._mark)), lock.holder_pid())
                raise RunBusy(
                    f"process {pid} of an earlier attempt of run {self.spec.run} still lives, so its effects may still happen; "
                    f"end it: kill -9 {pid}",
                    pid,
                )
            await asyncio.sleep(0.05)

    @property
    def _mark(self) -> str:
        return hashlib.sha256(f"{self.directory.root.resolve()}\0{self.spec.run}".encode()).hexdigest()[:32]

    async def _prepare(self) -> dict[str, str]:
        """Fence the next attempt and write its files; the environment for it."""
        anchor = self._anchors.read()
        head = anchor.head if anchor else self._tail.head
        meta = await self.store.meta(self.spec.journal)
        number = max(self._state.attempt, meta.attempt if meta else 0) + 1
        async with sealing.keyed(self.directory, self.spec, self.store, self.clock) as (self._chain, more):
            fields = {"name": self.spec.run, "namespace": "local", **more}
            while True:
                reply = await self.store.fence(self.spec.journal, Attempt(number), head, fields)
                if reply.answer is not FenceAnswer.FENCED:
                    break
                number = reply.attempt + 1
        self._tail.chain = self._chain
        if reply.answer is FenceAnswer.LOST:
            have = reply.head.seq if reply.head else Seq(0)
            raise JournalLost(f"the journal ends at record {have}, behind the anchor at {head.seq}", have, head.seq)
        if reply.answer is FenceAnswer.TAMPERED:
            raise JournalTampered(f"record {head.seq} is not the one that was anchored", head.seq)
        self._attempt = Attempt(number)
        await self._take_in()
        self._grow_anchor()
        plan = child.AttemptPlan(
            spec=self.spec,
            attempt=self._attempt,
            anchor=self._tail.head,
            predecessor_dead=stragglers.can_see(),  # proved by the lock and the empty search
            mark=self._mark,
            grace_s=self.options.grace_s,
            data_keys=self._chain.sealer.keys if self._chain.sealer else {},
        )
        given = dict(self.environment) | ({ENV_ALWAYS_REPLAY: "1"} if self.options.always_replay else {})
        return child.prepare(self.directory, plan, given)

    async def _follow(self, process: child.AgentProcess) -> ChildEnd:
        """Show and anchor what the agent records until it ends; however this ends, the agent is gone afterwards."""
        anchored_s = self.clock.monotonic_s()
        kill_at_s: float | None = None
        try:
            while True:
                end = await process.wait(self.options.poll_s)
                await self._take_in(patient=end is not None)
                if end is not None:
                    return end
                self.listener.idle()
                now_s = self.clock.monotonic_s()
                if now_s - anchored_s >= self.options.anchor_every_s:
                    self._grow_anchor()
                    await self._tell_anchor()
                    anchored_s = now_s
                if self._stops and kill_at_s is None:
                    process.terminate()
                    self.listener.stopping(self.options.grace_s)
                    kill_at_s = now_s + self.options.grace_s + 2.0
                if kill_at_s is not None and (self._stops > 1 or now_s > kill_at_s):
                    process.kill()
        finally:
            if process.poll() is None:
                process.kill()
                await process.wait(self.options.gone_within_s)

    async def _take_in(self, *, patient: bool = True) -> None:
        """Read what is new. A store that is busy is asked again: for up to a minute if `patient`, else at the next look."""
        until = self.clock.monotonic_s() + 60.0
        while True:
            try:
                meta = await self.store.meta(self.spec.journal)
                if meta is not None and meta.progress is not None and meta.progress != self._told:
                    self._told = meta.progress
                    progress = Progress.from_bytes(meta.progress)
                    if progress is not None and progress.attempt == self._attempt:
                        self.listener.progress(progress)
                if meta is not None and meta.head.seq != self._tail.head.seq:
                    found = await self._tail.poll()
                    if self._state.add(found):
                        self._losses = Losses()
                    self.listener.records(found)
                return
            except JournalUnavailable:
                if not patient:
                    return
                if self.clock.monotonic_s() > until:
                    raise
                await asyncio.sleep(0.2)

    def _grow_anchor(self) -> None:
        self._anchors.grow(self._tail.head, self._attempt, self.clock.now_epoch_ms())

    async def _tell_anchor(self) -> None:
        """What is before an anchored snapshot may be deleted; the agent does that. Told once per snapshot, best effort."""
        if self._state.opened_seq > self._told_anchor.seq:
            with contextlib.suppress(JournalUnavailable):
                await self.store.set_fields(self.spec.journal, anchor_field(self._tail.head))
                self._told_anchor = self._tail.head

    async def _parked(self, park: Park) -> Ending | None:
        """Wait until there is something to do for another attempt (None), or say why this is not waited for."""
        told = False
        if self.spec.budget not in (None, self._state.budget or {}) and not self._attempt:
            return None  # given otherwise than before: the first attempt here takes it up
        while True:
            if self._stops:
                return Ending.INTERRUPTED
            entries = await self.store.inbox_read(self.spec.journal, self._inbox_read)
            if any(entry.id not in self._state.inbox_ids for entry in entries):
                return None
            now = self.clock.now_epoch_ms()
            if park.wake is not None and now >= park.wake:
                return None
            if not told:
                self.listener.waiting(park)
                told = True
            if park.wake is None and not self.options.wait_for_people:
                return Ending.WAITING
            rest_s = 0.5 if park.wake is None else (park.wake - now) / 1000
            await self._pause(min(0.5, rest_s))

    async def _pause(self, seconds: float) -> None:
        """Sleep, but notice a stop."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)
