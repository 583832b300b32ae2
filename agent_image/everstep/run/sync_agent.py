"""A sync agent: one dedicated thread, which alone makes its calls.

The thread hands each call to the loop's thread and waits. While it waits, a sync step's body without a timeout runs on it, so
that code that minds its thread (a SQLite connection, a debugger) feels at home; a body with a timeout runs on a thread of its
own.
"""

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from everstep.errors import Frozen
from everstep.ids import StepKey
from everstep.journal.records import Json
from everstep.run.body import BodyRun
from everstep.run.calls import StepCall
from everstep.run.lane import AgentTimer
from everstep.run.scope import SCOPE, Scope
from everstep.run.several import Batch, Prepared
from everstep.run.steps import Step

if TYPE_CHECKING:
    from everstep.run.engine import Engine


class SyncWaiter:
    """Where the outcome of a call goes: back to the waiting thread."""

    def __init__(self, thread: "SyncAgentThread") -> None:
        self._thread = thread
        self._act: Callable[[], Any] | None = None  # gives the step's own result
        self.direct = False
        """Answered within the agent's own thread."""

    def set_result(self, result: object) -> None:
        self._set(lambda: result)

    def set_exception(self, error: BaseException) -> None:
        self._set(lambda: _throw(error))

    def _set(self, act: Callable[[], Any]) -> None:  # as `_act`
        self._act = act
        if not self.direct:
            self._thread.answer(act)

    def done(self) -> bool:
        return self._act is not None

    def result(self) -> Any:  # as `_act`
        assert self._act is not None
        return self._act()


