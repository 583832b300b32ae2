"""What a person reads when agent code and journal part: both sides, where in the source, what agreed before, what the record
tells next, the likely cause, and what helps.

The message travels to the run's status, where no prompt or answer may appear: of arguments it tells names, checksums and shapes,
never their text.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from everstep.errors import Diverged
from everstep.journal.records import Held, Intent, Json, Record
from everstep.run import guard
from everstep.run.arguments import checksum, checksums, digest
from everstep.run.markers import PATCHED, is_marker

AHEAD_SHOWN = 3
AHEAD_SEARCHED = 64
"""How far a call is looked for further on in the record, to tell another order from another code."""
PERMUTED_MAX = 6
"""Longest list whose orders are tried out: 720 digests."""
NAMES_SHOWN = 8


class Call(NamedTuple):
    """A call that agent code makes now."""

    kind: str
    key: str
    name: str
    digest: str = ""
    args: Mapping[str, Json] | None = None


class Told(NamedTuple):
    """What the record tells around the place: the last call that agreed, and what it holds next, the differing one first."""

    agreed: Record | None
    ahead: Sequence[Record]
    hint: str = ""
    """Where the replay began, if that is in the middle of the run."""


def another_way(told: Told, call: Call) -> Diverged:
    """The call is not the one that the record tells at this turn."""
    record = told.ahead[0]
    return Diverged(
        "the code took another way than the journal tells.\n"
        f"  the record:  {describe(record)}\n"
        f"  the code:    {_calls(call)}\n"
        f"{_around(told)}{_why_another_way(told, call)}\n{cures(record)}"
    )


def other_arguments(told: Told, call: Call) -> Diverged:
    """The right call with other arguments than recorded."""
    record = told.ahead[0]
    assert isinstance(record, Intent | Held)
    changes = list(_changes(record, call))
    shown = "".join(f"    {name}: {how}\n" for name, how, _ in changes[:NAMES_SHOWN])
    return Diverged(
        f"step {record.name} was called with other arguments than the journal tells.\n"
        f"  the record:  {describe(record)}, arguments with digest {record.input[:12]}…\n"
        f"  the code:    {_calls(call)}, arguments with digest {call.digest[:12]}…\n"
        f"{shown}{_around(told)}{_ORDER if _comes_later(told, call) else _why_arguments(changes)}\n{cures(record)}"
    )


def stopped_short(told: Told, code_does: str) -> Diverged:
    """The code stopped short of a call that the record tells of."""
    record = told.ahead[0]
    return Diverged(
        "the code stopped short of what the journal tells.\n"
        f"  the record:  {describe(record)}\n"
        f"  the code:    {code_does}\n"
        f"{_around(told)}{_marker_cure(record) or _CHANGED}\n{cures(record)}"
    )


def unexpected(outcome: Record, code_does: str, hint: str = "") -> Diverged:
    """An outcome is next, and nothing in the code waits for it or ever will."""
    return Diverged(
        "the journal holds an outcome that the code does not wait for.\n"
        f"  the record:  {describe(outcome)}\n"
        f"  the code:    {code_does}\n"
        f"{hint}{_CHANGED}\n{cures(outcome)}"
    )


def after_the_end(told: Told, finished: Record, call: Call) -> Diverged:
    """The run is over, and the code makes another call: its step must not run."""
    return Diverged(
        "the run is finished, and the code goes on.\n"
        f"  the record:  record {finished.seq}: the run finished\n"
        f"  the code:    {_calls(call)}\n"
        f"{_around(told)}{_CHANGED}\n{cures(finished)}"
    )


def unasked(began: Record, call: Call) -> Diverged:
    """The replay begins at a snapshot, and the code goes on without asking for its state."""
    return Diverged(
        "the code went on without asking for the state of the run.\n"
        f"  the record:  {describe(began)}\n"
        f"  the code:    {_calls(call)}\n"
        f"{began_at(began)}{cures(began)}"
    )


def began_at(record: Record | None) -> str:
    """The usual mistake where a replay begins in the middle of a run; one line, or none."""
    if record is None:
        return ""
    if record.kind == "snapshot":
        return (
            f"The replay began at the snapshot of record {record.seq}: the agent starts at its first line, and "
            "everstep.restored() gives it its state. "
            "Ask for it before the first step, put steps that belong before the loop under "
            "`if state is None:`, and take snapshots as the last thing of a round.\n"
        )
    return (
        f"The replay began at record {record.seq}, where the agent continued as new: it starts at its first line with the inputs "
        "it gave there.\n"
    )


def does_not_fit(outcome: Record, reason: str) -> Diverged:
    """A recorded result that the changed code cannot take."""
    return Diverged(
        f"{describe(outcome)}, but its value does not fit the code any more: {reason}.\n"
        "Likely the result type of the step has changed: give new fields a default, or give the step another name.\n"
        f"{cures(outcome)}"
    )


def cures(record: Record) -> str:
    """What a person can do, told at `record`."""
    fork = f"fork RUN --from-step '{record.key}'" if record.key else "fork RUN"
    return (
        "What helps:\n"
        "  the same code  run what wrote the journal: the old file or the old image (repin RUN --image OLD)\n"
        '  a guard        if the change is meant: if everstep.patched("some-id"): the new way, else: the old one\n'
        f"  a fork         a new run that keeps what comes before: {fork}\n"
        "  or start a new run for the changed code. Nothing was written and no step ran."
    )


def describe(record: Record) -> str:
    """A record in a few words."""
    what = {
        "intent": f"step {record.name} was called",
        "held": f"step {record.name} was called",
        "timer": "a timer was set (asyncio.sleep, timeout, wait_for)",
        "value": f"{_drawn(record.name)} was called",
        "result": f"step {record.name} returned",
        "failure": f"step {record.name} failed",
        "abandoned": f"step {record.name} was cancelled by the agent",
        "fired": "a timer fell due",
        "settled": f"step {record.name} was settled",
        "cancel": "the run was cancelled",
        "snapshot": "everstep.snapshot() was called",
        "segment": "everstep.continue_as_new() was called",
        "finished": "the agent returned",
    }.get(record.kind, record.kind)
    return f"record {record.seq}: {what}" + (f" at {record.key!r}" if record.key else "")


def _calls(call: Call) -> str:
    what = {
        "intent": f"calls step {call.name}",
        "timer": "sets a timer (asyncio.sleep, timeout, wait_for)",
        "value": f"calls {_drawn(call.name)}",
    }[call.kind]
    place = guard.place_of_call()
    return f"{what} at {call.key!r}" + (f" in {place}" if place else "")


def _drawn(name: str) -> str:
    """A value as it is called in code."""
    return f'everstep.patched("{name.removeprefix(PATCHED)}")' if name.startswith(PATCHED) else f"everstep.{name}()"


def _around(told: Told) -> str:
    lines = f"  agreed last: {describe(told.agreed)}\n" if told.agreed is not None else ""
    follow = [describe(r) for r in told.ahead[1 : 1 + AHEAD_SHOWN]]
    return lines + (f"  then tells:  {'; '.join(follow)}\n" if follow else "") + told.hint


# --- likely causes ------------------------------------------------------------------------------------------------

_CHANGED = (
    "Likely the code has changed, or a branch hangs on a clock, randomness, the environment or a file: agent code may only "
    "depend on its inputs, step results, everstep.now(), uuid4() and random()."
)


_ORDER = (
    "Likely the order: the record tells of this very call as well, at another turn. A set, os.listdir or a glob iterates in "
    "another order in each process (use sorted(…)), or lines were moved."
)


def _comes_later(told: Told, call: Call) -> bool:
    return any(
        isinstance(r, Intent | Held) and call.kind == "intent" and (r.name, r.input) == (call.name, call.digest)
        for r in told.ahead
    )


def _why_another_way(told: Told, call: Call) -> str:
    record = told.ahead[0]
    if is_marker(record):
        return _marker_cure(record)
    if _comes_later(told, call):
        return _ORDER
    return _CHANGED


def _marker_cure(record: Record) -> str:
    """What to do about a marker that the code has no call for."""
    if not is_marker(record):
        return ""
    id = record.name.removeprefix(PATCHED)
    return (
        f'The code has lost its everstep.patched("{id}"): put it back, or everstep.deprecate_patch("{id}") in its place if the '
        "old way is gone; it can leave the code once no run with this marker is left."
    )


Change = tuple[str, str, str]
"""Argument, how it differs, likely cause (a key of _CAUSES, or "")."""

_CAUSES = {
    "clock": "Likely a clock: {names} reads as a time. Take the time from everstep.now(), which is recorded.",
    "random": "Likely randomness: {names} reads as a random id or number. Take it from everstep.uuid4() or everstep.random().",
    "order": "Likely the order of a set, os.listdir or a glob: {names} holds the same elements in another order. Use sorted(…).",
    "signature": "Likely the step's parameters have changed: {names}. New ones change every call, even with a default.",
}


def _why_arguments(changes: Sequence[Change]) -> str:
    for cause, text in _CAUSES.items():
        names = [name for name, _, why in changes if why == cause]
        if names:
            return text.format(names=", ".join(names[:NAMES_SHOWN]))
    return (
        "Arguments must come from inputs, step results, everstep.now() and the like, not from the clock, randomness or the "
        "environment; or the code has changed."
    )


def _changes(record: Intent | Held, call: Call) -> Iterable[Change]:
    if call.args is None:
        return
    args = dict(call.args)
    recorded = record.args
    if recorded is None:  # one argument, or none, was recorded: only the digest of the whole is there
        if len(args) == 1:
            [(name, value)] = args.items()
            yield name, *_changed(value, lambda v: digest({name: v}) == record.input)
        return
    now = checksums(call.args) or {name: checksum(value) for name, value in args.items()}
    for name in sorted({*recorded, *args}):
        if name not in args:
            yield name, "recorded, but not passed now", "signature"
        elif name not in recorded:
            yield name, "new: the record has no such argument", "signature"
        elif recorded[name] != now[name]:
            wanted = recorded[name]
            how, why = _changed(args[name], lambda v, wanted=wanted: checksum(v) == wanted)  # type: ignore[misc]  # a default binds it
            yield name, f"{how} (recorded {wanted}, now {now[name]})", why
    same = [name for name in sorted(args) if recorded.get(name) == now[name]]
    if same:
        yield ", ".join(same), "as recorded", ""


def _changed(value: Json, is_recorded: Callable[[Json], bool]) -> tuple[str, str]:
    shape, why = _shape(value)
    few = isinstance(value, list) and 1 < len(value) <= PERMUTED_MAX
    if few and any(is_recorded(list(order)) for order in itertools.permutations(value)):
        return f"changed: {shape}, the same elements in another order", "order"
    return f"changed: now {shape}", why


_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d|$)")
_UUID = re.compile(r"[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}$")
_HEX = re.compile(r"(?=.*\d)[0-9a-fA-F]{16,}$")
_EPOCH_S = range(1_000_000_000, 4_000_000_000)
_MANY_DIGITS = 12


def _shape(value: Json) -> tuple[str, str]:
    """A value without its content, and the cause that it hints at."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value], ""
    if isinstance(value, int | float):
        return _shape_of_number(value)
    if isinstance(value, str):
        return _shape_of_text(value)
    return (f"a list of {len(value)}" if isinstance(value, list) else f"an object of {len(value)} fields"), ""


def _shape_of_number(value: float) -> tuple[str, str]:
    if any(int(value / unit) in _EPOCH_S for unit in (1, 1_000, 1_000_000, 1_000_000_000)):
        return "a number that reads as a time", "clock"
    if isinstance(value, float) and len(repr(value)) >= _MANY_DIGITS:
        return "a number with many digits", "random"
    return "a number", ""


def _shape_of_text(value: str) -> tuple[str, str]:
    size = f"a text of {len(value)} characters"
    if _TIME.match(value):
        return f"{size} that reads as a time", "clock"
    if _UUID.match(value) or _HEX.match(value):
        return f"{size} that reads as a random id", "random"
    return size, ""
