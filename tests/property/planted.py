"""Bugs that an engine like this could have, planted one at a time: each must be found within a bounded number of programs.

Each is a small change of one method. What finds it is one of the checks, not a test written for it.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from everstep.journal.records import Abandoned, Fired, Intent
from everstep.journal.writer import JournalWriter
from everstep.run import lane, ordered
from everstep.run.delivery import Delivery
from everstep.run.driver import StepDriver
from everstep.run.engine import Engine
from everstep.run.history import History
from everstep.run.scope import Scope
from everstep.run.tries import Tries


def outcomes_out_of_order() -> None:
    """Delivers the newest outcome first where several wait."""
    deliver = Delivery._deliver_next

    def next_(self: Delivery) -> bool:
        if self.live and len(self.queue) > 1:
            self.queue.rotate(1)
        return deliver(self)

    _set(Delivery, "_deliver_next", next_)


def delivered_before_idle() -> None:
    """Delivers outcomes while agent code is still runnable."""
    turn = Delivery._turn
    delivery: list[Delivery] = []
    run = Delivery._run_agent

    def run_agent(self: Delivery) -> bool:
        delivery[:] = [self]
        return run(self)

    def turn_(handle: asyncio.Handle) -> None:
        turn(handle)
        if delivery[0].queue and delivery[0].queue[0].key in delivery[0].pending:
            delivery[0]._deliver_next()

    _set(Delivery, "_run_agent", run_agent)
    _set(Delivery, "_turn", staticmethod(turn_))


def keyed_by_finishing_order() -> None:
    """The first result of a step goes to the first call of that step that is open."""
    put = Engine.put_outcome

    def put_outcome(self: Engine, kind: Any, call: Any, **fields: Any) -> None:
        for other in self.delivery.pending.values():
            same = getattr(other, "step", None) is call.step and not other.gone  # type: ignore[union-attr]  # timers have none
            if same and other.key not in {r.key for r in self.delivery.queue}:
                call = other if fields.get("value") is not None else call
                break
        put(self, kind, call, **fields)

    _set(Engine, "put_outcome", put_outcome)


def cancelled_without_a_record() -> None:
    """A cancelled call ends without an outcome."""
    _set(StepDriver, "_abandon", lambda *_, **__: False)


def abandoned_is_skipped() -> None:
    """The record of a cancelled call is not read."""
    outcome = History._outcome

    def read(self: History, record: Any) -> None:
        if not isinstance(record, Abandoned):
            outcome(self, record)

    _set(History, "_outcome", read)


def body_before_intent() -> None:
    """A body begins before its intent is durable."""

    async def durable(self: JournalWriter, seq: int) -> None:
        await asyncio.sleep(0)

    drain = JournalWriter.durable

    async def drained(self: JournalWriter) -> None:
        await drain(self, self._sealed.seq)

    _set(JournalWriter, "durable", durable)
    _set(JournalWriter, "drain", drained)


def gone_waiter_ignored() -> None:
    """A call that the agent cancelled is taken for one that waits."""
    resolve = Delivery._deliver_next

    def next_(self: Delivery) -> bool:
        call = self.pending.get(self.queue[0].key) if self.queue else None
        if call is not None and hasattr(call, "step") and not self.live:
            call.gone = False
        return resolve(self)

    _set(Delivery, "_deliver_next", next_)


def timers_early_on_replay() -> None:
    """On replay a recorded timer fires as soon as it is set."""
    add = Delivery.add_timer

    def add_timer(self: Delivery, timer: Any) -> None:
        add(self, timer)
        fired = timer.past.outcome if timer.past is not None else None
        if isinstance(fired, Fired) and fired in self.queue:
            self.queue.remove(fired)
            self.queue.appendleft(fired)

    _set(Delivery, "add_timer", add_timer)


def timers_begin_again() -> None:
    """After a crash a timer waits its whole time again."""
    add = Delivery.add_timer

    def add_timer(self: Delivery, timer: Any) -> None:
        if timer.past is not None and timer.past.outcome is None:
            timer.due += self.engine.clock.now_epoch_ms() - timer.created
        add(self, timer)

    _set(Delivery, "add_timer", add_timer)


def recorded_step_runs_again() -> None:
    """A recorded read runs once more: "it does no harm"."""
    begin = Engine.begin

    def again(self: Engine, call: Any) -> None:
        begin(self, call)
        if call.past is not None and call.past.outcome is not None and call.step.effect == "read":
            self._unstarted.append(call)

    _set(Engine, "begin", again)


def keys_shared_between_tasks() -> None:
    """Sibling tasks get the same scope."""
    _set(Scope, "next_task", lambda self: Scope(self.engine, f"{self.path}t/"))


def unordered_sets() -> None:
    """Sets of tasks iterate by address, as plain asyncio's do."""
    _set(lane.AgentTask, "__hash__", object.__hash__)
    _set(lane.AgentFuture, "__hash__", object.__hash__)
    _set(ordered, "_set", set)
    asyncio.tasks.set = set  # type: ignore[attr-defined]  # see everstep.run.ordered


def probe_forgotten() -> None:
    """An at_most_once step that was lost in flight simply runs again."""
    take_up = StepDriver._take_up

    async def take(self: StepDriver) -> bool:
        past = self.call.past
        if past is not None and isinstance(past.last, Intent) and not self.call.gone:
            return True
        return await take_up(self)

    _set(StepDriver, "_take_up", take)


def values_drawn_again() -> None:
    """A recorded value is drawn anew."""
    draw_value = Engine.draw_value

    def draw(self: Engine, scope: Any, name: str, make: Any, *rest: Any) -> Any:
        recorded = bool(self.history.claims)
        value = draw_value(self, scope, name, make, *rest)
        return make() if recorded else value

    _set(Engine, "draw_value", draw)


def tries_forgotten() -> None:
    """Failed tries of a lost process do not count."""
    made = Tries.__init__

    def make(self: Tries, call: Any) -> None:
        made(self, call)
        _set(self, "failures", 0)

    _set(Tries, "__init__", make)


def _set(owner: Any, name: str, value: Any) -> None:
    if not hasattr(owner, name):
        raise AttributeError(f"{owner} has no {name} any more: plant this bug anew")
    setattr(owner, name, value)


BUGS: dict[str, Callable[[], None]] = {
    f.__name__: f
    for f in (
        outcomes_out_of_order, delivered_before_idle, keyed_by_finishing_order, cancelled_without_a_record,
        abandoned_is_skipped, body_before_intent, gone_waiter_ignored, timers_early_on_replay, timers_begin_again,
        recorded_step_runs_again, keys_shared_between_tasks, unordered_sets, probe_forgotten, values_drawn_again,
        tries_forgotten,
    )
}  # fmt: skip
