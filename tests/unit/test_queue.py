"""The keyed queue: one entry per key, one worker per key, timers, backoff, and no starving (E30, C61)."""

import asyncio
import random

import pytest

from everstep_operator.queue import KeyQueue, WorkQueue


def make(jitter: float = 0.0) -> KeyQueue[str]:
    return KeyQueue(base_s=1.0, max_s=60.0, jitter=lambda: jitter)


def test_a_hundred_events_of_one_key_are_one_run() -> None:
    q = make()
    for _ in range(100):
        q.add("a", 0)
    assert q.depth() == 1
    assert q.take(0) == "a"
    assert q.take(0) is None


def test_a_key_runs_on_one_worker_and_once_more_if_added_meanwhile() -> None:
    q = make()
    q.add("a", 0)
    assert q.take(0) == "a"
    q.add("a", 0)
    q.add("a", 0)
    assert q.take(0) is None, "the same key must not run twice at once"
    q.done("a", 0)
    assert q.take(0) == "a", "the event that came during the run must not be lost"
    q.done("a", 0)
    assert q.take(0) is None


def test_a_key_that_is_added_without_end_runs_at_a_bounded_rate() -> None:
    """E24: a user edits the object a hundred times a second."""
    q: KeyQueue[str] = KeyQueue(base_s=1.0, max_s=60.0, jitter=lambda: 0.0, gap_s=0.1)
    runs, now = 0, 0.0
    while now < 10:
        q.add("a", now)
        if q.take(now):
            runs += 1
            q.add("a", now)
            q.done("a", now)
        now += 0.01
    assert 90 <= runs <= 101
    assert q.is_due_within("a", 1, now), "the last edit is still owed a look"


def test_keys_are_served_in_order_of_arrival() -> None:
    q = make()
    for key in "abc":
        q.add(key, 0)
    assert [q.take(0) for _ in range(3)] == ["a", "b", "c"]


def test_timers_fire_at_their_time_and_the_earliest_wins() -> None:
    q = make()
    q.add_after("a", 10, 0)
    q.add_after("a", 5, 0)
    q.add_after("a", 20, 0)
    assert q.next_due_s() == 5
    assert q.take(4.9) is None
    assert q.take(5) == "a"
    q.done("a", 0)
    assert q.take(100) is None, "the replaced timers are gone"


def test_a_timer_beyond_the_resync_does_not_excuse_a_key_from_it() -> None:
    """E22: a long timer must not hide a run from the resync."""
    q = make()
    assert not q.is_due_within("a", 180, 0)
    q.add_after("a", 600, 0)
    assert not q.is_due_within("a", 180, 0)
    assert q.is_due_within("a", 180, 420)
    q.add("b", 0)
    assert q.is_due_within("b", 180, 0)


def test_taking_a_key_drops_its_timer_since_it_decides_anew() -> None:
    q = make()
    q.add_after("a", 5, 0)
    q.add("a", 0)
    assert q.take(0) == "a"
    q.done("a", 0)
    assert q.take(100) is None


@pytest.mark.parametrize("jitter", [0.0, 1.0])
def test_backoff_doubles_to_its_bound_and_forget_resets_it(jitter: float) -> None:
    q = make(jitter)
    share = 1 - 0.5 * jitter
    delays = [q.retry("a", 0) for _ in range(9)]
    assert delays == [min(60, 2**n) * share for n in range(9)]
    q.forget("a")
    assert q.retry("a", 0) == share


def test_retry_after_of_the_server_is_honoured() -> None:
    q = make()
    assert q.retry("a", 0, at_least_s=7) == 7
    assert q.take(6.9) is None
    assert q.take(7) == "a"


