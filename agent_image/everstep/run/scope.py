"""Where agent code is: the scope that gives each call its key, carried by a context variable.

Keys come from the source order of calls, never from finishing order or threads. Each agent task has a scope of its own:

    step          <scope><n>          0, 1, t0/0
    task          <scope>t<n>/        t0/, t0/t1/
    timer         <scope>~<n>         ~0, t0/~3
    value         <scope>v<n>         v0
    item of a map <scope>m<n>/<item>  m0/17, t0/m1/0

with a counter per kind and scope. After a snapshot or continue_as_new (everstep.run.epochs) the root scope is `@<epoch>/` instead
of the empty one, and counts from 0 again. Code for which `current()` is None is outside agent scope: step bodies and the engine
itself.
"""

import contextvars
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from everstep.ids import StepKey
from everstep.journal.canonical import Json

if TYPE_CHECKING:
    from everstep.run.artifacts import Noted
    from everstep.run.engine import Engine
    from everstep.run.heartbeat import Heart


class Scope:
    """The counters of one agent task."""

    __slots__ = ("_maps", "_steps", "_tasks", "_timers", "_values", "engine", "lane", "path")

    def __init__(self, engine: "Engine", path: str = "") -> None:
        self.engine = engine
        self.lane = engine.lane
        self.path = path
        self._steps = self._tasks = self._timers = self._values = self._maps = 0

    def restart(self, path: str) -> None:
        """Count from 0 again, under another path."""
        self.path = path
        self._steps = self._tasks = self._timers = self._values = self._maps = 0

    @property
    def used(self) -> bool:
        """Whether anything was numbered here."""
        return bool(self._steps or self._tasks or self._timers or self._values or self._maps)

    def next_step(self) -> StepKey:
        n = self._steps
        self._steps = n + 1
        return StepKey(f"{self.path}{n}")

    def next_task(self) -> "Scope":
        """The scope of a task that is created here."""
        n = self._tasks
        self._tasks = n + 1
        return Scope(self.engine, f"{self.path}t{n}/")

    def next_map(self) -> "Scope":
        """The scope of the items of a step's map, which are counted in source order."""
        n = self._maps
        self._maps = n + 1
        return Scope(self.engine, f"{self.path}m{n}/")

    def next_timer(self) -> StepKey:
        n = self._timers
        self._timers = n + 1
        return StepKey(f"{self.path}~{n}")

    def next_value(self) -> StepKey:
        n = self._values
        self._values = n + 1
        return StepKey(f"{self.path}v{n}")


@dataclass(eq=False, repr=False)
class BodyContext:
    """What a step body (or probe) may ask for while it runs."""

    step: str
    key: StepKey
    idempotency_key: str
    tries: int = 1
    usage: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Tokens in and out by model, of what was reported without money."""
    reported: bool = False
    heart: "Heart | None" = None
    """None in a probe."""
    details: Json = None
    """Of the newest heartbeat of an earlier try."""
    files: "list[Noted]" = field(default_factory=list)
    """Files to keep with the result."""
    say: "Callable[[BodyContext, str], None] | None" = None
    """Puts text into the run's live stream; from any thread."""
    spoke: bool = False


SCOPE: contextvars.ContextVar["Scope | None"] = contextvars.ContextVar("everstep_scope", default=None)
"""Set in agent scope only. The loop reads it for every callback, so it is a plain module variable."""

BODY: contextvars.ContextVar["BodyContext | None"] = contextvars.ContextVar("everstep_body", default=None)
"""Set while a step's body runs."""


APART: contextvars.ContextVar[bool] = contextvars.ContextVar("everstep_apart", default=False)
"""True in code that runs once per attempt beside the journal: what opens a resource, `everstep.per_attempt`."""


def outside(context: contextvars.Context) -> contextvars.Context:
    """A copy of an agent's context that is outside agent scope: step bodies keep the agent's own context variables."""
    copy = context.copy()
    copy.run(SCOPE.set, None)
    return copy
