"""`everstep.wrap`: an object whose calls are steps.

Clients that are known (everstep.adapters) are told by the module their class comes from, so nothing is imported that the program
has not imported. Anything else is wrapped by its methods' effect classes.
"""

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar, cast, get_args

from everstep.errors import BadStep, NotInRun
from everstep.journal.records import EffectClass
from everstep.run.adhoc import Reserving, is_async, make_step
from everstep.run.apart import Resource
from everstep.run.retry import ONCE, Retry
from everstep.run.scope import APART, BODY, SCOPE
from everstep.run.steps import THREE_CLASSES, AsyncStep, OnUncertain, Step, SyncStep, check_bounds

T = TypeVar("T")
_ADAPTERS = {"openai": "openai", "anthropic": "anthropic", "mcp": "mcp"}
"""First part of the module of a class → module of everstep.adapters, whose `wrapped(x, options)` answers None for what it does
not know."""


@dataclass(frozen=True)
class Options:
    """What `wrap` was told."""

    effect: EffectClass | None = None
    effects: Mapping[str, EffectClass | None] = field(default_factory=dict)
    retry: Retry | None = None
    timeout_s: float | None = None
    total_timeout_s: float | None = None
    heartbeat_timeout_s: float | None = None
    on_uncertain: OnUncertain | None = None
    name: str | None = None
    live: bool = True
    reserve: Reserving | None = None

    def effect_of(self, name: str, otherwise: EffectClass) -> EffectClass:
        """The class of one call, as the user said or as the adapter knows."""
        return self.effects.get(name) or self.effect or otherwise

    def on_uncertain_of(self, effect: EffectClass) -> OnUncertain:
        return (self.on_uncertain or "ask") if effect == "at_most_once" else "ask"


def wrap(
    x: T,
    *,
    effect: EffectClass | None = None,
    effects: Mapping[str, EffectClass | None] | None = None,
    retry: Retry | None = None,
    timeout: float | None = None,
    total_timeout: float | None = None,
    heartbeat_timeout: float | None = None,
    on_uncertain: OnUncertain | None = None,
    name: str | None = None,
    live: bool = True,
    reserve: Reserving | None = None,
) -> T:
    """The same object, to the type checker and to isinstance, whose calls in agent code are steps.

        client = everstep.wrap(AsyncOpenAI())                       # known: openai, anthropic, an MCP ClientSession
        ask = everstep.wrap(ask, effect="read")                     # a function or any callable
        tools = everstep.wrap(everstep.resource(open_session))      # what a resource gives, once it is open
        shop = everstep.wrap(shop, effects={"find": "read", "buy": "at_most_once", "currency": None})

    effect             the class of every call; needed for a callable, overrides what is known of a client
    effects            the class by name of a method (a client's: the step's name); None = no step, called as it is
    retry              for failed tries. Default for clients: as many as the client itself would make (its own are turned off, for
                       the journal would not see them); else one try
    timeout            seconds per try; None = no bound but the library's own
    total_timeout      seconds for all tries of one call and the waits between them, over crashes; None = no bound
    heartbeat_timeout  seconds a body may be silent; None = as long as it likes. A callable or a method calls
                       everstep.heartbeat(); in a client's stream each chunk counts as that, in an MCP tool each notice of
                       progress. Requests that can give no such sign are not bound by it
    on_uncertain       for at_most_once calls: "ask" a person (default) or "fail" with StepFailed
    name               what the steps are called; default the library's, class's or function's name
    live               streams: True gives the agent each chunk as it comes, False all of it once the whole is journaled
    reserve            for the run's budget, as of a step. Default for clients: an estimate of the request and its bound on the
                       answer

    In a step's body and in what opens a resource it is the plain object. Outside a run its calls raise NotInRun. Neither the
    object nor what it holds is journaled: it must be made the same way in each attempt. Raises BadStep for what it does not know.
    """
    options = Options(
        effect,
        dict(effects or {}),
        retry,
        timeout,
        total_timeout,
        heartbeat_timeout,
        on_uncertain,
        name,
        live,
        reserve,
    )
    check_bounds(timeout, total_timeout, heartbeat_timeout, retry or ONCE)
    for given in (effect, *options.effects.values()):
        if given is not None and given not in get_args(EffectClass):
            raise BadStep(f"effect {given!r} is none of the three:\n{THREE_CLASSES}")
    return wrap_with(x, options)


