"""What the loop keeps for one agent, and what the agent's engine asks of the loop.

Several attempts may share a loop (`everstep.run_async`). Each has a lane: the turns of its agent code that are ready, its tasks
and the numbers they get, and the tasks that it started outside agent scope. Agent code of one lane neither sees nor wakes
another's.
"""

import asyncio
import contextvars
import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, TypeVar

from everstep.run.scope import APART, BODY, SCOPE

if TYPE_CHECKING:
    from everstep.run.loop import AgentLoop
    from everstep.run.scope import Scope

T = TypeVar("T")
R = TypeVar("R")
# asyncio's own callbacks take what they are given; the stubs' TypeVarTuple adds nothing here
Callback = Callable[..., object]

LANE: contextvars.ContextVar["Lane | None"] = contextvars.ContextVar("everstep_lane", default=None)
"""Set in all that an attempt starts: agent code, step bodies, the engine's own tasks."""


def of_no_run() -> contextvars.Context:
    """A copy of the caller's context that belongs to no run, although the caller may be a step's body: another run begins."""
    context = contextvars.copy_context()
    for variable in (SCOPE, LANE, BODY):
        context.run(variable.set, None)
    context.run(APART.set, False)
    return context


def is_interrupt(error: BaseException) -> bool:
    """Whether it is a person's Ctrl-C, which ends the process. It reaches the main thread alone; elsewhere a KeyboardInterrupt is
    the author's own, and an error like any other."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


class AgentTask(asyncio.Task[T]):
    """A task of agent code. Its hash is its number in creation order."""

    def __init__(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],  # what asyncio.Task takes
        *,
        order: int,
        lane: "Lane",
        name: str | None,
        context: contextvars.Context,
        made_at: tuple[str, int] | None = None,
    ) -> None:
        self.order = order
        self.lane = lane
        self.made_at = made_at
        """File and line of agent code, for messages about a task that has no line of its own."""
        super().__init__(coro, loop=lane.loop, name=name, context=context)
        asyncio.tasks._unregister_task(self)  # `all_tasks` (everstep.run.ordered) shows it to its own agent alone

    def __hash__(self) -> int:
        return self.order


class AgentFuture(asyncio.Future[T]):
    """A future made by agent code (locks, queues, shields); hash as for AgentTask."""

    def __init__(self, *, order: int, lane: "Lane") -> None:
        self.order = order
        self.lane = lane
        super().__init__(loop=lane.loop)

    def __hash__(self) -> int:
        return self.order

    def set_result(self, result: T) -> None:
        self.lane.check_hand(self.set_result)
        super().set_result(result)

    def set_exception(self, exception: type[BaseException] | BaseException) -> None:
        self.lane.check_hand(self.set_exception)
        super().set_exception(exception)


class AgentTimer:
    """What agent code holds of a durable timer: a TimerHandle as far as asyncio's users look."""

    __slots__ = ("_cancelled", "_on_cancel", "_when")

    def __init__(self, when: float, on_cancel: Callable[[], None]) -> None:
        self._when = when
        self._on_cancel = on_cancel
        self._cancelled = False

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._on_cancel()

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        return self._when


