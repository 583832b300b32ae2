"""`@everstep.step`: what a step is, before anything runs."""

import copy
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import update_wrapper
from types import CoroutineType, MethodType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    NoReturn,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    cast,
    get_args,
    overload,
)

from everstep.budget import Reserve
from everstep.errors import BadCall, BadStep, NotInRun
from everstep.ids import EffectClass
from everstep.run.masking import check_mask
from everstep.run.probe import Probed
from everstep.run.retry import ONCE, Retry
from everstep.run.scope import BODY, SCOPE, Scope
from everstep.run.values import Signature

if TYPE_CHECKING:
    from everstep.run.maps import MapAsync, MapSync

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)
OnUncertain = Literal["ask", "fail"]

THREE_CLASSES = """\
  effect="read"          changes nothing outside: a model call, a look-up. After a crash it may run again.
  effect="idempotent"    may run again with the same key (everstep.idempotency_key()): the other side counts it once.
  effect="at_most_once"  must never run twice: a mail, a payment without a key. After a crash in the middle it is settled by
                         probe=, or a person is asked."""


class Step(Generic[P, R]):
    """A declared step. `fn` is the plain function, for unit tests and for use inside another step's body."""

    def __init__(
        self,
        fn: Callable[..., Any],  # R or an awaitable of it; the subclasses say which
        *,
        effect: EffectClass,
        timeout_s: float | None,
        total_timeout_s: float | None = None,
        heartbeat_timeout_s: float | None = None,
        retry: Retry,
        probe: Callable[..., object] | None,
        on_uncertain: OnUncertain,
        name: str,
        reserve: "Reserve | Callable[..., Reserve] | None" = None,
        mask: tuple[str, ...] = (),
    ) -> None:
        self.fn = fn
        self.reserve = reserve
        self.mask = mask
        self.effect: EffectClass = effect
        self.timeout_s = timeout_s
        self.total_timeout_s = total_timeout_s
        self.heartbeat_timeout_s = heartbeat_timeout_s
        self.retry = retry
        self.probe = probe
        self.on_uncertain: OnUncertain = on_uncertain
        self.name = name
        self.is_async = inspect.iscoroutinefunction(fn)
        self.probe_is_async = inspect.iscoroutinefunction(probe)
        self.signature = Signature(fn, name)
        self._method_signature: Signature | None = None
        update_wrapper(cast(Callable[..., Any], self), fn)  # the object stands for the function

    @property
    def bounded(self) -> bool:
        """Whether a try may time out, so that a sync body needs a thread that can be left behind."""
        return any(bound is not None for bound in (self.timeout_s, self.total_timeout_s, self.heartbeat_timeout_s))

    def __repr__(self) -> str:
        return f"<step {self.name} ({self.effect})>"

    def bind(self, instance: object) -> Self:
        """As the step of one object: `self` is neither journaled nor part of the arguments' digest."""
        bound = copy.copy(self)
        bound.fn = MethodType(self.fn, instance)
        if self._method_signature is None:
            self._method_signature = Signature(bound.fn, self.name)
        bound.signature = self._method_signature
        if inspect.isfunction(self.probe) and next(iter(inspect.signature(self.probe).parameters), "") == "self":
            bound.probe = MethodType(self.probe, instance)
        return bound

    def scope(self, *, sync_agent: bool, as_map: bool = False) -> Scope:
        """The scope of the caller. Raises NotInRun or BadCall if this step cannot be called here, or not like this."""
        scope = SCOPE.get()
        if scope is None:
            self._refuse_outside()
        if scope.engine.sync_agent != sync_agent:
            name = f"{self.name}.map" if as_map else self.name
            other = ("_sync", "_aio") if as_map else (".sync", ".aio")
            if self.is_async:
                cure = f"{name}{other[0]}(…)" if scope.engine.sync_agent else f"await {name}(…)"
            else:
                cure = f"{name}(…)" if scope.engine.sync_agent else f"await {name}{other[1]}(…)"
            kinds = ("an async step", "a sync step"), ("an async agent", "a sync agent")
            raise BadCall(
                f"{self.name} is {kinds[0][not self.is_async]}, called from {kinds[1][scope.engine.sync_agent]}: write {cure}"
            )
        return scope

    def _refuse_outside(self) -> NoReturn:
        body = BODY.get()
        if body is not None:
            raise BadCall(
                f"step {self.name} was called inside the body of step {body.step}, where it could not be journaled on its own. "
                f"Call it from the agent, or call the plain function here: {self.name}.fn(…)"
            )
        raise NotInRun(
            f"step {self.name} was called outside a run, where nothing makes it durable. Call it from an agent that is started "
            f"by everstep.run(agent, goal=…) or `everstep local run`; for a unit test call the plain function: {self.name}.fn(…)"
        )


