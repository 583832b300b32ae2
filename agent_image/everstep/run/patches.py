"""`patched` and `deprecate_patch`: a deliberate change of agent code while runs are under way.

A marker is a `value` record named `patched:<id>` under the key `patched:<id>` (of its epoch), so it takes no number that another
value would have had. It is claimed in order like every call. The first call with an id decides for the rest of the epoch:

    the marker is the next claim     the new code was here            True, and the claim is taken
    other claims are left            the old code passed this place   False
    no claim is left                 nothing was here yet             write the marker, True

Agent code runs in the same order each time, so at that call the record either goes on with what the old code did next, or with
the marker, or not at all. The decision is the same at every replay: a claim that was left stays left.

`deprecate_patch` lets the marker pass wherever it stands, and writes one of its own (value "deprecated") beyond the record. Code
that has neither call passes over such a marker, so the last trace of a patch can leave the code as soon as no run with a plain
marker is left, while code that still says `patched` reads it as True.
"""

from typing import TYPE_CHECKING

from everstep.errors import BadCall
from everstep.ids import StepKey
from everstep.journal.records import Json
from everstep.run.durable import scope_of
from everstep.run.markers import DEPRECATED, PATCHED, is_marker
from everstep.run.scope import Scope

if TYPE_CHECKING:
    from everstep.run.engine import Engine

ID_MAX = 200
NEW = "new"


def patched(id: str) -> bool:
    """Whether this run takes the new way at a place that was changed: True in new runs and wherever a run has not come by yet,
    False where the journal shows that the old code passed here. The same on every replay, and for every later call with `id`.

        if everstep.patched("second-opinion"):
            answer = await ask_twice(question)
        else:
            answer = await ask(question)          # for runs that began before the change

    A plain call in async and sync agents, in agent code only. Raises BadCall in a step's body, NotInRun outside a run."""
    scope = scope_of("patched")
    key = _key(scope, "patched", id)
    known = scope.engine.patches
    if key not in known:
        known[key] = _decide(scope, key)
    return known[key]


def deprecate_patch(id: str) -> None:
    """For the time after: the old way is gone from the code, and runs with and without the marker of `id` replay. Remove the call
    once no run is left that was begun with `patched(id)`."""
    scope = scope_of("deprecate_patch")
    key = _key(scope, "deprecate_patch", id)
    known = scope.engine.patches
    if key not in known:
        known[key] = True
        history = scope.engine.history
        if not history.claims or history.claims[0].key == key:
            _draw(scope, key, DEPRECATED)
        else:
            history.passable.add(key)


def _decide(scope: Scope, key: StepKey) -> bool:
    claims = scope.engine.history.claims
    if claims and not (is_marker(claims[0]) and claims[0].key == key):
        return False
    _draw(scope, key, NEW)
    return True


def _draw(scope: Scope, key: StepKey, mark: str) -> Json:
    engine: Engine = scope.engine
    name = key[key.index(PATCHED) :]
    source = engine if engine.thread is None else engine.thread
    return source.draw_value(scope, name, lambda: mark, key)


def _key(scope: Scope, what: str, id: str) -> StepKey:
    if not isinstance(id, str) or not id or len(id) > ID_MAX or not id.isprintable():
        raise BadCall(f"{what}: the id must be a text of 1 to {ID_MAX} printable characters, not {id!r}")
    epoch = scope.path[: scope.path.index("/") + 1] if scope.path.startswith("@") else ""
    return StepKey(f"{epoch}{PATCHED}{id}")


__all__ = ["deprecate_patch", "patched"]
