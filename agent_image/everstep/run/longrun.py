"""`everstep.snapshot`, `everstep.restored` and `everstep.continue_as_new`: runs that go on for ever (docs/long-runs.md)."""

from typing import Any, NoReturn, TypeVar, overload

from everstep.errors import ContinuedAsNew
from everstep.run.durable import scope_of

T = TypeVar("T")


@overload
def restored() -> Any:  # plain JSON: only the agent knows which
    """Plain JSON."""


@overload
def restored(type: type[T]) -> T | None:
    """Of a type."""


def restored(type: type[T] | None = None) -> Any:  # see the overloads
    """The state of the run's newest snapshot, or None where there is none (a new run, a new segment).

    type  what the state is, e.g. a pydantic model, a dataclass or `list[Model]`; None = plain JSON. `snapshot` checks by it, too

    Ask for it before the agent's first step: a restart begins at the agent's first line, so steps that belong before the loop
    stand under `if state is None:`. Raises BadCall if steps were called before, NotJSON if the state does not fit the type (the
    code was changed)."""
    scope = scope_of("restored")
    return scope.engine.epochs.restored(scope, type)


def snapshot(state: object) -> None:
    """Keep the agent's state: a later attempt begins here, with `restored()` giving the state, and replays only what follows.

    A plain call, in sync and async agents. It writes one record, with the next step's. Belongs to the agent's own function, while
    no step, timer or task of it is pending (what the agent has cancelled may still be ending: then the snapshot is put off to the
    next call). Idempotency keys of later steps differ from those of earlier ones. Raises BadCall, NotJSON, ValueTooLarge."""
    scope = scope_of("snapshot")
    engine = scope.engine
    encoded = engine.epochs.encode(scope, state)
    thread = engine.thread
    if thread is None:
        engine.epochs.snapshot(encoded)
        return

    def request() -> None:
        engine.epochs.snapshot(encoded)
        thread.answer(_nothing)

    thread.ask(request)


def continue_as_new(**inputs: object) -> NoReturn:
    """Leave the agent function and start it again with new inputs, in the same run and process; nothing of before is replayed.

    Never returns: it raises ContinuedAsNew (a BaseException), so clean-up on the way out runs, its steps included. Belongs to the
    agent's own function while nothing is pending, as `snapshot`. The goal stays. Raises BadCall, also for inputs that the agent
    does not take."""
    scope = scope_of("continue_as_new")
    engine = scope.engine
    thread = engine.thread
    if thread is None:
        engine.epochs.leave(scope, inputs)
        raise ContinuedAsNew

    def request() -> None:
        engine.epochs.leave(scope, inputs)
        thread.answer(_leave)

    thread.ask(request)
    raise AssertionError("unreachable")


def _nothing() -> None:
    return None


def _leave() -> None:
    raise ContinuedAsNew


__all__ = ["continue_as_new", "restored", "snapshot"]
