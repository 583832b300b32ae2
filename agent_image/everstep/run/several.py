"""Several steps at once: `step.map` over items, and `everstep.first` of several awaitables.

Items begin in source order whatever finishes first, so item i of the n-th map of a scope has the key `<scope>m<n>/<i>`, on every
replay and under any concurrency. Which of several came first is what the journal says.
"""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast, overload

from everstep.errors import BadCall
from everstep.journal.records import Json
from everstep.run.calls import StepCall
from everstep.run.durable import scope_of
from everstep.run.scope import Scope

if TYPE_CHECKING:
    from everstep.run.engine import Engine
    from everstep.run.steps import Step

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
CONCURRENCY = 8
"""Items in flight unless told otherwise: enough to hide a model's latency, few enough for its rate limit."""

Prepared = tuple[dict[str, Json], str]
"""The arguments of one item as the journal keeps them, and their digest."""


def prepare(
    step: "Step[..., Any]", items: Iterable[object], concurrency: int, common: Mapping[str, object] | None
) -> list[Prepared]:
    """All items, checked before the first of them begins. Raises BadCall, NotJSON, ValueTooLarge."""
    if concurrency < 1:
        raise BadCall(f"{step.name}.map: concurrency must be at least 1, not {concurrency}")
    if isinstance(items, set | frozenset):
        raise BadCall(
            f"{step.name}.map: a set has another order in each process, so a replay could not repeat it. Pass sorted(…) or a list"
        )
    return [step.signature.encode((item,), common or {}) for item in items]


async def map_async(
    step: "Step[..., Any]", scope: Scope, items: Sequence[Prepared], concurrency: int, return_exceptions: bool
) -> list[Any]:  # the step's own results
    """In an async agent: the results in the order of the items. The first failure ends it, and what is in flight is cancelled."""
    engine, inner = scope.engine, scope.next_map()
    results: list[Any] = [None] * len(items)
    flight: dict[int, StepCall] = {}
    begun = 0
    try:
        while True:
            while begun < len(items) and len(flight) < concurrency:
                flight[begun] = _begin(engine, inner, step, items[begun])
                begun += 1
            if not flight:
                return results
            await asyncio.wait([call.waiter for call in flight.values()], return_when=asyncio.FIRST_COMPLETED)
            for index in [i for i, call in flight.items() if call.waiter.done()]:
                ended: asyncio.Future[Any] = flight.pop(index).waiter
                error = ended.exception()
                if error is not None and not return_exceptions:
                    raise error
                results[index] = ended.result() if error is None else error
    except BaseException:
        for call in flight.values():
            engine.forsake(call)
        raise


def _begin(engine: "Engine", inner: Scope, step: "Step[..., Any]", item: Prepared) -> StepCall:
    data, digest = item
    waiter: asyncio.Future[Any] = asyncio.Future(loop=engine.loop)
    call = StepCall(inner.next_step(), step, data, digest, contextvars.copy_context(), waiter)
    engine.begin(call)
    return call


class Batch:
    """The items of a map in a sync agent. Lives in the loop's thread while the agent's own waits for `answer`."""

    def __init__(
        self,
        scope: Scope,
        step: "Step[..., Any]",  # of any signature
        items: Sequence[Prepared],
        concurrency: int,
        return_exceptions: bool,
        answer: Callable[[Callable[[], Any]], None],  # gives the step's own results
    ) -> None:
        self._engine = scope.engine
        self._scope = scope.next_map()
        self._step = step
        self._items = items
        self._concurrency = concurrency
        self._return_exceptions = return_exceptions
        self._answer = answer
        self._context = contextvars.copy_context()
        self._results: list[Any] = [None] * len(items)
        self._flight: dict[int, StepCall] = {}
        self._begun = 0

    def go_on(self) -> None:
        """Begin what may begin, or answer."""
        while self._begun < len(self._items) and len(self._flight) < self._concurrency:
            index, (data, digest) = self._begun, self._items[self._begun]
            self._begun += 1
            waiter = _ItemWaiter(self, index)
            call = StepCall(self._scope.next_step(), self._step, data, digest, self._context, waiter, own_thread=True)
            self._flight[index] = call
            self._engine.begin(call)
        if not self._flight:
            self._answer(lambda: self._results)

    def told(self, index: int, value: Any, error: BaseException | None) -> None:  # the step's own result
        """The outcome of one item."""
        del self._flight[index]
        if error is not None and not self._return_exceptions:
            self._end(error)
            return
        self._results[index] = value if error is None else error
        try:
            self.go_on()
        except Exception as e:
            self._end(e)

    def _end(self, error: BaseException) -> None:
        self.forsake()
        self._answer(lambda: _throw(error))

    def forsake(self) -> None:
        """Nobody waits for what is in flight."""
        flight, self._flight = self._flight, {}
        for call in flight.values():
            self._engine.forsake(call)


