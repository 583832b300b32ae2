"""The event loop agents run on: plain asyncio, made to repeat itself.

Callbacks in agent scope (their context holds a Scope) never enter asyncio's own queue. They wait in `agent_ready` and are run by
the pump (everstep.run.delivery) until none is left; only then is the next outcome delivered. So the order in which agent code
runs depends on the order of outcomes alone, and "idle" is an empty queue. Everything else (step bodies, the engine, sockets)
is asyncio as usual.

In agent scope `create_task` gives the task a scope and an order number (its hash, so that sets of tasks iterate alike in every
process), `call_at` and `call_later` make durable timers, `time` is run time, and whatever reaches outside raises OutsideStep.
"""

import asyncio
import contextvars
import inspect
import itertools
import selectors
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, NoReturn, TypeVar

from everstep.clock import Clock
from everstep.errors import BadCall
from everstep.run import debugging, guard, ordered
from everstep.run.scope import SCOPE, Scope

T = TypeVar("T")
Callback = Callable[
    ..., object
]  # asyncio's own callbacks take what they are given; the stubs' TypeVarTuple adds nothing here


class AgentTask(asyncio.Task[T]):
    """A task of agent code. Its hash is its number in creation order."""

    def __init__(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],  # what asyncio.Task takes
        *,
        order: int,
        loop: asyncio.AbstractEventLoop,
        name: str | None,
        context: contextvars.Context,
        made_at: tuple[str, int] | None = None,
    ) -> None:
        self.order = order
        self.made_at = made_at
        """File and line of agent code, for messages about a task that has no line of its own."""
        super().__init__(coro, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self.order


class AgentFuture(asyncio.Future[T]):
    """A future made by agent code (locks, queues, shields); hash as for AgentTask."""

    def __init__(self, *, order: int, loop: asyncio.AbstractEventLoop) -> None:
        self.order = order
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.order

    def set_result(self, result: T) -> None:
        self._check_hand()
        super().set_result(result)

    def set_exception(self, exception: type[BaseException] | BaseException) -> None:
        self._check_hand()
        super().set_exception(exception)

    def _check_hand(self) -> None:
        """What agent code waits for is resolved by agent code."""
        loop = self.get_loop()
        if SCOPE.get() is None and isinstance(loop, AgentLoop) and not loop.delivering:
            loop.foreign_wake(self.set_result)


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


class AgentLoop(asyncio.SelectorEventLoop):
    """See the module. `wake` is called when agent code became runnable and nobody is pumping."""

    def __init__(self, clock: Clock, selector: selectors.BaseSelector | None = None) -> None:
        self._clock_ = clock
        super().__init__(selector)
        self.agent_ready: deque[asyncio.Handle] = deque()
        self.agent_tasks: set[AgentTask[Any]] = set()  # tasks of any result
        self.outside_tasks: set[asyncio.Task[Any]] = set()  # the same
        self.delivering = False
        """True while the engine itself hands something to agent code; else only agent code may wake agent code."""
        self.agent_thread: int | None = None
        """Thread of a sync agent, for messages about its calls."""
        self.wake: Callable[[], None] = _nobody
        self.foreign_wake: Callable[[Callback], None] = _ignore
        self._orders = itertools.count(1)
        self._catching = False
        self._caught: asyncio.Handle | None = None
        """The first turn of a task that `engine_task_now` makes."""
        self._engine_context = contextvars.copy_context()
        self._engine_context.run(SCOPE.set, None)
        ordered.install()
        guard.install()
        debugging.watch()

    # --- for the engine -----------------------------------------------------------------------------------------

    def engine_soon(self, callback: Callback, *args: Any) -> asyncio.Handle:  # see Callback
        """Run a callback outside agent scope, whoever calls this."""
        return super().call_soon(callback, *args, context=self._engine_context.copy())

    def engine_task(
        self, coro: Coroutine[Any, Any, T], name: str, context: contextvars.Context | None = None
    ) -> asyncio.Task[T]:
        """A task outside agent scope, whoever calls this."""
        context = self._engine_context.copy() if context is None else context
        token = SCOPE.set(None)
        try:
            return self._hidden(asyncio.Task(coro, loop=self, name=name, context=context))
        finally:
            SCOPE.reset(token)

    def engine_task_now(
        self, coro: Coroutine[Any, Any, T], name: str, context: contextvars.Context | None = None
    ) -> asyncio.Task[T]:
        """As `engine_task`, but the task runs at once, up to its first wait: most often to its end, without a turn of the loop.
        Not from agent scope. (Python has eager tasks since 3.12; this does the same on 3.11, with the functions that asyncio
        documents for other implementations of tasks.)"""
        context = self._engine_context.copy() if context is None else context
        self._catching = True
        try:
            task = asyncio.Task(coro, loop=self, name=name, context=context)
        finally:
            self._catching = False
        asyncio.tasks._unregister_task(task)
        first, self._caught = self._caught, None
        assert first is not None
        outer = asyncio.current_task(self)
        if outer is not None:
            asyncio.tasks._leave_task(self, outer)
        try:
            first._run()
        finally:
            if outer is not None:
                asyncio.tasks._enter_task(self, outer)
        if not task.done():
            self.outside_tasks.add(task)
            task.add_done_callback(self.outside_tasks.discard, context=self._engine_context.copy())
        return task

    def _hidden(self, task: asyncio.Task[T]) -> asyncio.Task[T]:
        """Not in `asyncio.all_tasks()`: an agent that cancels "all tasks" means its own."""
        asyncio.tasks._unregister_task(task)
        self.outside_tasks.add(task)
        task.add_done_callback(self.outside_tasks.discard, context=self._engine_context.copy())
        return task

    def engine_at(self, delay_s: float, callback: Callback) -> asyncio.TimerHandle:
        """Run a callback outside agent scope after `delay_s` of real time."""
        when = self._clock_.monotonic_s() + max(0.0, delay_s)
        return super().call_at(when, callback, context=self._engine_context.copy())

    def agent_task(self, coro: Coroutine[Any, Any, T], scope: Scope, name: str) -> AgentTask[T]:
        """The root task of an agent."""
        context = self._engine_context.copy()
        context.run(SCOPE.set, scope)
        self.delivering = True
        try:
            return self._make_task(coro, name, context)
        finally:
            self.delivering = False

    def restart_orders(self, first: int) -> None:
        """Number tasks and futures from `first` again: nothing that has a number is alive any more, but the root perhaps."""
        self._orders = itertools.count(first)

    # --- asyncio's own methods, in agent scope ------------------------------------------------------------------

    def time(self) -> float:
        scope = SCOPE.get()
        return self._clock_.monotonic_s() if scope is None else scope.engine.run_time_s

    def call_soon(  # type: ignore[override]  # see Callback
        self, callback: Callback, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if context is None:
            context = contextvars.copy_context()
        if self._catching:
            self._caught = asyncio.Handle(callback, args, self, context)
            return self._caught
        if context.get(SCOPE) is None:
            return super().call_soon(callback, *args, context=context)
        if SCOPE.get() is None and not self.delivering:
            self.foreign_wake(callback)
        handle = asyncio.Handle(callback, args, self, context)
        self.agent_ready.append(handle)
        self.wake()
        return handle

    def call_soon_threadsafe(  # type: ignore[override]  # see Callback
        self, callback: Callback, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if context is None:
            context = contextvars.copy_context()
        if context.get(SCOPE) is None:
            return super().call_soon_threadsafe(callback, *args, context=context)
        return self.call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]  # asyncio's users never look further than AgentTimer goes
        self, when: float, callback: Callback, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle | AgentTimer:
        scope = SCOPE.get()
        if scope is None:
            return super().call_at(when, callback, *args, context=context)
        handle = asyncio.Handle(callback, args, self, context or contextvars.copy_context())
        return scope.engine.start_timer(scope, when, handle)

    def call_later(  # type: ignore[override]  # as call_at
        self, delay: float, callback: Callback, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle | AgentTimer:
        if delay is None:
            raise TypeError("delay must not be None")
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:  # as asyncio's
        if SCOPE.get() is None:
            return super().create_future()
        return AgentFuture(order=next(self._orders), loop=self)

    def create_task(  # type: ignore[override]  # one implementation for 3.11 to 3.13
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],  # as asyncio's
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        scope = SCOPE.get()
        if scope is None:
            return self._hidden(super().create_task(coro, name=name, context=context))
        if _in_finalizer() and inspect.iscoroutine(coro):
            return self.engine_task(coro, name or "of a finalizer")
        scope.engine.streams.check()
        # A context that was passed in is copied: two tasks that share one would share a scope, and so their keys.
        child = contextvars.copy_context() if context is None else context.copy()
        child.run(SCOPE.set, scope.next_task())
        return self._make_task(coro, name, child, guard.maker())

    def _make_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],  # as asyncio's
        name: str | None,
        context: contextvars.Context,
        made_at: tuple[str, int] | None = None,
    ) -> AgentTask[T]:
        task: AgentTask[T] = AgentTask(
            coro, order=next(self._orders), loop=self, name=name, context=context, made_at=made_at
        )
        self.agent_tasks.add(task)
        task.add_done_callback(self.agent_tasks.discard, context=context)
        return task

    def _asyncgen_finalizer_hook(self, agen: AsyncGenerator[Any, Any]) -> None:  # any generator
        # Called whenever the garbage collector pleases, so its clean-up must not draw keys: it runs outside agent scope.
        self._asyncgens.discard(agen)  # type: ignore[attr-defined]  # BaseEventLoop's own set
        if not self.is_closed():
            super().call_soon_threadsafe(self._close_agen, agen, context=self._engine_context.copy())

    def _close_agen(self, agen: AsyncGenerator[Any, Any]) -> None:  # any generator
        self.engine_task(_aclose(agen), "close an async generator")

    def set_task_factory(self, factory: Any) -> None:  # as asyncio's
        if SCOPE.get() is not None:
            raise BadCall("an agent cannot set a task factory: the order of its tasks is part of its journal")
        super().set_task_factory(factory)


def _in_finalizer() -> bool:
    """Whether `__del__` makes this task, as those of HTTP clients do to close themselves. It runs whenever the garbage collector
    pleases, in the middle of agent code too, so its task must have no key and no turn there."""
    frame = sys._getframe(2)
    for _ in range(3):  # loop.create_task, asyncio.create_task, and a helper in between
        if frame.f_code.co_name == "__del__":
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


async def _aclose(agen: AsyncGenerator[Any, Any]) -> None:  # any generator
    await agen.aclose()


def _nobody() -> None:
    return None


def _ignore(_callback: Callback) -> None:
    return None


def _refusing(method: str) -> Callable[..., Any]:
    """A loop method that refuses in agent scope."""
    plain = getattr(asyncio.SelectorEventLoop, method)

    def refuse_or_call(self: AgentLoop, *args: Any, **kwargs: Any) -> Any:  # stands for any of the loop's methods
        if SCOPE.get() is not None:
            _refuse(method)
        return plain(self, *args, **kwargs)

    return refuse_or_call


def _refuse(method: str) -> NoReturn:
    guard.refuse(f"loop.{method}")


for _method in (
    "run_in_executor", "create_connection", "create_server", "create_unix_connection", "create_unix_server",
    "create_datagram_endpoint", "connect_accepted_socket", "connect_read_pipe", "connect_write_pipe",
    "subprocess_exec", "subprocess_shell", "getaddrinfo", "getnameinfo", "sock_recv", "sock_recv_into",
    "sock_recvfrom", "sock_sendall", "sock_sendto", "sock_connect", "sock_accept", "sock_sendfile", "sendfile",
    "start_tls", "add_reader", "add_writer", "add_signal_handler", "run_forever", "run_until_complete", "stop",
    "close",
):  # fmt: skip
    setattr(AgentLoop, _method, _refusing(_method))
