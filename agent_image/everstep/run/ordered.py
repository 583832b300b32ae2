"""Makes asyncio's own sets of awaitables iterate alike in every process.

`asyncio.as_completed` and `asyncio.wait` pass what they are given through `set(…)`. Tasks and futures of agent code hash to
their creation order, so sets of them are in order. Bare coroutines hash to their address: as_completed would start them in
another order in each process. So in agent scope the name `set` inside asyncio.tasks keeps the order of coroutines, and refuses
a set of them that was unordered before it arrived. `asyncio.all_tasks` is a set, too.
"""

import asyncio
from asyncio import tasks
from collections.abc import Collection, Iterable
from typing import Any, TypeVar

from everstep.errors import BadCall
from everstep.run.scope import SCOPE

T = TypeVar("T")


def install() -> None:
    """Once per process; without effect outside agent scope."""
    if "set" not in vars(tasks):
        tasks.all_tasks = asyncio.all_tasks = _all_tasks
        tasks.set = _set  # type: ignore[attr-defined]  # shadows the builtin in that one module
        gathering = tasks._GatheringFuture  # type: ignore[attr-defined]  # what asyncio.gather returns
        gathering.__hash__ = _gathering_hash


_plain_all_tasks = tasks.all_tasks


def _all_tasks(
    loop: asyncio.AbstractEventLoop | None = None,
) -> "set[asyncio.Task[Any]]":  # of any result, as asyncio's
    """In agent scope the agent's own tasks, put into the set in the order of their numbers, so that it iterates alike everywhere.
    To everybody else they do not show: a step's body that cancels all tasks means its own."""
    scope = SCOPE.get()
    if scope is None:
        return _plain_all_tasks(loop)
    return {task for task in sorted(scope.lane.tasks, key=hash) if not task.done()}


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