class _ItemWaiter:
    def __init__(self, batch: Batch, index: int) -> None:
        self._batch = batch
        self._index = index
        self._done = False

    def set_result(self, result: object) -> None:
        self._done = True
        self._batch.told(self._index, result, None)

    def set_exception(self, error: BaseException) -> None:
        self._done = True
        self._batch.told(self._index, None, error)

    def done(self) -> bool:
        return self._done


def _throw(error: BaseException) -> Any:  # never returns
    raise error


# --- first ----------------------------------------------------------------------------------------------------------


class Winner(NamedTuple, Generic[T]):
    """What came first: its place among the arguments of `first`, and its value."""

    which: int
    value: T


@overload
def first(a: Awaitable[A], /, *, ignore_failures: bool = False) -> "CoroutineType[object, None, Winner[A]]": ...
@overload
def first(
    a: Awaitable[A], b: Awaitable[B], /, *, ignore_failures: bool = False
) -> "CoroutineType[object, None, Winner[A | B]]": ...
@overload
def first(
    a: Awaitable[A], b: Awaitable[B], c: Awaitable[C], /, *, ignore_failures: bool = False
) -> "CoroutineType[object, None, Winner[A | B | C]]": ...
@overload
def first(*awaitables: Awaitable[T], ignore_failures: bool = False) -> "CoroutineType[object, None, Winner[T]]": ...
def first(*awaitables: Awaitable[Any], ignore_failures: bool = False) -> Any:  # as the overloads
    """The first of several step calls, sleeps, tasks or coroutines to end: `which, value = await everstep.first(a, b)`. The
    others are cancelled and awaited before it returns. Which one it was is in the journal, so a replay sees the same winner,
    however the latencies have changed.

    A failure counts as an end and is raised; with `ignore_failures` it is passed over as long as another one is left, and if all
    fail the first failure is raised. For async agents; a sync one makes one call at a time (step.map makes several)."""
    try:
        if not awaitables:
            raise BadCall("everstep.first() needs something to wait for")
        if scope_of("first").engine.sync_agent:
            raise BadCall(
                "everstep.first() is for async agents: a sync one makes one call at a time. step.map makes several"
            )
    except Exception:
        for a in awaitables:
            if asyncio.iscoroutine(a):
                a.close()  # never awaited, and on purpose
        raise
    return _first(awaitables, ignore_failures)


async def _first(awaitables: Sequence[Awaitable[Any]], ignore_failures: bool) -> Winner[Any]:  # of any values
    tasks = [asyncio.ensure_future(a) for a in awaitables]
    waiting = dict(enumerate(tasks))
    failure: BaseException | None = None
    try:
        while waiting:
            await asyncio.wait(list(waiting.values()), return_when=asyncio.FIRST_COMPLETED)
            for index in [i for i, task in waiting.items() if task.done()]:
                task = waiting.pop(index)
                error = asyncio.CancelledError() if task.cancelled() else task.exception()
                if error is None:
                    return Winner(index, task.result())
                failure = failure or error
                if not ignore_failures:
                    raise failure
        raise cast(BaseException, failure)
    finally:
        left = [task for task in tasks if not task.done()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
        for task in tasks:
            if task.done() and not task.cancelled():
                task.exception()  # seen: a loser's failure is nobody's business


__all__ = ["CONCURRENCY", "Batch", "Winner", "first", "map_async", "prepare"]
