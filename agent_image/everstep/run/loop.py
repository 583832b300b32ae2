"""The event loop agents run on: plain asyncio, made to repeat itself.

Callbacks in agent scope (their context holds a Scope) never enter asyncio's own queue. They wait in the agent's lane
(everstep.run.lane) and are run by the pump (everstep.run.delivery) until none is left; only then is the next outcome delivered.
So the order in which agent code runs depends on the order of outcomes alone, and "idle" is an empty queue. Everything else (step
bodies, the engine, sockets) is asyncio as usual. Several agents may share the loop, each in a lane of its own.

In agent scope `create_task` gives the task a scope and an order number (its hash, so that sets of tasks iterate alike in every
process), `call_at` and `call_later` make durable timers, `time` is run time, and whatever reaches outside raises OutsideStep.
"""

import asyncio
import concurrent.futures
import contextvars
import inspect
import selectors
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, NoReturn, TypeVar

from everstep.clock import Clock
from everstep.errors import BadCall
from everstep.run import debugging, guard, ordered
from everstep.run.lane import LANE, AgentTimer, Callback, of_no_run
from everstep.run.scope import SCOPE

T = TypeVar("T")


class AgentLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self, clock: Clock, selector: selectors.BaseSelector | None = None) -> None:
        self.clock = clock
        super().__init__(selector)
        self.plain_soon = super().call_soon
        """Without a look at who calls. For lanes."""
        self.plain_at = super().call_at
        self.outside_tasks: set[asyncio.Task[Any]] = set()  # tasks of any result
        """Those that belong to no lane."""
        self._catching: contextvars.Context | None = None
        """Of the task that `start_now` makes. Its first turn is known by it: a finalizer may make a task of its own meanwhile."""
        self._caught: asyncio.Handle | None = None
        self._threads: concurrent.futures.Executor | None = None
        """The default executor, once a body needed it."""
        self._outside = of_no_run()
        ordered.install()
        guard.install()
        debugging.watch()

    # --- for lanes ----------------------------------------------------------------------------------------------

    def start_now(self, coro: Coroutine[Any, Any, T], name: str, context: contextvars.Context) -> asyncio.Task[T]:
        """A hidden task that runs at once, up to its first wait: most often to its end, without a turn of the loop. (Python has
        eager tasks since 3.12; this does the same on 3.11, with the functions that asyncio documents for other implementations
        of tasks.)"""
        self._catching = context
        task = asyncio.Task(coro, loop=self, name=name, context=context)
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
        return task

    def hide(self, task: asyncio.Task[T], among: set[asyncio.Task[Any]]) -> asyncio.Task[T]:
        """Not in `asyncio.all_tasks()`: an agent that cancels "all tasks" means its own."""
        asyncio.tasks._unregister_task(task)
        return self.note(task, among)

    def note(self, task: asyncio.Task[T], among: set[asyncio.Task[Any]]) -> asyncio.Task[T]:
        """Keep it in a set until it is done."""
        among.add(task)
        task.add_done_callback(among.discard, context=self._outside.copy())
        return task

    # --- asyncio's own methods, in agent scope ------------------------------------------------------------------

    def time(self) -> float:
        scope = SCOPE.get()
        return self.clock.monotonic_s() if scope is None else scope.engine.run_time_s

    def call_soon(  # type: ignore[override]  # see Callback
        self, callback: Callback, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if context is None:
            context = contextvars.copy_context()
        if context is self._catching:
            self._catching = None
            self._caught = caught = asyncio.Handle(callback, args, self, context)
            return caught
        scope = context.get(SCOPE)
        if scope is None:
            return self.plain_soon(callback, *args, context=context)
        handle = asyncio.Handle(callback, args, self, context)
        scope.lane.add(handle, callback)
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
        scope = SCOPE.get()
        return super().create_future() if scope is None else scope.lane.future()

    def create_task(  # type: ignore[override]  # one implementation for 3.11 to 3.13
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],  # as asyncio's
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        scope = SCOPE.get()
        if scope is None:
            lane = LANE.get() if context is None else context.get(LANE)
            among = self.outside_tasks if lane is None else lane.outside_tasks
            return self.hide(super().create_task(coro, name=name, context=context), among)
        if _in_finalizer() and inspect.iscoroutine(coro):
            return scope.lane.task(coro, name or "of a finalizer")
        scope.engine.streams.check()
        # A context that was passed in is copied: two tasks that share one would share a scope, and so their keys.
        child = contextvars.copy_context() if context is None else context.copy()
        child.run(SCOPE.set, scope.next_task())
        child.run(LANE.set, scope.lane)
        return scope.lane.agent_task(coro, name, child, guard.maker())

    def _asyncgen_finalizer_hook(self, agen: AsyncGenerator[Any, Any]) -> None:  # any generator
        # Called whenever the garbage collector pleases, so its clean-up must not draw keys: it runs outside agent scope.
        self._asyncgens.discard(agen)  # type: ignore[attr-defined]  # BaseEventLoop's own set
        if not self.is_closed():
            super().call_soon_threadsafe(self._close_agen, agen, context=self._outside.copy())

    def _close_agen(self, agen: AsyncGenerator[Any, Any]) -> None:  # any generator
        self.create_task(_aclose(agen), name="close an async generator")

    def run_in_executor(  # type: ignore[override]  # the stubs' TypeVarTuple adds nothing here
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """In a step's body: what runs in the thread may have effects, even when nobody waits for it any more."""
        if SCOPE.get() is not None:
            _refuse("run_in_executor")
        lane = LANE.get()
        if lane is None:
            return super().run_in_executor(executor, func, *args)
        if executor is None:
            executor = self._threads = self._threads or self._make_executor()
        acted = lane.acts()
        try:
            working: concurrent.futures.Future[T] = executor.submit(func, *args)
        except BaseException:
            acted()
            raise
        working.add_done_callback(lambda _: acted())
        return asyncio.wrap_future(working, loop=self)

    def _make_executor(self) -> concurrent.futures.Executor:
        executor = concurrent.futures.ThreadPoolExecutor(thread_name_prefix="asyncio")
        asyncio.SelectorEventLoop.set_default_executor(self, executor)
        return executor


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


def _refusing(method: str) -> Callable[..., Any]:
    """A loop method that refuses in agent scope."""
    plain = getattr(asyncio.SelectorEventLoop, method)

    def refuse_or_call(self: AgentLoop, *args: Any, **kwargs: Any) -> Any:  # stands for any of the loop's methods
        if SCOPE.get() is not None:
            _refuse(method)
        return plain(self, *args, **kwargs)

    return refuse_or_call


def _refusing_all(method: str) -> Callable[..., Any]:
    """A loop method that refuses in everything a run started: the loop may be other runs' as well."""
    plain = getattr(asyncio.SelectorEventLoop, method)

    def refuse_or_call(self: AgentLoop, *args: Any, **kwargs: Any) -> Any:  # as above
        if SCOPE.get() is not None:
            _refuse(method)
        lane = LANE.get()
        if lane is not None and lane.loop is self:
            raise BadCall(f"a step's body cannot call loop.{method}: the engine and other runs share the loop")
        return plain(self, *args, **kwargs)

    return refuse_or_call


def _refuse(method: str) -> NoReturn:
    guard.refuse(f"loop.{method}")


for _method in (
    "create_connection", "create_server", "create_unix_connection", "create_unix_server",
    "create_datagram_endpoint", "connect_accepted_socket", "connect_read_pipe", "connect_write_pipe",
    "subprocess_exec", "subprocess_shell", "getaddrinfo", "getnameinfo", "sock_recv", "sock_recv_into",
    "sock_recvfrom", "sock_sendall", "sock_sendto", "sock_connect", "sock_accept", "sock_sendfile", "sendfile",
    "start_tls", "add_reader", "add_writer", "add_signal_handler", "run_forever", "run_until_complete",
):  # fmt: skip
    setattr(AgentLoop, _method, _refusing(_method))
for _method in (
    "stop",
    "close",
    "set_task_factory",
    "set_default_executor",
    "shutdown_asyncgens",
    "shutdown_default_executor",
):
    setattr(AgentLoop, _method, _refusing_all(_method))
