"""One program, from its seed to its verdict: an undisturbed run, a crashed one, a replay, and what must hold between them.

(i)   what was durable at a crash is a byte-exact prefix of the final journal;
(ii)  replaying the final journal gives the same end, runs no body and writes nothing;
(iii) a body starts at most once, and once more for each failed try and each crash that met it in flight; an at_most_once effect
      happens at most once;
(iv)  with latencies fixed by key the crashed run gives what the undisturbed one gives;
(v)   each call has one outcome, which comes after it, and each result belongs to its call; a run is cancelled once;
(vi)  the journal cut after any record, also where no crash would cut it, is gone on from under other latencies: what is left
      stays as it was byte for byte, none of its recorded steps runs again, and what follows replays.
"""

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from everstep.errors import Terminated
from everstep.journal.records import Finished, Intent, Record
from everstep.journal.store import Store
from everstep.testing import Ended
from tests.property import crashes, trees
from tests.property.crashes import CrashRun
from tests.property.trees import Node

End = Ended[dict[str, Any]]
MAX_ATTEMPTS = 40
CUT_SHARE = 0.5
"""Of the programs without fixed latencies: each costs a run more."""


class Broken(Exception):
    """The engine did what it must not."""


@dataclass
class Verdict:
    ran: set[str] = field(default_factory=set)
    attempts: int = 0
    crashes: int = 0
    fixed: bool = False
    """(iv) was checked."""
    tied: bool = False
    """(iv) does not count: two things fell due in the same millisecond."""


def check(seed: int, tree: Node | None = None, open_real: Callable[[], Store] | None = None) -> Verdict:
    """Raises Broken."""
    rng = random.Random(f"crashes {seed}")
    tree = trees.program(seed) if tree is None else tree
    fixed = rng.random() < 0.65
    linger_s = rng.choice([float("inf"), 2000.0])
    verdict = Verdict()

    def fresh(store: Callable[[], Store] | None) -> CrashRun:
        crashes.forget_threads()
        return CrashRun(tree, seed, fixed=fixed, linger_s=linger_s, open_real=store)

    calm = fresh(None)
    calm_end, moments = _undisturbed(calm, verdict)
    _check_end(calm, Counter())
    run = fresh(open_real)
    end, allowed = _crashed(run, rng, moments, verdict)
    _check_end(run, allowed)
    _check_replay(run, end, verdict)
    verdict.ran |= run.world.ran | calm.world.ran
    if not fixed and rng.random() < CUT_SHARE:
        _check_cut(run, rng, verdict)
    if fixed and not trees.is_risky(tree):
        verdict.tied = tree[0] != "sync_agent" and _tied(calm.records)
        verdict.fixed = not verdict.tied
        if verdict.fixed and _lasting(calm_end) != _lasting(end):
            raise Broken(
                f"(iv) the crashed run ended otherwise than the undisturbed one:\n{_lasting(calm_end)}\n{_lasting(end)}"
            )
    return verdict


def _undisturbed(run: CrashRun, verdict: Verdict) -> tuple[End, int]:
    """Its end and the number of moments of its first attempt."""
    moments = 0
    for _ in range(MAX_ATTEMPTS):
        end: End = run.attempt()
        verdict.attempts += 1
        moments = moments or len(run.reached)
        if end.kind != "parked":
            return _ended(run, end), moments
        _resume(run, end)
    raise Broken(f"not finished after {MAX_ATTEMPTS} attempts: {end}")


def _crashed(run: CrashRun, rng: random.Random, moments: int, verdict: Verdict) -> tuple[End, Counter[str]]:
    """Its end, and how many starts more than one each key may have had for crashes."""
    left = rng.choice([1, 1, 2, 3])
    cancel_at = rng.randint(1, moments) if run.may_be_cancelled and rng.random() < 0.2 else 0
    options = {"cancel_grace_s": rng.choice([30, 1e8])} | ({"inbox_poll_s": 60} if cancel_at else {})
    allowed: Counter[str] = Counter()
    for _ in range(MAX_ATTEMPTS):
        before, told = Counter(run.bodies), _outcomes(run.records)
        disturbance = _disturbance(run, rng, moments) if left else {}
        if cancel_at:
            disturbance = _at(cancel_at, run.cancel) | {"crash_at": None}
            cancel_at = 0
            verdict.ran.add("person_cancels")
        end: End = run.attempt(**options, **disturbance)
        verdict.attempts += 1
        started = run.bodies - before
        if again := told & set(started):
            raise Broken(f"(iii) recorded steps ran again: {sorted(again)}")
        if end.kind == "parked":
            _resume(run, end)
        elif end.kind == "crashed" or isinstance(end.error, Terminated):
            left -= 1
            verdict.crashes += end.kind == "crashed"
            verdict.ran.add("lost" if end.kind == "crashed" else "terminated")
            allowed.update(set(started) - _outcomes(run.records))
            run.after_crash()
        else:
            return _ended(run, end), allowed
    raise Broken(f"not finished after {MAX_ATTEMPTS} attempts: {end}")


def _disturbance(run: CrashRun, rng: random.Random, moments: int) -> dict[str, Any]:  # options of an attempt
    """SIGKILL mostly, else SIGTERM. With fixed latencies there is no grace: time must not pass while agent code stands still."""
    moment = rng.randint(1, moments)
    if rng.random() < 0.8:
        return {"crash_at": f"any:{moment}"}
    return _at(moment, run.terminate) | {"grace_s": 0 if run.world.fixed else rng.choice([0, 60, 1e5])}


def _at(moment: int, act: Callable[[], None]) -> dict[str, Any]:  # options of an attempt
    reached = itertools.count(1)
    return {"on_point": lambda _point: act() if next(reached) == moment else None}


