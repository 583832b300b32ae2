"""Delivery: agent code runs until it is idle, then gets the next outcome, in journal order.

The queue starts with the outcomes of the record and goes on with those of this process; there is no other path, so the first run
takes the same turns as every replay. A head outcome whose call waits is delivered; one whose call was cancelled is consumed in
silence; one that nothing waits for, with the agent idle, is a divergence.
"""

import asyncio
import threading
from collections import deque
from typing import TYPE_CHECKING

from everstep import faults
from everstep.errors import NotJSON, Replayed, StepFailed
from everstep.journal.records import Abandoned, Cancel, Failure, Fired, Json, Pinned, Record, Result, Settled
from everstep.run.blobs import Blobs
from everstep.run.calls import Pending, StepCall, TimerCall
from everstep.run.divergence import does_not_fit
from everstep.run.errordata import step_failed
from everstep.run.lane import is_interrupt
from everstep.run.pins import Pins, fields_of

if TYPE_CHECKING:
    from everstep.run.engine import Engine

SLICE_S = 0.02
"""Agent code that has much to do lets the rest of the process breathe this often."""
LOOK_EVERY = 64


class Delivery:
    """See the module."""

    def __init__(self, engine: "Engine") -> None:
        self.engine = engine
        self.queue: deque[Record] = engine.history.outcomes
        self.pending: dict[str, Pending] = {}
        self.blobs = Blobs(engine)
        self.run_time_ms: int = engine.history.clock_ms
        self.live = False
        """True once the recorded history was consumed; from then on bodies may run."""
        self.live_told = False
        """The store was told that this attempt is live."""
        self.replayed = 0
        self.replay_ms: int | None = None
        self.resumed_epoch_ms: int | None = None
        self.began_s = engine.clock.monotonic_s()
        self.root_done = False
        self.root_raised = ""
        """Type of the agent's exception."""
        self.cancel_delivered = False
        self.pins: Pins | None = None
        """To be pinned once the record was replayed."""
        self._recorded_left = len(self.queue)
        self._timers_to_arm: list[TimerCall] = []
        self._loading: asyncio.Task[None] | None = None
        self._leftovers_cancelled = False
        self._due = False
        self._pumping = False
        self._held = 0

    @property
    def replaying(self) -> bool:
        return self._recorded_left > 0 or bool(self.engine.history.claims)

    @property
    def busy(self) -> bool:
        """Agent code is runnable, or an outcome is on its way to it."""
        return bool(self.queue or self.engine.lane.ready or self._due or self._pumping or self._loading or self._held)

    def hold(self) -> None:
        """Agent code stands still until `release`: what it waits for is not in the journal (a resource that is being opened), so
        nothing may happen meanwhile that it could see. Nests."""
        self._held += 1

    def release(self) -> None:
        """End one `hold`."""
        self._held -= 1
        self.wake()

    # --- the pump -----------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Agent code became runnable, or an outcome arrived."""
        if not self._due and not self._pumping:
            self._due = True
            self.engine.lane.soon(self._pump)

    def add(self, outcome: Record) -> None:
        self.queue.append(outcome)
        self.wake()

    def _pump(self) -> None:
        self._due = False
        if self.engine.lane.over:
            return
        self._pumping, again = True, True
        try:
            again = self._run_agent()
        finally:
            self._pumping = False
            if again:
                self.wake()

    def _run_agent(self) -> bool:
        """True: there is more to do, after the rest of the process had its turn."""
        engine = self.engine
        ready = engine.lane.ready
        until = engine.clock.monotonic_s() + SLICE_S
        turns = 0
        while not engine.stands_still:
            while ready and not self._held:
                handle = ready.popleft()
                if not handle._cancelled:
                    self._turn(handle)
                    if engine.stands_still:
                        return False
                turns += 1
                if turns % LOOK_EVERY == 0 and engine.clock.monotonic_s() > until:
                    return True
            engine.streams.shown()
            if self._held or (engine.thread is not None and engine.thread.busy):
                return False
            if self.root_done and not self._leftovers_cancelled:
                self._cancel_leftovers()
                continue
            if self._deliver_next() or engine.streams.show_next():
                turns += 1
            elif self._idle():
                return False
            else:
                turns = 0  # bodies ran: look at the clock
            if turns % LOOK_EVERY == 0 and engine.clock.monotonic_s() > until:
                return True
        return False

    @staticmethod
    def _turn(handle: asyncio.Handle) -> None:
        try:
            handle._run()
        except (SystemExit, KeyboardInterrupt) as e:
            if is_interrupt(e):
                raise  # else its task holds it; an agent that exits has failed, it does not end the engine

    def _idle(self) -> bool:
        """Agent code is idle and nothing can be delivered now. False: go on pumping."""
        engine = self.engine
        if self._loading is not None or engine.stop_reason is not None or engine.terminating:
            engine.poke()
            return True
        if not self.live:
            if engine.history.pass_markers():
                engine.stop(engine.history.unclaimed(self.code_does()))
                return True
            self._go_live()
            if engine.stop_reason is not None:
                return True
            if self.queue:  # what waited in the inbox became an outcome while we pump, so nothing else would deliver it
                return False
        engine.start_drivers()
        if self.queue:  # bodies that never waited have ended already
            return False
        engine.writer.flush_soon()
        if not (self.live_told and engine.busy_drivers and not self.cancel_delivered):
            engine.poke()  # else a body runs, and its end comes by here: until then nothing can end, and nothing parks
        return True

    def _go_live(self) -> None:
        engine = self.engine
        if engine.config.replay_only:
            engine.stop(Replayed("the record was replayed to its end, which is all that was asked for"))
            return
        self.live = True
        if self.pins is not None and engine.history.finished is None:
            self._pin(self.pins)
        self.replay_ms = int((engine.clock.monotonic_s() - self.began_s) * 1000)
        self.resumed_epoch_ms = engine.clock.now_epoch_ms()
        for timer in sorted(self._timers_to_arm, key=lambda t: t.due):
            if not timer.gone:
                self._arm(timer)
        self._timers_to_arm.clear()
        engine.gate.go_live()
        engine.inbox.go_live()

    def _pin(self, pins: Pins) -> None:
        try:
            self.engine.put(Pinned, **fields_of(pins))
        except BaseException as e:
            self.engine.stop(e)

    # --- delivering ---------------------------------------------------------------------------------------------

    def _deliver_next(self) -> bool:
        engine = self.engine
        if not self.queue or engine.terminating or self._loading is not None:
            return False
        record = self.queue[0]
        if isinstance(record, Cancel):
            self._take(record)
            self._cancel_agent()
            return True
        call = self.pending.get(record.key)
        if call is None:
            engine.stop(engine.history.unexpected(record, self.code_does()))
            return False
        if call.gone:
            self._take(record)
            del self.pending[record.key]
            return True
        if isinstance(call, TimerCall):
            self._fire(record, call)
        else:
            self._resolve(record, call)
        return engine.stop_reason is None and self._loading is None

    @property
    def told_next(self) -> bool:
        """The record tells of another call and of another outcome."""
        return not self.live and self.engine.history.pass_markers() and bool(self.queue)

    def pass_gone(self) -> None:
        """Consume the outcomes of calls that agent code waits for no more, wherever they stand: nothing else is waited for."""
        for record in list(self.queue):
            call = self.pending.get(record.key)
            if call is not None and call.gone:
                self.queue.remove(record)
                self.queue.appendleft(record)
                self._take(record)
                del self.pending[record.key]

    def restart(self) -> None:
        """Another agent function is about to run."""
        self.root_done = self._leftovers_cancelled = False

    def deliver_to(self, call: StepCall) -> None:
        """Deliver the head outcome if it is this call's: a sync agent waits for nothing else. A blob is not loaded here, as this
        runs on the agent's own thread."""
        if self.queue and self.queue[0].key == call.key and self.engine.stop_reason is None:
            self._deliver_next()

    def _take(self, record: Record) -> None:
        self.queue.popleft()
        self.run_time_ms = max(self.run_time_ms, record.time)
        if self._recorded_left:
            self._recorded_left -= 1
            if not isinstance(record, Fired | Cancel):
                self.replayed += 1
            faults.reach("in_replay")

    def _fire(self, record: Record, timer: TimerCall) -> None:
        if not isinstance(record, Fired):
            self.engine.stop(self.engine.history.unexpected(record, f"waits for a timer at {timer.key!r}"))
            return
        self._take(record)
        self.run_time_ms = max(self.run_time_ms, timer.due)
        del self.pending[timer.key]
        self.engine.lane.ready.append(timer.handle)

    def _resolve(self, record: Record, call: StepCall) -> None:
        value: object = None
        error: BaseException | None = None
        if isinstance(record, Result) or (isinstance(record, Settled) and record.decision == "done"):
            known, data = self.blobs.look_up(record.value)
            if not known and threading.get_ident() == self.engine.lane.thread:
                return  # `deliver_to`
            if not known:
                self._loading = self.engine.lane.task(self._load(record.value), "load a blob")
                return
            try:
                value = call.step.signature.result.decode(data)
            except NotJSON as e:
                self.engine.stop(does_not_fit(record, str(e)))
                return
        elif isinstance(record, Failure):
            error = step_failed(record, call.key)
        elif isinstance(record, Settled) and record.type is not None:
            said = f" ({record.reason}; {record.by})" if record.reason else f" (given up by {record.by})"
            error = StepFailed(record.type, (record.message or "") + said, record.data, step=record.name, key=call.key)
        elif isinstance(record, Settled):
            reason = record.reason or "settled as failed"
            error = StepFailed("StepUncertain", f"{reason} ({record.by})", None, step=record.name, key=call.key)
        else:
            what = "still waits for it" if isinstance(record, Abandoned) else "waits for its result"
            self.engine.stop(self.engine.history.unexpected(record, f"{what} at {call.key!r}"))
            return
        self._take(record)
        del self.pending[call.key]
        self._hand_over(call, value, error)

    def _hand_over(self, call: StepCall, value: object, error: BaseException | None) -> None:
        call.delivered = True
        if call.waiter.done():
            return
        if error is None:
            self.engine.lane.deliver(call.waiter.set_result, value)
        else:
            self.engine.lane.deliver(call.waiter.set_exception, error)

    async def _load(self, reference: Json) -> None:
        try:
            await self.blobs.load(reference)
        except BaseException as e:
            self.engine.stop(e)
        finally:
            self._loading = None
            self.wake()

    # --- timers -------------------------------------------------------------------------------------------------

    def add_timer(self, timer: TimerCall) -> None:
        self.pending[timer.key] = timer
        if timer.past is not None and timer.past.outcome is not None:
            return
        if self.live:
            self._arm(timer)
        else:
            self._timers_to_arm.append(timer)

    def _arm(self, timer: TimerCall) -> None:
        engine = self.engine
        if engine.history.finished is not None:
            return  # a finished run is only looked at: what had not fallen due by then never does
        delay_s = (timer.due - engine.clock.now_epoch_ms()) / 1000
        # A wall clock that is set back must not fire early: the record says when it was due.
        timer.live = engine.lane.at(delay_s, lambda: engine.when_not_parking(lambda: self._ring(timer)))

    def _ring(self, timer: TimerCall) -> None:
        engine = self.engine
        if timer.gone or engine.stop_reason is not None or engine.terminating or engine.finishing:
            return
        if timer.due > engine.clock.now_epoch_ms():
            self._arm(timer)
            return
        timer.fired = True
        try:
            self.add(engine.put(Fired, key=timer.key))
        except BaseException as e:
            engine.stop(e)

    def cancel_timer(self, timer: TimerCall) -> None:
        """Agent code cancelled it."""
        if timer.gone:
            return
        timer.gone = True
        if timer.live is not None:
            timer.live.cancel()
        if not timer.fired and (timer.past is None or timer.past.outcome is None):
            self.pending.pop(timer.key, None)

    # --- the end of the agent -----------------------------------------------------------------------------------

    def _cancel_agent(self) -> None:
        """A person cancelled the run: unwind agent code."""
        self.cancel_delivered = True
        self.engine.cancel_root()

    def _cancel_leftovers(self) -> None:
        """The agent returned: its other tasks are cancelled, as asyncio.run does."""
        self._leftovers_cancelled = True
        lane = self.engine.lane
        for task in sorted(lane.tasks, key=hash):
            lane.deliver(task.cancel)

    def forget(self) -> None:
        """The attempt is over: keep nothing of its journal."""
        self.queue.clear()
        self.pending.clear()
        self.blobs = Blobs(self.engine)

    @property
    def agent_ended(self) -> bool:
        return self.root_done and not self.engine.lane.tasks and not self.queue

    def waits(self) -> list[Pending]:
        """What agent code waits for, in the order of the calls."""
        return [call for call in self.pending.values() if not call.gone]

    def code_does(self) -> str:
        """What agent code is at, for a divergence."""
        if self.root_done:
            return f"the agent has {f'raised {self.root_raised}' if self.root_raised else 'returned'}"
        names = [
            f"step {c.step.name} at {c.key!r}" if isinstance(c, StepCall) else f"a timer at {c.key!r}"
            for c in self.waits()
        ]
        if not names:
            return "waits for nothing that the journal knows"
        return f"waits for {', '.join(names[:5])}" + (f" and {len(names) - 5} more" if len(names) > 5 else "")