class _Takes(Protocol[T_contra, R_co]):
    """Anything called with an item first; what follows it is `common`."""

    def __call__(self, item: T_contra, /, *args: Any, **kwargs: Any) -> R_co: ...  # any further parameters


# Descriptors over what a step looks like when called: mypy cannot tell a step's first parameter from the `self` of a method.
class _AsyncMap:
    def __get__(self, step: "_Takes[T, CoroutineType[object, None, R]]", owner: type | None = None) -> "MapAsync[T, R]":
        from everstep.run.maps import MapAsync

        return MapAsync(cast("Step[..., Any]", step))


class _AsyncMapSync:
    def __get__(self, step: "_Takes[T, CoroutineType[object, None, R]]", owner: type | None = None) -> "MapSync[T, R]":
        from everstep.run.maps import MapSync

        return MapSync(cast("Step[..., Any]", step))


class _SyncMap:
    def __get__(self, step: _Takes[T, R], owner: type | None = None) -> "MapSync[T, R]":
        from everstep.run.maps import MapSync

        return MapSync(cast("Step[..., Any]", step))


class _SyncMapAio:
    def __get__(self, step: _Takes[T, R], owner: type | None = None) -> "MapAsync[T, R]":
        from everstep.run.maps import MapAsync

        return MapAsync(cast("Step[..., Any]", step))


