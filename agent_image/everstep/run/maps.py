"""`step.map` and its kin: what a caller sees of running one step for each of several items.

`concurrency`        items in flight at most, 8 unless told otherwise; each begins as soon as an earlier one has ended
`return_exceptions`  False: the first failure is raised, what is in flight is cancelled, what has not begun never begins.
                     True: a failed item's StepFailed stands at its place in the results, and all items run
`common`             arguments by name that every call gets besides its item

Items are read and checked before the first of them begins; results come in the order of the items. The item is the step's first
argument, so that for several a tuple or model is passed.
"""

from collections.abc import Iterable, Mapping
from types import CoroutineType
from typing import Any, Generic, Literal, TypeVar, overload

from everstep.errors import StepFailed
from everstep.run.several import CONCURRENCY, Prepared, map_async, prepare
from everstep.run.steps import Step

T_contra = TypeVar("T_contra", contravariant=True)
R = TypeVar("R")


class MapAsync(Generic[T_contra, R]):
    """In an async agent."""

    def __init__(self, step: Step[..., Any]) -> None:  # of any signature; T_contra is its first parameter, R its result
        self._step = step

    @overload
    def __call__(
        self,
        items: Iterable[T_contra],
        /,
        *,
        concurrency: int = CONCURRENCY,
        return_exceptions: Literal[False] = False,
        common: Mapping[str, object] | None = None,
    ) -> "CoroutineType[object, None, list[R]]": ...
    @overload
    def __call__(
        self,
        items: Iterable[T_contra],
        /,
        *,
        concurrency: int = CONCURRENCY,
        return_exceptions: Literal[True],
        common: Mapping[str, object] | None = None,
    ) -> "CoroutineType[object, None, list[R | StepFailed]]": ...
    def __call__(
        self,
        items: Iterable[Any],
        /,
        *,
        concurrency: int = CONCURRENCY,
        return_exceptions: bool = False,
        common: Mapping[str, object] | None = None,
    ) -> Any:  # as the overloads
        self._step.scope(sync_agent=False, as_map=True)
        return _map(self._step, prepare(self._step, items, concurrency, common), concurrency, return_exceptions)


async def _map(
    step: Step[..., Any], items: list[Prepared], concurrency: int, return_exceptions: bool
) -> list[Any]:  # the step's results
    # The scope is that of the task which runs this, as for a single call.
    scope = step.scope(sync_agent=False, as_map=True)
    return await map_async(step, scope, items, concurrency, return_exceptions)


class MapSync(Generic[T_contra, R]):
    """In a sync agent; blocks until all items have ended."""

    def __init__(self, step: Step[..., Any]) -> None:  # as for MapAsync
        self._step = step

    @overload
    def __call__(
        self,
        items: Iterable[T_contra],
        /,
        *,
        concurrency: int = CONCURRENCY,
        return_exceptions: Literal[False] = False,
        common: Mapping[str, object] | None = None,
    ) -> list[R]: ...
    @overload
    def __call__(
        self,
        items: Iterable[T_contra],
        /,
        *,
        concurrency: int = CONCURRENCY,
        return_exceptions: Literal[True],
        common: Mapping[str, object] | None = None,
    ) -> list[R | StepFailed]: ...
    def __call__(
        self,
        items: Iterable[Any],
        /,
        *,
        concurrency: int = CONCURRENCY,
        return_exceptions: bool = False,
        common: Mapping[str, object] | None = None,
    ) -> Any:  # as the overloads
        scope = self._step.scope(sync_agent=True, as_map=True)
        prepared = prepare(self._step, items, concurrency, common)
        assert scope.engine.thread is not None
        return scope.engine.thread.map_step(scope, self._step, prepared, concurrency, return_exceptions)
