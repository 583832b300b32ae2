"""Heartbeats: a body says that it is alive and how far it came, and the next try begins there, also in another process.

A heartbeat costs a few attributes. Its details become a record at most every 0.8 × heartbeat_timeout (30 s without one) and only
when they changed, and the longer the step runs the rarer: never closer than a 64th of its running time. So a step of a day
writes some hundred of them, however often it beats and fails, and a crash loses a small part of the way.
"""

import asyncio
import contextlib
import contextvars
import functools
import threading
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from everstep import faults
from everstep.errors import BadCall, ValueTooLarge
from everstep.journal.records import HEARTBEAT_MAX_BYTES, Heartbeat, Json, canonical
from everstep.run.calls import StepCall
from everstep.run.scope import BODY, BodyContext
from everstep.run.values import Codec

if TYPE_CHECKING:
    from everstep.run.engine import Engine

T = TypeVar("T")
THROTTLE = 0.8
UNBOUNDED_EVERY_S = 30.0
"""Between two records of a step without a heartbeat_timeout."""
PART = 64


class Details:
    """The newest details of one step call, over all its tries. Lives in the loop's thread."""

    def __init__(self, engine: "Engine", call: StepCall, recorded: Json) -> None:
        self._engine = engine
        self._call = call
        timeout_s = call.step.heartbeat_timeout_s
        self._every_s = UNBOUNDED_EVERY_S if timeout_s is None else THROTTLE * timeout_s
        self.newest = recorded
        self._recorded = b"null" if recorded is None else canonical(recorded)
        self._began_s = engine.clock.monotonic_s()
        self._recorded_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def take(self, details: Json) -> None:
        """A body told how far it came."""
        self.newest = details
        if self._closed or self._timer is not None or canonical(details) == self._recorded:
            return
        now_s = self._engine.clock.monotonic_s()
        every_s = max(self._every_s, (now_s - self._began_s) / PART)
        wait_s = 0.0 if self._recorded_s is None else self._recorded_s + every_s - now_s
        if wait_s <= 0:
            self.record()
        else:
            self._timer = self._engine.lane.at(wait_s, self.record)

    def record(self) -> None:
        """Make what was told last a record, if it is none yet."""
        self._quiet()
        engine, raw = self._engine, canonical(self.newest)
        if raw == self._recorded or engine.stop_reason is not None or engine.finishing:
            return
        try:
            faults.reach("before_heartbeat")
            engine.put(Heartbeat, key=self._call.key, name=self._call.step.name, details=self.newest)
            self._recorded, self._recorded_s = raw, engine.clock.monotonic_s()
            engine.writer.flush_soon()
            faults.reach("after_heartbeat")
        except KeyboardInterrupt:
            raise
        except BaseException as e:
            engine.stop(e)

    def close(self) -> None:
        """The step has its outcome: nothing more is recorded."""
        self._closed = True
        self._quiet()

    def _quiet(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Heart:
    """The heartbeat of one try's body; `beat` may be called in any thread."""

    def __init__(self, engine: "Engine", details: Details, timeout_s: float | None) -> None:
        self._engine = engine
        self._details = details
        self.timeout_s = timeout_s
        self.earlier = details.newest
        """What earlier tries told."""
        self.given_up = False
        """Nobody waits for this body any more; its next heartbeat tells it so."""
        self._beat_s = engine.clock.monotonic_s()
        self._newest: Json = None
        self._posted = False
        self._loop_thread = threading.get_ident()

    def beat(self, details: Json) -> None:
        if self.given_up:
            raise asyncio.CancelledError("nobody waits for this body any more: it timed out or was cancelled")
        self._beat_s = self._engine.clock.monotonic_s()
        if details is None:
            return
        # In this order: whoever finds _posted set knows that _look has yet to read _newest.
        self._newest = details
        if not self._posted:
            self._posted = True
            if threading.get_ident() == self._loop_thread:
                self._engine.lane.soon(self._look)
                return
            with contextlib.suppress(RuntimeError):  # the loop is closed: the attempt ended meanwhile
                self._engine.loop.call_soon_threadsafe(self._look, context=contextvars.Context())

    def _look(self) -> None:
        self._posted = False
        self._details.take(self._newest)

    def left_s(self) -> float:
        """Until it must have beaten again."""
        assert self.timeout_s is not None
        return self._beat_s + self.timeout_s - self._engine.clock.monotonic_s()


def heartbeat(details: object = None) -> None:
    """Inside a step's body: it is alive. `details` (JSON, a model, a dataclass; at most 8 KiB) tell how far it came and reach the
    next try as `heartbeat_details()`; without them the last ones stay. May be called as often as you like, from async bodies and
    from threads. In a probe it does nothing.

    Raises NotJSON or ValueTooLarge for details that cannot be kept, and asyncio.CancelledError (a BaseException: let it pass) in
    a thread that timed out or was cancelled, which nothing else can stop."""
    body = _body("heartbeat")
    data: Json = None
    if details is not None:
        encoded = _codec(cast(Hashable, type(details))).encode(details)
        if len(encoded.raw) > HEARTBEAT_MAX_BYTES:
            raise ValueTooLarge(
                f"heartbeat details of step {body.step} take {len(encoded.raw)} bytes; the bound is {HEARTBEAT_MAX_BYTES}. "
                f"Keep what is large elsewhere and tell where"
            )
        data = encoded.data
    if body.heart is not None:
        body.heart.beat(data)


@overload
def heartbeat_details() -> Any: ...  # the plain JSON that was told
@overload
def heartbeat_details(type: type[T]) -> T | None: ...
def heartbeat_details(type: Any = None) -> Any:  # as the overloads
    """Inside a step's body or probe: what the newest heartbeat of an earlier try told, as `type`, or as plain JSON; None if there
    is none. After a process was lost it is the newest that was recorded, which may be somewhat older. Raises NotJSON if it does
    not fit."""
    body = _body("heartbeat_details")
    if body.details is None or type is None:
        return body.details
    return Codec(cast(object, type), f"step {body.step}", "heartbeat details").decode(body.details)


@functools.lru_cache(maxsize=64)
def _codec(kind: Hashable) -> Codec:
    return Codec(Any if kind in (dict, list) else kind, "a step's body", "heartbeat details")


def _body(what: str) -> BodyContext:
    body = BODY.get()
    if body is None:
        raise BadCall(f"everstep.{what}() belongs into a step's body")
    return body


__all__ = ["Details", "Heart", "heartbeat", "heartbeat_details"]