def _resume(run: CrashRun, end: End) -> None:
    if not end.waits:
        raise Broken("parked, and nothing to wait for")
    run.answer(end.waits)
    if all(wait.kind == "timer" for wait in end.waits) and end.wake_epoch_ms is not None:
        run.sleep((end.wake_epoch_ms - run.clock.now_epoch_ms()) / 1000)


def _ended(run: CrashRun, end: End) -> End:
    """A program may fail, but only by its own error."""
    last = run.records[-1] if run.records else None
    if isinstance(last, Finished) and last.outcome == "cancelled":
        return end
    if isinstance(last, Finished) and (last.type or "Oops").rpartition(".")[2] in ("Oops", "ExceptionGroup"):
        return end
    raise Broken(f"ended {end.kind}: {type(end.error).__name__}: {end.message or end.error}")


def _outcomes(records: list[Record]) -> set[str]:
    return {r.key for r in records if _is_outcome(r)}


def _is_outcome(r: Record) -> bool:
    return bool(r.key) and r.OUTCOME and not (r.kind == "settled" and r.decision == "again")


def _check_end(run: CrashRun, allowed: Counter[str]) -> None:
    """(iii) and (v)"""
    records = run.records
    if run.world.wrong:
        raise Broken(f"(v) results went to other calls: {run.world.wrong}")
    intents = {r.key: r for r in reversed(records) if isinstance(r, Intent)}  # the first of each
    outcomes = [r for r in records if _is_outcome(r)]
    for key, count in Counter(r.key for r in outcomes).items():
        if count > 1:
            raise Broken(f"(v) {key} has {count} outcomes")
    ends = {r.key: r.seq for r in outcomes}
    if sum(r.kind == "cancel" for r in records) > 1:
        raise Broken("(v) the run was cancelled twice")
    last = records[-1]
    cancelled = isinstance(last, Finished) and last.outcome == "cancelled"
    cut_off = cancelled and last.type == "TimeoutError"
    asked = {r.key for r in records if r.kind == "uncertain"} if cancelled else set()  # it does not wait for answers
    for key, intent in intents.items():
        if ends.get(key, 0) < intent.seq and key not in asked and not cut_off:  # clean-up cut off leaves calls open
            raise Broken(f"(v) the call of {intent.name} at {key} has no outcome")
    failed = Counter(r.key for r in records if r.kind == "try_failed")
    for key, starts in run.bodies.items():
        if run.compact and key not in intents:
            continue  # its epoch was compacted
        if starts > 1 + failed[key] + allowed[key]:
            raise Broken(
                f"(iii) {key} started {starts} times: {failed[key]} failed tries, {allowed[key]} crashes in flight"
            )
    for key, intent in intents.items():
        if failed[key] > max(0, _max_tries(intent.name) - 1):
            raise Broken(f"(iii) {intent.name} at {key} had {failed[key] + 1} tries")
        if intent.effect == "at_most_once" and run.world.effects[intent.idem] > 1:
            raise Broken(f"(iii) at_most_once {key} happened {run.world.effects[intent.idem]} times")
    if any(count > 1 for count in run.world.once.values()):
        raise Broken(f"(iii) at_most_once effects happened twice: {run.world.once.most_common(3)}")


def _max_tries(name: str) -> int:
    from tests.property.outside import MAX_TRIES

    return MAX_TRIES if name == "put" else 1


def _check_replay(run: CrashRun, end: End, verdict: Verdict) -> None:
    """(ii)"""
    effects, raw = Counter(run.world.effects), run.raw_records
    twin = run.copy()
    again: End = twin.attempt(run_to_end=True)
    verdict.attempts += 1
    if again.kind == "stopped":
        raise Broken(f"(ii) the final journal does not replay: {again.error}")
    if twin.bodies or run.world.effects != effects or twin.raw_records != raw:
        raise Broken(f"(ii) the replay ran {dict(twin.bodies)} and wrote {len(twin.raw_records) - len(raw)} records")
    if _whole(again) != _whole(end):
        raise Broken(f"(ii) the replay ended otherwise:\n{_whole(end)}\n{_whole(again)}")


def _check_cut(run: CrashRun, rng: random.Random, verdict: Verdict) -> None:
    """(vi). The last of the checks: behind the cut effects happen again, and rightly so."""
    raw = run.raw_records
    if run.compact or len(raw) < 3:
        return  # a journal that begins at a snapshot has lost what the cut would need
    twin = run.copy()
    at = rng.randint(1, len(raw) - 1)
    twin.cut(at)
    told = _outcomes(twin.records)
    for _ in range(MAX_ATTEMPTS):
        end: End = twin.attempt()
        verdict.attempts += 1
        if end.kind != "parked":
            break
        _resume(twin, end)
    if twin.raw_records[:at] != raw[:at]:
        raise Broken(f"(vi) records before the cut at {at} have changed")
    if again := told & set(twin.bodies):
        raise Broken(f"(vi) recorded steps ran again behind the cut at {at}: {sorted(again)}")
    _check_replay(twin, _ended(twin, end), verdict)


def _whole(end: End) -> str:
    return json.dumps([end.kind, end.value, end.message])


def _lasting(end: End) -> str:
    """Without drawn values: a draw that was lost with its process is rightly drawn anew."""
    return json.dumps([end.kind, end.value["seen"] if end.value else None, end.message])


def _tied(records: list[Record]) -> bool:
    times = Counter(r.time for r in records if r.kind in ("result", "failure", "fired", "try_failed"))
    return any(n > 1 for n in times.values())
