"""What agent code may ask for besides steps: time, sleep, ids, randomness, and inside a body its key and usage."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Generator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from everstep.errors import BadCall, NotInRun
from everstep.run.scope import BODY, SCOPE, BodyContext, Scope

if TYPE_CHECKING:
    import uuid

    from everstep.run.artifact import Artifact


class _Slept(Awaitable[None]):
    """What `sleep` gives in a sync agent, where it has slept already."""

    def __await__(self) -> Generator[Any, None, None]:  # as Awaitable's
        return
        yield


def sleep(seconds: float) -> Awaitable[None]:
    """Wait durably: over crashes, and without a process if the wait is long. `await` it in an async agent; a plain call in a
    sync one. The same as asyncio.sleep in an agent."""
    scope = scope_of("sleep")
    if scope.engine.sync_agent:
        if seconds > 0:
            _sleep_sync(scope, lambda: scope.engine.run_time_s + seconds)
        return _Slept()
    return asyncio.sleep(seconds)


def sleep_until(when: datetime) -> Awaitable[None]:
    """Wait durably until a moment, which must carry its time zone; returns at once if it has passed."""
    if when.tzinfo is None:
        raise ValueError("sleep_until needs a datetime with a time zone, e.g. datetime.now(UTC) + timedelta(hours=1)")
    scope = scope_of("sleep_until")
    if scope.engine.sync_agent:
        _sleep_sync(scope, when.timestamp)
        return _Slept()
    return _sleep_until(scope, when.timestamp())


async def _sleep_until(scope: Scope, when_s: float) -> None:
    loop = scope.engine.loop
    done: asyncio.Future[None] = loop.create_future()
    timer = loop.call_at(when_s, _set_unless_done, done)
    try:
        await done
    finally:
        timer.cancel()


def _set_unless_done(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _sleep_sync(scope: Scope, when_s: Callable[[], float]) -> None:
    thread = scope.engine.thread
    assert thread is not None
    thread.sleep_until(scope, when_s)


def now() -> datetime:
    """The time, drawn once and the same on every replay; UTC."""
    value = _draw("now", lambda scope: int(scope.engine.clock.now_epoch_ms()))
    return datetime.fromtimestamp(int(str(value)) / 1000, UTC)


def uuid4() -> "uuid.UUID":
    """A random id, drawn once and the same on every replay."""
    import uuid  # it asks for the platform: longer than most runs need

    value = _draw("uuid4", lambda scope: str(uuid.UUID(bytes=scope.engine.clock.random_bytes(16), version=4)))
    return uuid.UUID(str(value))


def random() -> float:
    """A random number, 0 <= x < 1, drawn once and the same on every replay."""
    value = _draw("random", lambda scope: int.from_bytes(scope.engine.clock.random_bytes(7)) % (1 << 53) / (1 << 53))
    return float(str(value))


def _draw(name: str, draw: Callable[[Scope], object]) -> object:
    scope = scope_of(name)
    engine = scope.engine
    if engine.thread is None:
        return engine.draw_value(scope, name, lambda: draw(scope))
    return engine.thread.draw_value(scope, name, lambda: draw(scope))


def idempotency_key() -> str:
    """Inside a step's body or probe: the key that is the same for every try of this step, over crashes, and differs from every
    other step's. 64 hex digits."""
    return _body("idempotency_key").idempotency_key


def report_usage(
    *, input_tokens: int = 0, output_tokens: int = 0, cost_micro_usd: int | None = None, model: str = ""
) -> None:
    """Inside a step's body: add what it used. It is recorded with the try's result or failure, so it counts once.
    Money is integer micro-USD (1,000,000 = one dollar); where it is not given, `model` and the budget's prices tell it. Without
    any argument it says that nothing was used, and gives back what the step reserved."""
    body = _body("report_usage")
    for name, amount in (
        ("inputTokens", input_tokens),
        ("outputTokens", output_tokens),
        ("costMicroUSD", cost_micro_usd),
    ):
        if amount is None:
            continue
        if isinstance(amount, bool) or not isinstance(amount, int) or amount < 0:
            raise ValueError(f"report_usage: {name} must be a whole number, 0 or more, not {amount!r}")
        if amount or name == "costMicroUSD":
            body.usage[name] = body.usage.get(name, 0) + amount
    body.reported = True
    if cost_micro_usd is None and (input_tokens or output_tokens):
        had = body.tokens.get(model, (0, 0))
        body.tokens[model] = (had[0] + input_tokens, had[1] + output_tokens)


def artifact(path: str | os.PathLike[str], *, max_bytes: int | None = None) -> "Artifact":
    """Inside a step's body: keep a file that it made. When the body is over, the file's content is kept beside the journal, and
    whenever the step's result is given to agent code, in this pod or another, the file is at its path again, with that content
    and mode. A restart that begins at a later snapshot or segment puts it back, too, unless it had been removed by then. Annotate
    the step's result with everstep.Artifact to return it.

    path       a file; a relative path counts from the process's working directory
    max_bytes  bound on its size; default 256 MiB

    Raises BadCall outside a body, ValueTooLarge, OSError if there is no such file."""
    from everstep.run.artifact import Artifact
    from everstep.run.artifacts import ARTIFACT_MAX_BYTES, note

    body = _body("artifact")
    noted = note(path, ARTIFACT_MAX_BYTES if max_bytes is None else max_bytes)
    body.files[:] = [*(file for file in body.files if file.path != noted.path), noted]
    return Artifact(path=noted.path, sha256=noted.sha256, size=noted.size)


def say(text: str) -> None:
    """Inside a step's body: show text to whoever watches the run (`everstep local live RUN`), as the step works. It goes to the
    live stream, not to the journal, with step, attempt, try and offset; what a dead try has said is marked. From any thread."""
    body = _body("say")
    if body.say is not None:
        body.say(body, text)


def is_replaying() -> bool:
    """True while agent code goes over what is already in the journal. False in step bodies and outside runs."""
    scope = SCOPE.get()
    return scope is not None and scope.engine.replaying


class _SilentOnReplay(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not is_replaying()


logger = logging.getLogger("everstep.agent")
"""For agent code: each line appears once, not again at every replay. Set up like any logger."""
logger.addFilter(_SilentOnReplay())


def scope_of(what: str) -> Scope:
    """The scope of the caller, for `everstep.<what>()`. Raises NotInRun or BadCall where there is none."""
    scope = SCOPE.get()
    if scope is not None:
        return scope
    body = BODY.get()
    if body is not None:
        raise BadCall(
            f"everstep.{what}() was called inside the body of step {body.step}; it belongs to agent code. In a body use the "
            f"plain function (time, uuid, random): the step's result is what is journaled"
        )
    raise NotInRun(f"everstep.{what}() was called outside a run; it belongs to agent code")


def _body(what: str) -> BodyContext:
    body = BODY.get()
    if body is None:
        raise BadCall(f"everstep.{what}() belongs into a step's body")
    return body


__all__ = [
    "artifact",
    "idempotency_key",
    "is_replaying",
    "logger",
    "now",
    "random",
    "report_usage",
    "say",
    "sleep",
    "sleep_until",
    "uuid4",
]
