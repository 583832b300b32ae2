"""`@everstep.agent`, and how goal and inputs reach it."""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar, cast

from everstep.errors import BadStep, ConfigError, LimitError, NotInRun
from everstep.journal.canonical import Json
from everstep.run.scope import SCOPE
from everstep.run.steps import Step
from everstep.run.values import Codec, resolve

P = ParamSpec("P")
R = TypeVar("R")
GOAL = "goal"
loading: list[str] = []
"""The entrypoint whose module is being imported, if any: it must not start a run of its own meanwhile."""


class Agent(Generic[P, R]):
    """A declared agent. `fn` is the plain function; calling the agent inside another agent runs it as a part of that one."""

    def __init__(self, fn: Callable[P, R], name: str) -> None:
        self.fn = fn
        self.name = name
        self.is_async = inspect.iscoroutinefunction(fn)
        self.parameters = dict(inspect.signature(fn).parameters)
        self._codecs: dict[str, Codec] | None = None
        update_wrapper(self, fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if SCOPE.get() is None:
            raise NotInRun(
                f"agent {self.name} was called outside a run: start it with everstep.run({self.name}, goal=…) or "
                f"`everstep local run MODULE:{self.name}`; for a unit test call {self.name}.fn(…)"
            )
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<agent {self.name}>"

    def codec(self, name: str) -> Codec:
        """Of a parameter, or of `return`."""
        if self._codecs is None:
            hints = resolve(self.fn, f"agent {self.name}")
            self._codecs = {
                p: Codec(hints.get(p, Any), f"agent {self.name}", f"input {p}") for p in self.parameters
            } | {"return": Codec(hints.get("return", Any), f"agent {self.name}", "result", exact=False)}
        return self._codecs[name]

    @property
    def result(self) -> Codec:
        return self.codec("return")

    def check(self, inputs: Mapping[str, object]) -> None:
        """Raises ConfigError naming missing and unknown inputs."""
        kinds = {p.kind for p in self.parameters.values()}
        named = [n for n, p in self.parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        wanted = [n for n in named if self.parameters[n].default is inspect.Parameter.empty and n != GOAL]
        missing = [n for n in wanted if n not in inputs]
        unknown = [] if inspect.Parameter.VAR_KEYWORD in kinds else [n for n in inputs if n not in named or n == GOAL]
        if missing:
            raise ConfigError(
                f"agent {self.name} needs the input{'s' * (len(missing) > 1)} {', '.join(missing)}: add --input {missing[0]}=… "
                f"(spec.inputs.{missing[0]} of an AgentRun)"
            )
        if unknown:
            import difflib  # only for a message

            near = difflib.get_close_matches(unknown[0], named, 1)
            hint = (
                f"; did you mean {near[0]}?"
                if near
                else f"; it takes {', '.join(n for n in named if n != GOAL) or 'none'}"
            )
            raise ConfigError(f"agent {self.name} takes no input {', '.join(unknown)}{hint}")

    def bind(self, goal: str, inputs: Mapping[str, Json]) -> dict[str, Any]:  # the parameters' own types
        """Keyword arguments of the agent. Raises ConfigError naming the input that is missing, unknown or of another type."""
        self.check(inputs)
        bound: dict[str, Any] = {}
        if GOAL in self.parameters and (goal or self.parameters[GOAL].default is inspect.Parameter.empty):
            bound[GOAL] = goal
        for name, value in inputs.items():
            if name not in self.parameters:
                bound[name] = value
                continue
            try:
                bound[name] = self.codec(name).decode(value)
            except LimitError as e:
                raise ConfigError(str(e)) from e
        return bound

    def encode_inputs(self, inputs: Mapping[str, object]) -> dict[str, Json]:
        """Python values as the JSON they are journaled and digested as. Raises ConfigError."""
        self.check(inputs)
        data: dict[str, Json] = {}
        for name, value in inputs.items():
            codec = self.codec(name) if name in self.parameters else Codec(Any, f"agent {self.name}", f"input {name}")
            try:
                data[name] = codec.encode(value).data
            except LimitError as e:
                raise ConfigError(str(e)) from e
        return data


def agent(fn: Callable[P, R]) -> Agent[P, R]:
    """Declare a function as an agent: `goal` and its inputs arrive by parameter name. Raises BadStep at import."""
    if isinstance(fn, Step):
        raise BadStep(f"{fn.name} is a step; an agent calls steps and is none")
    if not inspect.isfunction(fn) or inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
        raise BadStep(f"{fn!r} cannot be an agent: an agent is a plain or async function")
    for name, p in inspect.signature(fn).parameters.items():
        if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL):
            raise BadStep(
                f"agent {fn.__name__}: parameter {name} has no name to give an input by; make it a plain parameter"
            )
    return Agent(fn, fn.__name__)


def load_agent(entrypoint: str) -> "Agent[..., Any]":  # of any signature
    """From `module:function` to the agent. Raises ConfigError that lists what is there."""
    module_name, _, name = entrypoint.partition(":")
    if not module_name or not name:
        raise ConfigError(f"entrypoint {entrypoint!r} must be MODULE:FUNCTION, e.g. triage:run")
    loading.append(entrypoint)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as e:
        if e.name is None or not (module_name == e.name or module_name.startswith(e.name + ".")):
            raise ConfigError(f"entrypoint {entrypoint}: {module_name} could not be imported: {e}") from e
        raise ConfigError(
            f"entrypoint {entrypoint}: there is no module {e.name}. Looked in {', '.join(p or '.' for p in sys.path[:5])}; "
            f"the image's working directory or PYTHONPATH must hold it"
        ) from e
    except (Exception, SystemExit) as e:
        raise ConfigError(f"entrypoint {entrypoint}: importing {module_name} failed: {type(e).__name__}: {e}") from e
    finally:
        loading.pop()
    found = getattr(module, name, None)
    if isinstance(found, Agent):
        return cast("Agent[..., Any]", found)  # Agent's parameters are not known at run time
    agents = sorted(n for n, v in vars(module).items() if isinstance(v, Agent))
    has = (
        f"{module_name} has the agents {', '.join(agents)}"
        if agents
        else f"{module_name} has no @everstep.agent at all"
    )
    if found is None:
        import difflib  # only for a message

        near = difflib.get_close_matches(name, agents, 1)
        raise ConfigError(
            f"entrypoint {entrypoint}: no {name!r} there; {has}" + (f". Did you mean {near[0]}?" if near else "")
        )
    raise ConfigError(f"entrypoint {entrypoint}: {name} is no agent; put @everstep.agent above it. {has}")