def test_a_resync_of_ten_thousand_runs_does_not_hold_up_an_event_and_is_not_starved_by_events() -> None:
    """E30: no key starved."""
    q = make()
    for n in range(10_000):
        q.add(f"calm{n}", 0, urgent=False)
    q.add("event", 0)
    assert "event" in [q.take(0) for _ in range(2)]
    for n in range(100):
        q.add(f"event{n}", 0)
    served = [q.take(0) or "" for _ in range(40)]
    assert 8 <= sum(key.startswith("calm") for key in served) <= 12


def test_a_calm_key_becomes_urgent_and_is_served_once() -> None:
    q = make()
    for n in range(50):
        q.add(f"calm{n}", 0, urgent=False)
    q.add("calm49", 0, urgent=True)
    served = [q.take(0) for _ in range(60)]
    assert "calm49" in served[:2]
    assert served.count("calm49") == 1
    assert len([key for key in served if key]) == 50


def test_memory_is_bounded_by_keys_not_by_events() -> None:
    q = make()
    for n in range(50_000):
        q.add_after(f"k{n % 10}", 1000 - n * 0.01, 0)
        q.add("x", 0)
    assert len(q._heap) <= 2 * 10 + 64 + 1
    assert q.depth() == 1


def test_random_interleavings_lose_no_key_and_never_run_one_twice_at_once() -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    q = make()
    now, running, owed = 0.0, set[str](), set[str]()
    for _ in range(20_000):
        now += rng.random() * 0.1
        key = f"k{rng.randrange(20)}"
        match rng.randrange(5):
            case 0:
                q.add(key, now, urgent=rng.random() < 0.5)
                owed.add(key)
            case 1:
                q.add_after(key, rng.random(), now)
            case 2 | 3:
                got = q.take(now)
                if got:
                    assert got not in running
                    running.add(got)
                    owed.discard(got)
            case _:
                if running:
                    finished = rng.choice(sorted(running))
                    running.discard(finished)
                    q.done(finished, now)
    for finished in running:
        q.done(finished, now)
    rest = set()
    while (got := q.take(now)) is not None:
        rest.add(got)
        q.done(got, now)
    assert owed <= rest


async def test_workers_retry_what_failed_and_look_again_when_asked() -> None:
    done: list[str] = []
    finished = asyncio.Event()

    async def work(key: str) -> float | None:
        done.append(key)
        if key == "bad" and done.count("bad") < 3:
            raise RuntimeError("not yet")
        if key == "again" and done.count("again") < 2:
            return 0.01
        if done.count("bad") == 3 and done.count("again") == 2:
            finished.set()
        return None

    keys: KeyQueue[str] = KeyQueue(base_s=0.001, max_s=0.01, jitter=lambda: 0.5)
    errors: list[str] = []

    def on_error(key: str, error: Exception) -> float:
        errors.append(f"{key}: {error}")
        return 0.0

    q = WorkQueue(keys, work, on_error, workers=2, monotonic_s=asyncio.get_running_loop().time)
    task = asyncio.create_task(q.run())
    q.add("bad")
    q.add("again")
    async with asyncio.timeout(5):
        await finished.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert errors == ["bad: not yet"] * 2


async def test_a_long_queue_is_not_stuck_while_workers_finish() -> None:
    """E23: an outage of the API server must not have the operator restarted."""
    now = [0.0]
    keys: KeyQueue[str] = KeyQueue(base_s=1, max_s=1, jitter=lambda: 0)
    release, second = asyncio.Event(), asyncio.Event()
    begun: list[str] = []

    async def work(key: str) -> float | None:
        begun.append(key)
        if len(begun) == 2:
            second.set()
        await release.wait()
        release.clear()
        return None

    q = WorkQueue(keys, work, lambda key, error: 0.0, workers=1, monotonic_s=lambda: now[0])
    task = asyncio.create_task(q.run())
    for key in "abc":
        q.add(key)
    await asyncio.sleep(0)
    now[0] = 500.0
    assert q.stuck_s() == 500
    release.set()
    async with asyncio.timeout(5):
        await second.wait()
    assert q.stuck_s() == 0
    assert q.oldest_wait_s() == 500
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
