"""Chunks of a stream on their way from a step's body to the agent that consumes it.

The journal knows the final message only. A chunk is shown to agent code at a moment when it is idle, alone: the code that runs
because of it, up to the next idle moment, may look at it, print it, keep it, but must not call steps, timers, tasks or values,
for on replay there is no such moment. Such a call raises BadCall, as does one in the middle of a `for` over the stream. The end
of the stream is the step's outcome: it has its place in the journal, and everything may follow it.

On replay the final message comes as a few chunks at that place. What depends on how many chunks there were is not the same then.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from everstep.errors import BadCall
from everstep.run.retry import Retry
from everstep.run.scope import SCOPE

if TYPE_CHECKING:
    from everstep.run.calls import StepCall
    from everstep.run.engine import Engine

END = object()
"""No more chunks."""


class Streams:
    """The streams that the agent of one attempt consumes."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._waiting: list[Channel] = []
        self._showing = ""
        """The stream whose chunk is being looked at."""
        self._reading: dict[str, str] = {}
        """Scopes in the middle of a stream, with its name."""

    def wants(self, channel: "Channel") -> None:
        self._waiting.append(channel)
        self._engine.delivery.wake()

    def forget(self, channel: "Channel") -> None:
        if channel in self._waiting:
            self._waiting.remove(channel)

    def show_next(self) -> bool:
        """Agent code is idle: give it one chunk. False: there is none."""
        if self._engine.terminating:
            return False
        for channel in self._waiting:
            if channel.chunks:
                self._waiting.remove(channel)
                self._showing = channel.name
                channel.show()
                return True
        return False

    def shown(self) -> None:
        """Agent code is idle again."""
        self._showing = ""

    def reading(self, name: str) -> None:
        """The calling task is in the middle of a stream; "" when it is through."""
        scope = SCOPE.get()
        if scope is None:
            return
        if name:
            self._reading[scope.path] = name
        else:
            self._reading.pop(scope.path, None)

    def check(self) -> None:
        """A call of agent code that the journal would know of. Raises BadCall if it is made because of a chunk."""
        if not self._showing and not self._reading:
            return
        scope = SCOPE.get()
        name = self._showing or (self._reading.get(scope.path) if scope is not None else None)
        if name:
            raise BadCall(
                f"a step, timer, task or value was used in the middle of the stream {name}. Its chunks are not in the "
                f"journal, so a replay could not repeat that. Read the stream to its end first "
                "(`await stream.close()` reads the rest)"
            )


class Channel:
    """One stream; the waiter of its step. `few` makes chunks of a final message, `error` the exception of a failure."""

    def __init__(
        self,
        engine: "Engine",
        name: str,
        few: Callable[[Any], Sequence[object]],  # of the step's own result
        error: Callable[[BaseException], BaseException],
        *,
        live: bool,
    ) -> None:
        self._engine = engine
        self.name = name
        self.chunks: deque[object] = deque()
        self.call: StepCall | None = None
        self._few = few
        self._error = error
        self._live = live
        self._passed = 0
        self._over = False
        self._failed: BaseException | None = None
        self._want: asyncio.Future[object] | None = None

    # --- in the step's body -------------------------------------------------------------------------------------

    def begin_try(self) -> None:
        """What an earlier try said was not shown to anybody."""
        self.chunks.clear()

    def put(self, chunk: object) -> None:
        """A chunk arrived."""
        if self._live and not self._over:
            self.chunks.append(chunk)
            if self._want is not None:
                self._engine.delivery.wake()

    def try_failed(self) -> None:
        """Nobody has seen the rest, and nobody will."""
        self.chunks.clear()

    def retry(self, retry: Retry) -> Retry:
        """The step's, as far as agent code has seen nothing: after that another try would say it twice, so the step fails."""
        asked = retry.retry_if
        return replace(retry, retry_if=lambda error: not self._passed and (asked is None or asked(error)))

    # --- as the waiter of the step ------------------------------------------------------------------------------

    def set_result(self, result: Any) -> None:  # the final message
        if not self._passed and not self.chunks:
            self.chunks.extend(self._few(result))
        self._end()

    def set_exception(self, exception: BaseException) -> None:
        self._failed = self._error(exception)
        self.chunks.clear()
        self._end()

    def done(self) -> bool:
        return self._over

    def _end(self) -> None:
        self._over = True
        self._engine.streams.forget(self)
        if self._want is not None:
            self._hand(self._next_or_end())

    # --- in agent code ------------------------------------------------------------------------------------------

    async def next(self) -> object:
        """The next chunk, or END. Raises what the step failed with."""
        if not self._over:
            self._want = self._engine.loop.create_future()
            self._engine.streams.wants(self)
            try:
                chunk = await self._want
            except BaseException:
                self._want = None
                self._engine.streams.forget(self)
                self._engine.streams.reading("")
                if self.call is not None:
                    self._engine.forsake(self.call)
                raise
        else:
            chunk = self._next_or_end()
        if chunk is END:
            self._engine.streams.reading("")
            if self._failed is not None:
                raise self._failed
            return END
        self._engine.streams.reading(self.name)
        return chunk

    async def drain(self) -> None:
        """Read the rest and look at none of it. What the step failed with is not raised: nobody wants its result."""
        while not self._over or self.chunks:
            try:
                if await self.next() is END:
                    return
            except Exception:
                return
        self._engine.streams.reading("")

    def _next_or_end(self) -> object:
        return self.chunks.popleft() if self.chunks else END

    def show(self) -> None:
        """Hand one chunk over, at an idle moment."""
        self._passed += 1
        self._hand(self.chunks.popleft())

    def _hand(self, chunk: object) -> None:
        want, self._want = self._want, None
        if want is not None and not want.done():
            self._engine.lane.deliver(want.set_result, chunk)
