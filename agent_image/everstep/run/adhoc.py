"""`everstep.run_step`: a step on the spot, of any callable."""

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from types import CoroutineType
from typing import Any, TypeVar, cast, get_args, overload

from everstep.budget import Reserve
from everstep.errors import BadStep
from everstep.journal.records import EffectClass
from everstep.run.probe import Probed
from everstep.run.retry import ONCE, Retry
from everstep.run.steps import THREE_CLASSES, AsyncStep, OnUncertain, Step, SyncStep, check_answers, check_bounds

R = TypeVar("R")
Reserving = Reserve | Callable[..., Reserve]
Probe = Callable[..., Probed[Any] | Awaitable[Probed[Any]]]


def make_step(
    fn: Callable[..., Any],  # any callable at all
    name: str,
    effect: EffectClass | None,
    *,
    timeout: float | None = None,
    total_timeout: float | None = None,
    heartbeat_timeout: float | None = None,
    retry: Retry | None = None,
    probe: Probe | None = None,
    on_uncertain: OnUncertain | None = None,
    reserve: Reserving | None = None,
) -> Step[..., Any]:
    """A step of any callable: a function, a bound method, a lambda, a partial, a builtin, an object with `__call__`. Where it
    cannot tell its parameters, its arguments are taken as JSON. Raises BadStep."""
    if effect is None or effect not in get_args(EffectClass):
        raise BadStep(
            f"step {name} does not say what it does to the outside (effect={effect!r}). Name one of:\n{THREE_CLASSES}"
        )
    check_bounds(timeout, total_timeout, heartbeat_timeout, retry or ONCE, f"step {name}: ")
    check_answers(effect, probe, on_uncertain, reserve, f"step {name}: ")
    kind = AsyncStep if is_async(fn) else SyncStep
    return kind(
        plain(fn),
        effect=effect,
        timeout_s=timeout,
        total_timeout_s=total_timeout,
        heartbeat_timeout_s=heartbeat_timeout,
        retry=retry or ONCE,
        probe=probe,
        on_uncertain=on_uncertain or "ask",
        name=name,
        reserve=reserve,
    )


def is_async(fn: object) -> bool:
    """Whether calling it gives a coroutine, as far as it can tell before."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004  # not whether it is callable: of which colour


def plain(fn: Callable[..., Any]) -> Callable[..., Any]:  # any callable at all
    """`fn` as something with a signature: itself, or a function of any arguments."""
    if inspect.isfunction(fn) or inspect.ismethod(fn):
        return fn
    if is_async(fn):

        async def call(*args: Any, **kwargs: Any) -> Any:  # whatever it takes
            return await fn(*args, **kwargs)

        return call

    def call_sync(*args: Any, **kwargs: Any) -> Any:  # the same
        return fn(*args, **kwargs)

    return call_sync


class RunStep:
    """The callable behind `everstep.run_step`."""

    @overload
    def __call__(
        self,
        name: str,
        fn: Callable[..., Coroutine[Any, Any, R]],
        /,
        *args: object,
        effect: EffectClass,
        timeout: float | None = None,
        total_timeout: float | None = None,
        heartbeat_timeout: float | None = None,
        retry: Retry | None = None,
        probe: Probe | None = None,
        on_uncertain: OnUncertain | None = None,
        reserve: Reserving | None = None,
        **kwargs: object,
    ) -> "CoroutineType[object, None, R]": ...
    @overload
    def __call__(
        self,
        name: str,
        fn: Callable[..., R],
        /,
        *args: object,
        effect: EffectClass,
        timeout: float | None = None,
        total_timeout: float | None = None,
        heartbeat_timeout: float | None = None,
        retry: Retry | None = None,
        probe: Probe | None = None,
        on_uncertain: OnUncertain | None = None,
        reserve: Reserving | None = None,
        **kwargs: object,
    ) -> R: ...
    def __call__(
        self,
        name: str,
        fn: Callable[..., Any],  # any callable at all
        /,
        *args: object,
        effect: EffectClass | None = None,
        timeout: float | None = None,
        total_timeout: float | None = None,
        heartbeat_timeout: float | None = None,
        retry: Retry | None = None,
        probe: Probe | None = None,
        on_uncertain: OnUncertain | None = None,
        reserve: Reserving | None = None,
        **kwargs: object,
    ) -> Any:  # see the overloads
        """Run `fn(*args, **kwargs)` as a step called `name`, declared on the spot.

            answer = await everstep.run_step("ask", client.ask, question, effect="read")

        `name`, `effect`, `timeout`, `total_timeout`, `heartbeat_timeout`, `retry`, `probe`, `on_uncertain`, `reserve` are those
        of @everstep.step; everything else goes to `fn`. Arguments and result pass through the journal by the annotations of
        `fn`; without any they are JSON. What `fn` closes over is not journaled and must be the same in each attempt. A sync
        `fn` is a plain call in a sync agent; in an async one write `await everstep.run_step.aio(…)`."""
        step = make_step(
            fn,
            name,
            effect,
            timeout=timeout,
            total_timeout=total_timeout,
            heartbeat_timeout=heartbeat_timeout,
            retry=retry,
            probe=probe,
            on_uncertain=on_uncertain,
            reserve=reserve,
        )
        return cast(Callable[..., Any], step)(*args, **kwargs)

    async def aio(
        self,
        name: str,
        fn: Callable[..., R],
        /,
        *args: object,
        effect: EffectClass,
        timeout: float | None = None,
        total_timeout: float | None = None,
        heartbeat_timeout: float | None = None,
        retry: Retry | None = None,
        probe: Probe | None = None,
        on_uncertain: OnUncertain | None = None,
        reserve: Reserving | None = None,
        **kwargs: object,
    ) -> R:
        """A sync `fn` in an async agent; its body runs in a thread."""
        step = make_step(
            fn,
            name,
            effect,
            timeout=timeout,
            total_timeout=total_timeout,
            heartbeat_timeout=heartbeat_timeout,
            retry=retry,
            probe=probe,
            on_uncertain=on_uncertain,
            reserve=reserve,
        )
        if not isinstance(step, SyncStep):
            raise BadStep(f"step {name}: {fn!r} is async; write await everstep.run_step(…)")
        value: R = await step.aio(*args, **kwargs)
        return value


run_step = RunStep()
