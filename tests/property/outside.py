"""The outside world of random programs: it outlives processes, counts what was done, and decides how long things take.

Times are whole milliseconds of virtual time. With fixed latencies the outside behaves alike however often the process is lost:
what was asked for under a key is ready at one moment, whoever asks again. With free latencies each process meets other races.
"""

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Callable

import everstep
from everstep import NOT_DONE, Done, Probed, Retry
from everstep.journal.records import Intent, Record
from everstep.run.scope import BODY

FASTEST_MS, SLOWEST_MS = 2e4, 3e7
"""From 20 s to 8 h, so that two things fall due in the same millisecond about once in a million."""
MAX_TRIES = 3


def span_ms(source: object) -> int:
    """A time between the fastest and the slowest, evenly over the orders of magnitude, from whatever names it."""
    share = int.from_bytes(hashlib.sha256(str(source).encode()).digest()[:7]) / (1 << 56)
    return int(FASTEST_MS * (SLOWEST_MS / FASTEST_MS) ** share)


class Outside:
    def __init__(self, seed: int, now_ms: Callable[[], int], *, fixed: bool) -> None:
        self.seed = seed
        self.now_ms = now_ms
        self.fixed = fixed
        self.free = random.Random(seed)
        self.effects: Counter[str] = Counter()
        """How often the effect of a key happened."""
        self.once: Counter[str] = Counter()
        """The same of at_most_once steps, whether or not their records are still there."""
        self.done: dict[str, object] = {}
        self.wrong: list[str] = []
        """What the program saw and should never see."""
        self.ran: set[str] = set()
        """Kinds of operations that ran."""
        self._began: dict[tuple[str, int], int] = {}
        self._due: dict[str, int] = {}
        self._failed: Counter[str] = Counter()
        self._failed_at: dict[tuple[str, int], int] = {}

    def due_ms(self, key: str) -> int:
        """When what is asked for under this key is ready; called when a body begins."""
        now = self.now_ms()
        if not self.fixed:
            return now + span_ms(self.free.random())
        n = self._failed[key]
        began = self._began[key, n] = min(now, self._began.get((key, n), now))
        base = began if n == 0 else self._failed_at[key, n - 1]
        self._due[key] = base + span_ms((self.seed, key, n))
        return self._due[key]

    async def until(self, due_ms: int) -> None:
        await asyncio.sleep(max(0, due_ms - self.now_ms()) / 1000)

    async def act(self, value: int) -> int:
        """The effect happens when it is ready, or for some keys at once, and only the answer takes its time."""
        due_ms = self.due_ms(everstep.idempotency_key())
        if value % 2:
            self.act_now(value)
        await self.until(due_ms)
        return value if value % 2 else self.act_now(value)

    def act_now(self, value: int) -> int:
        key = everstep.idempotency_key()
        body = BODY.get()
        if body is not None and body.step in ("pay", "slow", "blind"):
            self.once[key] += 1
        self.effects[key] += 1
        self.done[key] = value
        return value

    def may_fail(self) -> None:
        """Some keys fail once or twice, a few for good."""
        key = everstep.idempotency_key()
        planned = random.Random(f"{self.seed} {key}").choice([0, 0, 0, 0, 1, 1, 2, 2, MAX_TRIES])
        if not self.fixed:
            planned = MAX_TRIES if self.free.random() < 0.25 else 0
        if (n := self._failed[key]) < planned:
            self._failed[key] += 1
            self._failed_at[key, n] = self.now_ms()
            raise ConnectionError("try again")

    async def was_done(self) -> Probed[int]:
        """Answers when the request is over, as a service that serialises by key does."""
        key = everstep.idempotency_key()
        if key not in self.done:
            return NOT_DONE
        if self.fixed:
            await self.until(self._due.get(key, 0))
        value = self.done[key]
        assert isinstance(value, int)
        return Done(value)

    def forget_unrecorded(self, records: list[Record]) -> None:
        """A process was lost: what its journal does not hold of failed tries never counted."""
        idem = {r.key: r.idem for r in records if isinstance(r, Intent)}
        self._failed = Counter(idem[r.key] for r in records if r.kind == "try_failed")


world = Outside(0, lambda: 0, fixed=False)
"""Of the program that runs in this process; each run sets its own."""


@everstep.step(effect="read")
async def look(n: int) -> int:
    return await world.act(n * 2)


@everstep.step(effect="idempotent", retry=Retry(max_tries=MAX_TRIES, backoff_s=5, backoff_max_s=5))
async def put(n: int) -> dict[str, int]:
    value = await world.act(n)
    world.may_fail()
    return {"n": value}


@everstep.step(effect="read")
async def fail(n: int) -> int:
    await world.act(n)
    raise LookupError(f"nothing at {n}")


async def _was_done(n: int) -> Probed[int]:
    return await world.was_done()


@everstep.step(effect="at_most_once", probe=_was_done)
async def pay(n: int) -> int:
    return await world.act(n + 1000)


@everstep.step(effect="at_most_once", probe=_was_done, timeout=600)
async def slow(n: int) -> int:
    return await world.act(n + 2000)


@everstep.step(effect="at_most_once")
async def blind(n: int) -> int:
    return await world.act(n + 3000)


@everstep.step(effect="idempotent")
def plain(n: int) -> int:
    return world.act_now(n + 4000)
