"""What an attempt has besides its journal: resources that are opened once per attempt, and values drawn anew in each.

A client, a session or a socket cannot be journaled. It is opened outside agent scope, while agent code stands still: nothing that
agent code could see happens meanwhile, so whether opening took a millisecond or a minute leaves no trace. What cannot be opened
ends the attempt, never the run, for an exception here would be one that the journal does not know.
"""

import asyncio
import contextlib
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar, cast, overload

from everstep.errors import BadCall, Diverged, Frozen, ResourceFailed
from everstep.run.scope import APART, SCOPE, Scope, outside

if TYPE_CHECKING:
    from everstep.run.engine import Engine

P = ParamSpec("P")
T = TypeVar("T")
OPEN_TIMEOUT_S = 60.0
CLOSE_TIMEOUT_S = 2.0
"""Closing is a courtesy at the end of an attempt: a process that is killed closes nothing either."""


class Apart:
    """Of one attempt."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._open: dict[asyncio.Task[None], asyncio.Event] = {}
        self.drawn: list[str] = []
        """Names of what `per_attempt` ran."""

    def explain(self, why: BaseException) -> BaseException:
        """A divergence after a value that is drawn anew in each attempt: say where to look first."""
        if not isinstance(why, Diverged) or not self.drawn:
            return why
        names = ", ".join(dict.fromkeys(self.drawn))
        return Diverged(
            f"{why}\neverstep.per_attempt gave values of this attempt alone ({names}). Such a value must not reach the arguments "
            f"of a step, a timer or a branch that calls one: put it into a step, whose result is journaled."
        )

    def holds(self, what: "Resource[Any]") -> bool:  # of any type
        """Whether it is open."""
        return what.task is not None and what.task in self._open

    async def open(self, what: "Resource[T]", scope: Scope) -> T:
        """Open it in a task of its own (some close only in the task that opened them), agent code standing still."""
        engine = self._engine
        opened: asyncio.Future[T] = engine.loop.create_future()
        release = asyncio.Event()
        context = _context()
        task = engine.lane.task(self._keep(what, opened, release), f"resource {what.name}", context)
        self._open[task] = release
        task.add_done_callback(lambda t: self._open.pop(t, None), context=contextvars.Context())
        what.task = task
        engine.delivery.hold()
        return await opened

    async def _keep(self, what: "Resource[T]", opened: "asyncio.Future[T]", release: asyncio.Event) -> None:
        stack = contextlib.AsyncExitStack()
        try:
            async with asyncio.timeout(what.timeout_s):
                value = await _enter(stack, what.factory)
        except Exception as e:
            with contextlib.suppress(Exception):
                await stack.aclose()
            self._engine.stop(_failed(f"resource {what.name} could not be opened", e))
            return
        self._hand(opened, value)
        try:
            await release.wait()
        finally:
            try:
                await stack.aclose()
            except Exception as e:  # its work is done; the run goes on
                self._engine.log.warning(
                    "resource %s was not closed in good order: %s: %s", what.name, type(e).__name__, e
                )

    async def shut(self, what: "Resource[Any]") -> None:  # of any type
        """Close it, agent code standing still."""
        task = what.task
        release = self._open.get(task) if task is not None else None
        if task is None or release is None:
            return
        closed: asyncio.Future[None] = self._engine.loop.create_future()
        self._engine.delivery.hold()
        self._engine.lane.task(self._await_end(task, release, closed), f"close {what.name}")
        await closed

    async def _await_end(
        self, task: "asyncio.Task[None]", release: asyncio.Event, closed: "asyncio.Future[None]"
    ) -> None:
        await self._end([task], [release])
        self._hand(closed, None)

    async def run(self, work: Coroutine[Any, Any, T], name: str) -> T:  # any coroutine
        """Await something outside agent scope, agent code standing still."""
        engine = self._engine
        self.drawn.append(name)
        done: asyncio.Future[T] = engine.loop.create_future()

        async def main() -> None:
            try:
                value = await work
            except Exception as e:
                engine.stop(_failed(f"per_attempt({name}) failed", e))
                return
            self._hand(done, value)

        engine.delivery.hold()
        engine.lane.task(main(), f"per_attempt {name}", _context())
        return await done

    def run_now(self, work: Callable[[], T], name: str) -> T:
        """The same for a plain function."""
        self.drawn.append(name)
        try:
            return _context().run(work)
        except Exception as e:
            self.give_up(_failed(f"per_attempt({name}) failed", e))

    def give_up(self, why: ResourceFailed) -> NoReturn:
        """From agent code: end the attempt here."""
        if self._engine.thread is not None:
            self._engine.thread.give_up(why)
        self._engine.stop(why)
        raise Frozen(str(why)) from why  # no `except Exception` sees it, and no further callback of agent code runs

    def _hand(self, waiter: "asyncio.Future[Any]", value: object) -> None:  # of any type
        if not waiter.done():
            self._engine.lane.deliver(waiter.set_result, value)
        self._engine.delivery.release()

    async def close(self) -> None:
        """At the end of the attempt, bounded."""
        if self._open:
            await self._end(list(self._open), list(self._open.values()))

    async def _end(self, tasks: "list[asyncio.Task[None]]", releases: list[asyncio.Event]) -> None:
        for release in releases:
            release.set()
        _, left = await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT_S)
        for task in left:
            task.cancel()


class Resource(Generic[T]):
    """What `everstep.resource` gives: a context manager, of either kind."""

    def __init__(self, factory: Callable[[], object], name: str, timeout_s: float | None) -> None:
        self.factory = factory
        self.name = name
        self.timeout_s = timeout_s
        self.task: asyncio.Task[None] | None = None
        self._stack = contextlib.AsyncExitStack()
        self._plain = contextlib.ExitStack()
        self._through: Callable[[Any], Any] = _as_it_is

    def through(self, change: Callable[[Any], Any]) -> "Resource[T]":  # of any type
        """The same resource; what it gives is passed through `change`."""
        made: Resource[T] = Resource(self.factory, self.name, self.timeout_s)
        made._through = change
        return made

    async def __aenter__(self) -> T:
        scope = SCOPE.get()
        if scope is None:  # a unit test, or a step's body
            return cast(T, self._through(await _enter(self._stack, self.factory)))
        if scope.engine.apart.holds(self):
            raise BadCall(f"resource {self.name} is entered twice; make one for each `async with`")
        return cast(T, self._through(await scope.engine.apart.open(self, scope)))

    async def __aexit__(self, *_: object) -> None:
        scope = SCOPE.get()
        if scope is None:
            await self._stack.aclose()
        else:
            await scope.engine.apart.shut(self)

    def __enter__(self) -> T:
        scope = SCOPE.get()
        if scope is not None and not scope.engine.sync_agent:
            raise BadCall(f"resource {self.name} belongs to an async agent: write `async with everstep.resource(…)`")
        if scope is None:
            return cast(T, self._through(_enter_plain(self._plain, self.factory)))
        try:
            opened = _context().run(_enter_plain, self._plain, self.factory)
        except Exception as e:
            scope.engine.apart.give_up(_failed(f"resource {self.name} could not be opened", e))
        return cast(T, self._through(opened))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _context().run(self._plain.close)


@overload
def resource(
    factory: Callable[[], AbstractAsyncContextManager[T]],
    *,
    name: str | None = None,
    timeout: float | None = OPEN_TIMEOUT_S,
) -> Resource[T]:
    """An async context manager."""


@overload
def resource(
    factory: Callable[[], AbstractContextManager[T]], *, name: str | None = None, timeout: float | None = OPEN_TIMEOUT_S
) -> Resource[T]:
    """A context manager."""


@overload
def resource(
    factory: Callable[[], Awaitable[T]], *, name: str | None = None, timeout: float | None = OPEN_TIMEOUT_S
) -> Resource[T]:
    """An awaitable."""


@overload
def resource(
    factory: Callable[[], T], *, name: str | None = None, timeout: float | None = OPEN_TIMEOUT_S
) -> Resource[T]:
    """The object itself."""


def resource(
    factory: Callable[[], Any],  # of what the overloads say
    *,
    name: str | None = None,
    timeout: float | None = OPEN_TIMEOUT_S,
) -> Resource[Any]:
    """Something steps need that cannot be journaled, opened once per attempt: a session, a pool, a client.

        async with everstep.resource(open_session) as session:      # `with` in a sync agent

    factory   called without arguments, outside agent scope. Gives a context manager (entered), an awaitable (awaited), or the
              object itself (closed by its aclose() or close(), if it has one)
    name      in messages; default the factory's name
    timeout   seconds for opening; None = no bound

    It is opened again in each attempt, a replay included, and closed at the end of the block or of the attempt. Agent code
    stands still while it opens. If that fails, the attempt ends with ResourceFailed and the next one tries again.
    """
    return Resource(factory, name or _name(factory), timeout)


@overload
def per_attempt(
    fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
) -> Coroutine[Any, Any, T]:
    """An async function."""


@overload
def per_attempt(fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """A plain function."""


def per_attempt(fn: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Any:  # of what the overloads say
    """Call `fn` outside agent scope, in every attempt anew; its result is not journaled.

    For what belongs to the process: a client, a path in the pod, a line in a log. `await` it if `fn` is async. The result must
    not reach the journal: if a step's arguments or the way of the agent depend on it, the next attempt is stopped as Diverged,
    and the message names this call. If `fn` raises, the attempt ends with ResourceFailed and the next one tries again.
    """
    scope = SCOPE.get()
    if scope is None:
        return fn(*args, **kwargs)
    apart, name = scope.engine.apart, _name(fn)
    if not inspect.iscoroutinefunction(fn):
        return apart.run_now(lambda: fn(*args, **kwargs), name)
    if scope.engine.sync_agent:
        raise BadCall(f"per_attempt({name}): an async function cannot be awaited in a sync agent")
    return apart.run(_context().run(fn, *args, **kwargs), name)


def _as_it_is(opened: object) -> object:
    return opened


async def _enter(stack: contextlib.AsyncExitStack, factory: Callable[[], object]) -> object:
    made = factory()
    if inspect.isawaitable(made) and not isinstance(made, AbstractAsyncContextManager):
        made = await made
    if isinstance(made, AbstractAsyncContextManager):
        return await stack.enter_async_context(made)
    if (aclose := getattr(made, "aclose", None)) is not None:
        stack.push_async_callback(aclose)
        return made
    return _enter_plain(stack, lambda: made)


def _enter_plain(stack: contextlib.AsyncExitStack | contextlib.ExitStack, factory: Callable[[], object]) -> object:
    made = factory()
    if isinstance(made, AbstractContextManager):
        return stack.enter_context(made)
    if isinstance(made, AbstractAsyncContextManager) or inspect.isawaitable(made):
        raise BadCall(f"{_name(factory)} gives something async: it needs an async agent and `async with`")
    if (close := getattr(made, "close", None)) is not None:
        stack.callback(close)
    return made


def _context() -> contextvars.Context:
    context = outside(contextvars.copy_context())
    context.run(APART.set, True)
    return context


def _failed(what: str, error: Exception) -> ResourceFailed:
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    failed = ResourceFailed(
        f"{what}: {said}. The attempt ends here; nothing was recorded, and the next one tries again"
    )
    failed.__cause__ = error
    return failed


def _name(fn: object) -> str:
    return str(getattr(fn, "__qualname__", None) or type(fn).__name__).rpartition("<locals>.")[2]