# Calls are typed CoroutineType[object, None, R], not Coroutine[Any, Any, R]: with an explicit Any in it mypy finds the overloads
# of asyncio.gather ambiguous and gives up on their results.
class AsyncStep(Step[P, R]):
    """A step with an async body: awaited in async agents, `.sync(…)` in sync ones. `.map` and `.map_sync` call it for each of
    several items."""

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> "AsyncStep[P, R]": ...
    @overload
    def __get__(
        self: "AsyncStep[Concatenate[Any, Q], R]", instance: object, owner: type | None = None
    ) -> "AsyncStep[Q, R]": ...
    def __get__(self, instance: object, owner: type | None = None) -> Any:  # see the overloads
        return self if instance is None else self.bind(instance)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> "CoroutineType[object, None, R]":
        self.scope(sync_agent=False)
        return cast("CoroutineType[object, None, R]", _call(self, args, kwargs))

    def sync(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call it from a sync agent; blocks until the step has an outcome."""
        scope = self.scope(sync_agent=True)
        value: R = scope.engine.call_step_sync(scope, self, args, kwargs)
        return value

    map = _AsyncMap()
    """For async agents: `await step.map(items, concurrency=8)`."""

    map_sync = _AsyncMapSync()
    """For sync agents: `step.map_sync(items, concurrency=8)`."""


class SyncStep(Step[P, R]):
    """A step with a sync body: a plain call in sync agents, `.aio(…)` in async ones (the body runs in a thread). `.map` and
    `.map_aio` call it for each of several items."""

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> "SyncStep[P, R]": ...
    @overload
    def __get__(
        self: "SyncStep[Concatenate[Any, Q], R]", instance: object, owner: type | None = None
    ) -> "SyncStep[Q, R]": ...
    def __get__(self, instance: object, owner: type | None = None) -> Any:  # see the overloads
        return self if instance is None else self.bind(instance)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        scope = self.scope(sync_agent=True)
        value: R = scope.engine.call_step_sync(scope, self, args, kwargs)
        return value

    def aio(self, *args: P.args, **kwargs: P.kwargs) -> "CoroutineType[object, None, R]":
        """Await it in an async agent."""
        self.scope(sync_agent=False)
        return cast("CoroutineType[object, None, R]", _call(self, args, kwargs))

    map = _SyncMap()
    """For sync agents: `step.map(items, concurrency=8)`; each body runs in a thread of its own."""

    map_aio = _SyncMapAio()
    """For async agents: `await step.map_aio(items, concurrency=8)`."""


async def _call(step: Step[P, R], args: tuple[object, ...], kwargs: dict[str, object]) -> R:
    # The scope is that of the task which runs this, so that `create_task(step(…))` and gather key it in the new task.
    scope = step.scope(sync_agent=False)
    call = scope.engine.call_step(scope, step, args, kwargs)
    try:
        value: R = await call.waiter
        return value
    except BaseException:
        scope.engine.forsake(call)
        raise


class StepDecorator(Protocol):
    """What `step(effect=…)` gives."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # the first that fits counts: a coroutine function is an async step
        self, fn: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncStep[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> SyncStep[P, R]: ...


def step(
    fn: None = None,
    /,
    *,
    effect: EffectClass | None = None,
    timeout: float | None = None,
    total_timeout: float | None = None,
    heartbeat_timeout: float | None = None,
    retry: Retry | None = None,
    probe: Callable[..., Probed[Any] | Awaitable[Probed[Any]]]
    | None = None,  # answers Done of the step's own result type
    on_uncertain: OnUncertain | None = None,
    name: str | None = None,
    reserve: Reserve | Callable[..., Reserve] | None = None,
    mask: Sequence[str] | None = None,
) -> StepDecorator:
    """Declare a function as a step: its call is journaled, and once it has an outcome it never runs again.

    effect             "read", "idempotent" or "at_most_once"; must be named
    timeout            seconds per try; None = no bound. A timed-out at_most_once step is uncertain, others fail with TimeoutError
    total_timeout      seconds for all tries and the waits between them, from the first intent on, over crashes; None = no bound
    heartbeat_timeout  seconds within which the body must call everstep.heartbeat() again, else the try has timed out; None = it
                       need not
    retry              Retry(…) for failed tries; None = one try
    probe              at_most_once only: called with the step's arguments, answers Done(value), NOT_DONE or UNKNOWN
    on_uncertain       at_most_once only: "ask" a person (default) or "fail" with StepFailed
    name               shown to people and checked on replay; default the function's name
    reserve            the most one try may use, for the run's budget: a Reserve, or a function of the step's arguments giving one
    mask               fields of arguments that people are shown as ***, like ("pin", "card.number"); password, token … always are

    docs/steps.md tells each with its reason and with what happens on a crash.

    Raises BadStep at import if the declaration is wrong."""
    if fn is not None or effect is None:
        where = f"step {getattr(fn, '__name__', fn)!s}" if fn is not None else "a step"
        raise BadStep(f"{where} does not say what it does to the outside. Name one of the three:\n{THREE_CLASSES}")
    if effect not in get_args(EffectClass):
        raise BadStep(f"effect={effect!r} is none of the three:\n{THREE_CLASSES}")
    check_bounds(timeout, total_timeout, heartbeat_timeout, retry or ONCE)
    check_answers(effect, probe, on_uncertain, reserve)
    hides = check_mask(mask)

    def declare(function: Callable[..., Any]) -> Any:  # AsyncStep or SyncStep, see StepDecorator
        _check_function(function)
        kind = AsyncStep if inspect.iscoroutinefunction(function) else SyncStep
        return kind(
            function,
            effect=effect,
            timeout_s=timeout,
            total_timeout_s=total_timeout,
            heartbeat_timeout_s=heartbeat_timeout,
            retry=retry or ONCE,
            probe=probe,
            on_uncertain=on_uncertain or "ask",
            name=name or function.__name__,
            reserve=reserve,
            mask=hides,
        )

    return declare


def _check_function(function: object) -> None:
    generates = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    if not inspect.isfunction(function) or generates:
        raise BadStep(f"{function!r} cannot be a step: a step is a plain or async function that returns its result")


def check_answers(effect: EffectClass, probe: object, on_uncertain: object, reserve: object, where: str = "") -> None:
    """What a declaration says of doubt and of the budget. Raises BadStep."""
    if effect != "at_most_once" and (probe is not None or on_uncertain is not None):
        raise BadStep(
            f'{where}probe= and on_uncertain= are for effect="at_most_once"; a step with effect={effect!r} simply runs again'
        )
    if reserve is not None and not isinstance(reserve, Reserve) and not callable(reserve):
        raise BadStep(f"{where}reserve must be an everstep.Reserve or a function that gives one, not {reserve!r}")
    if on_uncertain not in (None, "ask", "fail"):
        raise BadStep(f'{where}on_uncertain must be "ask" or "fail", not {on_uncertain!r}')


def check_bounds(
    timeout: float | None, total: float | None, heartbeat: float | None, retry: Retry, where: str = ""
) -> None:
    """Of a declaration. Raises BadStep."""
    named = {"timeout": timeout, "total_timeout": total, "heartbeat_timeout": heartbeat}
    for name, seconds in named.items():
        if seconds is not None and not seconds > 0:
            raise BadStep(f"{where}{name} must be more than 0 seconds, not {seconds}")
    for name, outer in (("timeout", "total_timeout"), ("heartbeat_timeout", "timeout")):
        inner_s, outer_s = named[name], named[outer]
        if inner_s is not None and outer_s is not None and inner_s > outer_s:
            raise BadStep(
                f"{where}{name} of {inner_s:g} s is longer than {outer} of {outer_s:g} s, so it could never act"
            )
    if retry.max_tries is None and total is None:
        raise BadStep(
            f"{where}Retry(max_tries=None) tries for ever: give the step a total_timeout, or name a number of tries"
        )