class Lane:
    """See the module. `wake` is called when agent code became runnable and nobody is pumping; `foreign_wake` when something that
    is not this agent's code woke it."""

    def __init__(self, loop: "AgentLoop") -> None:
        self.loop = loop
        self.ready: deque[asyncio.Handle] = deque()
        self.tasks: set[AgentTask[Any]] = set()  # tasks of any result
        """Of agent code."""
        self.outside_tasks: set[asyncio.Task[Any]] = set()  # the same
        """Of bodies and of the engine."""
        self._delivering = False
        """True while the engine itself hands something to agent code; else only agent code may wake agent code."""
        self.thread: int | None = None
        """Of a sync agent, for messages about its calls."""
        self.wake: Callable[[], None] = _nobody
        self.foreign_wake: Callable[[Callback], None] = _ignore
        self.over = False
        """The attempt has ended: nothing of it runs any more, but bodies that cannot be stopped."""
        self._orders = itertools.count(1)
        self._timers: weakref.WeakSet[asyncio.TimerHandle] = weakref.WeakSet()
        self._context = of_no_run()
        self._context.run(LANE.set, self)
        self._acting = 0
        self._when_quiet: list[Callable[[], None]] = []
        self._counting = threading.Lock()

    # --- outside agent scope, whoever calls ---------------------------------------------------------------------

    def context(self) -> contextvars.Context:
        """A new one for something of this attempt outside agent scope."""
        return self._context.copy()

    def soon(self, callback: Callback, *args: Any) -> asyncio.Handle:  # see Callback
        """Run a callback in one of the loop's next turns."""
        return self.loop.plain_soon(callback, *args, context=self._context.copy())

    def at(self, delay_s: float, callback: Callback) -> asyncio.TimerHandle:
        """Run a callback after `delay_s` of real time."""
        when = self.loop.clock.monotonic_s() + max(0.0, delay_s)
        timer = self.loop.plain_at(when, callback, context=self._context.copy())
        self._timers.add(timer)
        return timer

    def task(
        self, coro: Coroutine[Any, Any, T], name: str, context: contextvars.Context | None = None
    ) -> asyncio.Task[T]:
        """A task of the engine or of a body."""
        context = self._context.copy() if context is None else context
        token = SCOPE.set(None)
        try:
            return self.loop.hide(asyncio.Task(coro, loop=self.loop, name=name, context=context), self.outside_tasks)
        finally:
            SCOPE.reset(token)

    def task_now(
        self, coro: Coroutine[Any, Any, T], name: str, context: contextvars.Context | None = None
    ) -> asyncio.Task[T]:
        """As `task`, but it runs at once, up to its first wait. Not from agent scope."""
        task = self.loop.start_now(coro, name, self._context.copy() if context is None else context)
        return task if task.done() else self.loop.note(task, self.outside_tasks)

    # --- agent code ---------------------------------------------------------------------------------------------

    def root(self, coro: Coroutine[Any, Any, T], scope: "Scope", name: str) -> AgentTask[T]:
        """The root task of the agent."""
        context = self._context.copy()
        context.run(SCOPE.set, scope)
        return self.deliver(self.agent_task, coro, name, context)

    def agent_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],  # as asyncio's
        name: str | None,
        context: contextvars.Context,
        made_at: tuple[str, int] | None = None,
    ) -> AgentTask[T]:
        """With the next number."""
        task: AgentTask[T] = AgentTask(
            coro, order=next(self._orders), lane=self, name=name, context=context, made_at=made_at
        )
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard, context=context)
        return task

    def future(self) -> AgentFuture[Any]:  # of any result
        """With the next number."""
        return AgentFuture(order=next(self._orders), lane=self)

    def restart_orders(self, first: int) -> None:
        """Number tasks and futures from `first` again: nothing that has a number is alive any more, but the root perhaps."""
        self._orders = itertools.count(first)

    def deliver(self, act: Callable[..., R], *args: Any) -> R:  # whatever `act` takes
        """Do something that wakes agent code, as its engine."""
        before, self._delivering = self._delivering, True
        try:
            return act(*args)
        finally:
            self._delivering = before

    def add(self, handle: asyncio.Handle, callback: Callback) -> None:
        """A turn of agent code is ready. `callback` is named if it was not this agent that made it so."""
        if self.over:
            return
        self.check_hand(callback)
        self.ready.append(handle)
        self.wake()

    def check_hand(self, what: Callback) -> None:
        """What agent code waits for is resolved by that very agent's code, or by its engine."""
        if self._delivering or self.over:
            return
        scope = SCOPE.get()
        if scope is None or scope.lane is not self:
            self.foreign_wake(what)

    # --- the end ------------------------------------------------------------------------------------------------

    def acts(self) -> Callable[[], None]:
        """Something that may have effects has begun where nobody can stop it: a thread. Gives what says that it has ended; both
        from any thread."""
        with self._counting:
            self._acting += 1
        return self._acted

    def _acted(self) -> None:
        with self._counting:
            self._acting -= 1
            told = [] if self._acting else self._when_quiet
            if told:
                self._when_quiet = []
        for tell in told:
            tell()

    def when_quiet(self, tell: Callable[[], None]) -> None:
        """Call this once nothing acts any more: now, or later and then in any thread."""
        with self._counting:
            if self._acting:
                self._when_quiet.append(tell)
                return
        tell()

    def stop(self) -> None:
        """No agent code runs any more, and no timer of the engine rings."""
        self.over = True
        self.wake = _nobody
        self.foreign_wake = _ignore
        self.ready.clear()
        for timer in list(self._timers):
            timer.cancel()


def _nobody() -> None:
    return None


def _ignore(_callback: Callback) -> None:
    return None
