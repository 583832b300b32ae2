"""Makes asyncio's own sets of awaitables iterate alike in every process.

`asyncio.as_completed` and `asyncio.wait` pass what they are given through `set(…)`. Tasks and futures of agent code hash to
their creation order, so sets of them are in order. Bare coroutines hash to their address: as_completed would start them in
another order in each process. So in agent scope the name `set` inside asyncio.tasks keeps the order of coroutines, and refuses
a set of them that was unordered before it arrived. `asyncio.all_tasks` is a set, too.
"""

import asyncio
import sys
from asyncio import tasks
from collections.abc import Collection, Iterable, Iterator
from typing import Any, TypeVar

from everstep.errors import BadCall
from everstep.run.scope import SCOPE

T = TypeVar("T")


def install() -> None:
    """Once per process; without effect outside agent scope."""
    if "set" not in vars(tasks):
        registry = "_scheduled_tasks" if sys.version_info >= (3, 12) else "_all_tasks"
        setattr(tasks, registry, _Registry(getattr(tasks, registry)))
        tasks.set = _set  # type: ignore[attr-defined]  # shadows the builtin in that one module
        gathering = tasks._GatheringFuture  # type: ignore[attr-defined]  # what asyncio.gather returns
        gathering.__hash__ = _gathering_hash


class _Registry:
    """asyncio's own set of tasks, as `asyncio.all_tasks` iterates it, by whatever name that was imported. An agent finds its own
    tasks, in the order of their numbers, so that the set made of them iterates alike everywhere. Nobody else finds them: a step's
    body that cancels all tasks means its own."""

    def __init__(self, plain: Any) -> None:  # a WeakSet of tasks
        self._plain = plain

    def __iter__(self) -> Iterator[Any]:  # tasks of any result
        scope = SCOPE.get()
        return iter(self._plain) if scope is None else iter(sorted(scope.lane.tasks, key=hash))

    def __getattr__(self, name: str) -> Any:  # add, discard: as the plain one's
        return getattr(self._plain, name)


def _set(items: Iterable[T] = ()) -> Collection[T]:
    if SCOPE.get() is None:
        return set(items)
    unordered = isinstance(items, set | frozenset)
    listed = list(items)
    if not any(asyncio.iscoroutine(item) for item in listed):
        return set(listed)
    if unordered and len(listed) > 1:
        for item in listed:
            if asyncio.iscoroutine(item):
                item.close()
        raise BadCall(
            "a set of coroutines has another order in each process, so a replay could not repeat it. "
            "Pass a list, or make tasks of them first: asyncio.create_task(…)"
        )
    return dict.fromkeys(listed).keys()


def _gathering_hash(self: "asyncio.Future[object]") -> int:
    number: int | None = self.__dict__.get("everstep_order")
    if number is None:
        if SCOPE.get() is None:
            return object.__hash__(self)
        number = self.__dict__["everstep_order"] = hash(self.get_loop().create_future())
    return number