class SyncAgentThread:
    """The thread. `busy` is true while agent code runs on it; only the loop's thread reads and writes it."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._answers: queue.SimpleQueue[tuple[bool, Callable[[], Any]]] = queue.SimpleQueue()  # values of any step
        self._call: StepCall | None = None
        self._batch: Batch | None = None
        self._timer: AgentTimer | None = None
        self._interruption: BaseException | None = None
        self.busy = False

    def start(
        self, agent: Callable[[], object], scope: Scope, on_end: Callable[[object, BaseException | None], None]
    ) -> None:
        """Run agent code; `on_end` is called in the loop's thread."""
        context = contextvars.copy_context()
        context.run(SCOPE.set, scope)
        self.busy = True

        def main() -> None:
            value: object = None
            error: BaseException | None = None
            self._engine.lane.thread = threading.get_ident()
            try:
                value = context.run(agent)
            except BaseException as e:
                error = e
            self._to_loop(lambda: self._ended(on_end, value, error))

        threading.Thread(target=main, name="everstep agent", daemon=True).start()

    # --- in the agent's thread ----------------------------------------------------------------------------------

    def call_step(
        self, scope: Scope, step: Step[..., Any], data: Mapping[str, Json], digest: str
    ) -> Any:  # the step's result
        waiter = SyncWaiter(self)
        context = contextvars.copy_context()
        if self._engine.delivery.told_next:
            call = StepCall(scope.next_step(), step, data, digest, context, waiter)
            self._replay(call, waiter)
            return waiter.result() if call.delivered else self.ask(lambda: self._adopt(call))

        def request() -> None:
            call = StepCall(scope.next_step(), step, data, digest, context, waiter)
            self._adopt(call)
            self._engine.begin(call)

        return self.ask(request)

    def map_step(
        self, scope: Scope, step: Step[..., Any], items: list[Prepared], concurrency: int, return_exceptions: bool
    ) -> Any:  # the step's results
        def request() -> None:
            self._batch = Batch(scope, step, items, concurrency, return_exceptions, self.answer)
            self._batch.go_on()

        return self.ask(request)

    def _replay(self, call: StepCall, waiter: SyncWaiter) -> None:
        """A call that the record tells of is answered here and now: while agent code runs and history lasts, the loop's thread
        touches none of this, and two thread switches per step would make replay slow."""
        waiter.direct = True
        try:
            self._engine.begin(call)
            self._engine.delivery.deliver_to(call)
        except Exception:
            raise
        except BaseException as e:  # a test's crash: it ends the loop, not this thread
            error = e
            self._to_loop(lambda: _throw(error))
        if self._engine.stop_reason is not None:
            self._stand_still()
        waiter.direct = False

    def _stand_still(self) -> NoReturn:
        """The attempt is over (diverged): agent code never goes on, not even into its `finally` blocks."""
        self._to_loop(self._engine.poke)
        while True:
            threading.Event().wait()

    def give_up(self, why: BaseException) -> NoReturn:
        """End the attempt from agent code."""
        self._to_loop(lambda: self._engine.stop(why))
        self._stand_still()

    def _adopt(self, call: StepCall) -> None:
        self._call = call

    def sleep_until(self, scope: Scope, when_s: Callable[[], float]) -> None:
        """A durable timer; `when_s` is asked in the loop's thread, where run time is."""

        def request() -> None:
            handle = asyncio.Handle(lambda: self.answer(_nothing), (), self._engine.loop, contextvars.Context())
            self._timer = self._engine.start_timer(scope, when_s(), handle)

        self.ask(request)

    def draw_value(self, scope: Scope, name: str, draw: Callable[[], Json], key: StepKey | None = None) -> Json:
        if self._engine.history.pass_markers(key or ""):
            try:
                return self._engine.draw_value(scope, name, draw, key)
            except Frozen:
                self._stand_still()

        def request() -> None:
            value = self._engine.draw_value(scope, name, draw, key)
            self.answer(lambda: value)

        return self.ask(request)

    def ask(self, request: Callable[[], None]) -> Any:  # whatever the answer gives
        """Hand a request to the loop's thread and wait for its answer; meanwhile run bodies that are sent here."""
        self._engine.check_alive()
        self._to_loop(lambda: self._enter(request))
        while True:
            final, act = self._answers.get()
            if final:
                return act()
            act()

    # --- in the loop's thread -----------------------------------------------------------------------------------

    def _enter(self, request: Callable[[], None]) -> None:
        self.busy = False
        if self._engine.terminating:
            return  # agent code stands still until the process ends
        try:
            request()
        except Frozen:
            return  # the attempt is over: agent code never goes on
        except KeyboardInterrupt:
            raise  # a test's crash: it ends the loop, not the agent
        except BaseException as e:
            error = e
            self.answer(lambda: _throw(error))
        self._engine.delivery.wake()

    def answer(self, act: Callable[[], Any]) -> None:  # whatever the call gives
        """Let agent code go on with what `act` returns or raises."""
        self.busy = True
        self._call = None
        self._batch = None
        self._timer = None
        self._answers.put((True, act))

    def run_body(self, run: BodyRun, body: Callable[[], object], context: contextvars.Context) -> None:
        run.end.add_done_callback(lambda _end: self._body_ended())
        self._answers.put((False, run.acting(body, context)))

    def interrupt(self, error: BaseException) -> None:
        """Raise in agent code at the call it waits in. A body on its own thread ends first: nothing can stop it."""
        if self.busy:
            return
        if self._timer is not None:
            self._timer.cancel()
            self.answer(lambda: _throw(error))
            return
        if self._batch is not None:
            self._batch.forsake()
            self.answer(lambda: _throw(error))
            return
        call = self._call
        if call is None:
            return
        self._engine.forsake(call)
        driver = self._engine.drivers.get(call.key)
        if driver is not None and driver.body is not None and driver.body.patient and not driver.body.end.done():
            self._interruption = error
        else:
            self.answer(lambda: _throw(error))

    def _body_ended(self) -> None:
        error, self._interruption = self._interruption, None
        if error is not None:
            self.answer(lambda: _throw(error))

    def _ended(
        self, on_end: Callable[[object, BaseException | None], None], value: object, error: BaseException | None
    ) -> None:
        self.busy = False
        on_end(value, error)

    def _to_loop(self, act: Callable[[], None]) -> None:
        try:
            self._engine.loop.call_soon_threadsafe(act, context=self._engine.lane.context())
        except RuntimeError:
            threading.Event().wait()  # the attempt is over and its loop closed: agent code never goes on


def _nothing() -> None:
    return None


def _throw(error: BaseException) -> Any:  # never returns
    raise error