def wrap_with(x: T, options: Options) -> T:
    """As `wrap`."""
    for kind in type(x).__mro__:
        adapter = _ADAPTERS.get(kind.__module__.partition(".")[0])
        if adapter is not None:
            found = importlib.import_module(f"everstep.adapters.{adapter}").wrapped(x, options)
            if found is not None:
                return cast(T, found)
    if isinstance(x, Resource):
        return cast(T, x.through(lambda opened: wrap_with(opened, options)))
    if options.effects:
        return cast(T, Wrapped(x, options))
    if callable(x) and not inspect.isclass(x):
        return cast(T, _wrap_callable(cast(Callable[..., Any], x), options))
    raise BadStep(
        f"everstep.wrap does not know {type(x).__name__}: say what its methods do to the outside, e.g. "
        f'everstep.wrap(x, effects={{"find": "read"}})\n{THREE_CLASSES}'
    )


def _wrap_callable(fn: Callable[..., Any], options: Options) -> Step[..., Any]:  # any callable at all
    if isinstance(fn, Step):
        raise BadStep(f"{fn.name} is a step already")
    name = options.name or getattr(fn, "__name__", None) or type(fn).__name__
    return _step(fn, name, options.effect, options)


def _step(fn: Callable[..., Any], name: str, effect: EffectClass | None, options: Options) -> Step[..., Any]:
    return make_step(
        fn,
        name,
        effect,
        timeout=options.timeout_s,
        total_timeout=options.total_timeout_s,
        heartbeat_timeout=options.heartbeat_timeout_s,
        retry=options.retry,
        on_uncertain=options.on_uncertain if effect == "at_most_once" else None,
        reserve=options.reserve,
    )


def passes() -> bool:
    """Whether a call of a wrapped object is a plain call here: in a step's body, or in what runs apart from the journal."""
    return SCOPE.get() is None and (BODY.get() is not None or APART.get())


def refuse_outside(name: str) -> NoReturn:
    """A wrapped object was used outside a run. Raises NotInRun."""
    raise NotInRun(
        f"{name} was called outside a run, where nothing makes it durable. Use the object itself there, not what everstep.wrap "
        f"gave"
    )


class Wrapped:
    """Stands for an object: methods with an effect class are steps, other attributes are the object's own."""

    _everstep_target: Any  # the object
    _everstep_options: Options

    def __init__(self, target: object, options: Options) -> None:
        object.__setattr__(self, "_everstep_target", target)
        object.__setattr__(self, "_everstep_options", options)
        missing = [name for name in options.effects if not hasattr(target, name)]
        if missing:
            raise BadStep(f"everstep.wrap: {type(target).__name__} has no {', '.join(missing)}")

    def __getattribute__(self, name: str) -> Any:  # the object's own attribute
        if name == "__class__":  # isinstance() answers as for the object
            return type(object.__getattribute__(self, "_everstep_target"))
        if name.startswith("_everstep"):
            return object.__getattribute__(self, name)
        target = object.__getattribute__(self, "_everstep_target")
        options: Options = object.__getattribute__(self, "_everstep_options")
        value = getattr(target, name)
        if not callable(value) or inspect.isclass(value) or name.startswith("__"):
            return value
        effect = options.effects.get(name) or (options.effect if name not in options.effects else None)
        if effect is None:
            if name in options.effects or SCOPE.get() is None:
                return value
            raise BadStep(
                f"{type(target).__name__}.{name} has no effect class: name it in everstep.wrap(…, effects={{{name!r}: …}}), "
                f"None if it is no step\n{THREE_CLASSES}"
            )
        return _method(value, f"{options.name or type(target).__name__}.{name}", effect, options)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._everstep_target, name, value)

    def __repr__(self) -> str:
        return f"<wrapped {self._everstep_target!r}>"


def _method(fn: Callable[..., Any], name: str, effect: EffectClass, options: Options) -> Callable[..., Any]:
    """A method that is a step in agent code, and itself in bodies. An async agent awaits a sync one, too."""
    step = _step(fn, name, effect, options)

    @functools.wraps(fn)
    def call(*args: object, **kwargs: object) -> Any:  # the method's own result
        scope = SCOPE.get()
        if scope is None:
            if passes():
                return fn(*args, **kwargs)
            refuse_outside(name)
        if isinstance(step, SyncStep) or not is_async(fn):
            return cast(SyncStep[..., Any], step)(*args, **kwargs)
        return cast(AsyncStep[..., Any], step)(*args, **kwargs)

    if isinstance(step, SyncStep):
        call.aio = step.aio  # type: ignore[attr-defined]  # as a step's own
    else:
        call.sync = cast(AsyncStep[..., Any], step).sync  # type: ignore[attr-defined]  # as a step's own
    return call
