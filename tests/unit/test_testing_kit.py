"""everstep.testing: what agent authors rely on when they crash their agents in a test."""

import asyncio
import json
import pdb  # what is looked for
import sys
from collections.abc import Iterator

import pytest

import everstep
from everstep import NOT_DONE, Done, Probed
from everstep.errors import Diverged
from everstep.journal.records import Waited
from everstep.run import debugging
from everstep.run.agents import Agent
from everstep.testing import Effects, MemoryRun, ScriptedModel, for_every_crash, replay, tool_call
from everstep.testing.models import ScriptExhausted

_tidied: list[str] = []


@everstep.step(effect="read")
async def look(n: int) -> int:
    return n


@everstep.agent
async def tidies(goal: str) -> int:
    try:
        return await look(1)
    finally:
        _tidied.append("tidied")
        await look(2)


def test_a_simulated_crash_lets_no_clean_up_reach_the_journal() -> None:
    """A killed process runs no `finally`; one that runs in a test because of the exception must not count."""
    moment = 1
    while (run := MemoryRun[int](tidies, "go")).attempt(crash_at=f"any:{moment}").kind == "crashed":
        assert "intent 1" not in run.kinds() or "result 0" in run.kinds(), (moment, run.kinds())
        assert run.attempt().value == 1, moment
        moment += 1
    assert moment > 10


# --- for_every_crash ---------------------------------------------------------------------------------------------

effects = Effects()


@everstep.step(effect="idempotent")
async def send(to: str) -> str:
    effects.once(f"mail to {to}")
    return f"sent to {to}"


@everstep.step(effect="idempotent")
async def send_blindly(to: str) -> str:
    effects.happened(f"mail to {to}")
    return f"sent to {to}"


async def _was_paid(who: str) -> Probed[str]:
    return Done(f"paid {who}") if effects[f"paid {who}"] else NOT_DONE


@everstep.step(effect="at_most_once", probe=_was_paid)
async def pay(who: str) -> str:
    effects.happened(f"paid {who}")
    return f"paid {who}"


@everstep.step(effect="at_most_once")
async def pay_in_the_dark(who: str) -> str:
    effects.happened(f"paid {who}")
    return f"paid {who}"


@everstep.agent
async def pays_and_tells(goal: str, people: list[str]) -> list[str]:
    paid = [await pay(who) for who in people]
    await everstep.sleep(3600)
    return paid + list(await asyncio.gather(*(send(who) for who in people)))


def test_one_line_proves_that_an_agent_survives_a_crash_anywhere() -> None:
    report = for_every_crash(pays_and_tells, goal="Pay", inputs={"people": ["ann", "bo"]}, effects=effects)
    assert report.moments > 30
    assert {"before_intent", "after_effect", "in_replay", "before_park", "before_finished"} <= set(report.points)
    assert report.result == ["paid ann", "paid bo", "sent to ann", "sent to bo"]
    assert not report.asked


@everstep.agent
async def sends_blindly(goal: str) -> str:
    return await send_blindly("ann")


def test_a_repeated_effect_is_told_with_its_moment_and_its_cure() -> None:
    with pytest.raises(
        AssertionError, match=r"after_effect \(\d+\), the outside saw more .*'mail to ann': 2.*idempotency_key"
    ):
        for_every_crash(sends_blindly, goal="x", effects=effects)


counted = 0


@everstep.agent
async def counts_its_starts(goal: str) -> int:
    global counted  # noqa: PLW0603  # what an agent must not do is the point
    counted += 1
    return await look(counted)


@everstep.agent
async def gives_its_starts(goal: str) -> int:
    global counted  # noqa: PLW0603  # as above
    counted += 1
    await look(1)
    return counted


def test_an_agent_that_does_not_repeat_itself_is_found() -> None:
    with pytest.raises(AssertionError, match=r"does not replay|ended otherwise|stopped"):
        for_every_crash(counts_its_starts, goal="x")
    with pytest.raises(AssertionError, match=r"does not replay|ended otherwise"):
        for_every_crash(gives_its_starts, goal="x")


@everstep.agent
async def pays_in_the_dark(goal: str) -> str:
    return await pay_in_the_dark("ann")


def test_questions_are_counted_or_answered() -> None:
    """An at_most_once step without a probe: the run asks, and whoever knows the outside answers."""
    report = for_every_crash(pays_in_the_dark, goal="x", effects=effects)
    assert report.asked
    assert all("pay_in_the_dark #0" in asked for asked in report.asked)

    def answer(wait: Waited) -> Probed[str]:
        return Done("paid ann") if effects["paid ann"] else NOT_DONE

    assert not for_every_crash(pays_in_the_dark, goal="x", effects=effects, answer=answer).asked


@everstep.agent
def in_a_thread(goal: str) -> str:
    return send.sync("ann") + str(everstep.uuid4())[:0]


def test_sync_agents_and_agents_that_fail_are_proved_alike() -> None:
    assert for_every_crash(in_a_thread, goal="x", effects=effects).moments > 10

    @everstep.agent
    async def gives_up(goal: str) -> None:
        await send("ann")
        raise RuntimeError("no")

    assert for_every_crash(gives_up, goal="x", effects=effects).moments > 10


# --- always-replay -----------------------------------------------------------------------------------------------


def test_always_replay_finds_at_once_what_does_not_repeat() -> None:
    assert MemoryRun[int](counts_its_starts, "x").attempt().kind == "succeeded"  # undisturbed it looks well
    ended = MemoryRun[int](counts_its_starts, "x", always_replay=True).attempt()
    assert isinstance(ended.error, Diverged)


def test_always_replay_runs_each_body_once_and_gives_the_same() -> None:
    effects.clear()
    run = MemoryRun[list[str]](pays_and_tells, "Pay", {"people": ["ann", "bo"]}, always_replay=True)
    assert run.run() == ["paid ann", "paid bo", "sent to ann", "sent to bo"]
    assert set(run.bodies.values()) == {1}
    assert effects == {"paid ann": 1, "paid bo": 1, "mail to ann": 1, "mail to bo": 1}
    attempts = {r.attempt for r in run.records if r.kind == "result"}
    assert len(attempts) >= 3  # the two mails are in flight together, and end together
    run.replay()


# --- models ------------------------------------------------------------------------------------------------------


def _messages(turns: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": "hi"}, *[{"role": "assistant", "content": "…"}] * turns]


async def test_a_scripted_model_answers_by_turn_so_a_repeated_call_gets_the_same() -> None:
    model = ScriptedModel(["Looking.", tool_call("search", q="refund"), "Done."])
    for _ in range(2):
        said = await model.chat.completions.create(model="m", messages=_messages(0))
        assert said.choices[0].message.content == "Looking."
    asks = (await model.chat.completions.create(messages=_messages(1))).choices[0]
    assert asks.finish_reason == "tool_calls"
    assert asks.message.tool_calls[0].function.name == "search"
    assert json.loads(asks.message.tool_calls[0].function.arguments) == {"q": "refund"}
    with pytest.raises(ScriptExhausted, match="3 replies"):
        await model.chat.completions.create(messages=_messages(3))
    assert len(model.calls) == 4


async def test_a_scripted_model_streams_up_to_a_finish_reason() -> None:
    stream = await ScriptedModel(["one two three"]).chat.completions.create(messages=_messages(0), stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "one two three"
    assert [c.choices[0].finish_reason for c in chunks][-2:] == [None, "stop"]


# --- debuggers ---------------------------------------------------------------------------------------------------


@everstep.step(effect="read", timeout=1)
async def takes_long(n: int) -> int:
    await asyncio.sleep(60)
    return n


@everstep.agent
async def waits_long(goal: str) -> int:
    return await takes_long(1)


@pytest.fixture
def no_debugger(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    debugging.forget()
    yield monkeypatch
    debugging.forget()


def test_a_step_times_out_and_under_a_debugger_it_does_not(no_debugger: pytest.MonkeyPatch) -> None:
    assert MemoryRun[int](waits_long, "x").attempt().kind == "failed"
    debugging.suspend()
    assert MemoryRun[int](waits_long, "x").attempt().value == 1


def test_breakpoint_suspends_time_outs_that_are_running_already(no_debugger: pytest.MonkeyPatch) -> None:
    no_debugger.setattr(sys, "breakpointhook", lambda: None)

    @everstep.step(effect="read", timeout=1)
    async def looked_at() -> int:
        breakpoint()  # what a person writes into a body to stop there
        await asyncio.sleep(60)
        return 2

    @everstep.agent
    async def is_debugged(goal: str) -> int:
        return await looked_at()

    assert MemoryRun[int](is_debugged, "x").attempt().value == 2
    assert debugging.suspended()


def test_pdb_is_a_debugger_and_coverage_is_none(no_debugger: pytest.MonkeyPatch) -> None:
    def traces(*_: object) -> None:
        """As coverage and profilers do."""

    no_debugger.setattr(sys, "gettrace", lambda: traces)
    assert not debugging.suspended()
    no_debugger.setattr(sys, "gettrace", lambda: pdb.Pdb().trace_dispatch)
    assert debugging.suspended()
    no_debugger.setattr(sys, "gettrace", lambda: None)
    assert debugging.suspended()  # told to go on, pdb takes its trace function back


# --- replays of finished runs ------------------------------------------------------------------------------------


def test_a_step_beyond_the_end_of_a_finished_run_does_not_run() -> None:
    """Changed code must not do in a replay what it would do in a run."""

    @everstep.agent
    async def as_it_was(goal: str) -> str:
        return await send_blindly("ann")

    @everstep.agent
    async def as_it_is(goal: str) -> str:
        return await send_blindly("ann") + await send_blindly("bo")

    effects.clear()
    run = MemoryRun[str](as_it_was, "x")
    run.run()
    with pytest.raises(Diverged, match=r"the run is finished, and the code goes on"):
        replay(run, as_it_is)
    assert effects == {"mail to ann": 1}


@everstep.step(effect="read")
async def hangs(n: int) -> int:
    effects.happened(f"hangs {n}")
    try:
        await asyncio.sleep(1e5)
    except asyncio.CancelledError:
        await asyncio.sleep(1e5)
    return n


@everstep.agent
async def cleans_up_for_long(goal: str) -> int:
    try:
        return await hangs(1)
    finally:
        await hangs(2)


@everstep.agent
async def leaves_at_once(goal: str) -> str:
    try:
        await hangs(1)
    except asyncio.CancelledError:
        return "cancelled"
    return "never"


@everstep.agent
async def sleeps_before_it_goes(goal: str) -> int:
    try:
        return await hangs(1)
    finally:
        await everstep.sleep(100)
        await hangs(2)


@pytest.mark.parametrize("agent", [cleans_up_for_long, leaves_at_once, sleeps_before_it_goes])
def test_c53_a_cancel_whose_clean_up_was_cut_off_replays_without_running_anything(
    agent: Agent[..., object],
) -> None:
    """What was in flight when time was up stays as it was: a replay neither runs it nor waits for it."""
    effects.clear()
    run = MemoryRun[object](agent, "x")
    points = iter(range(1000))
    ended = run.attempt(
        on_point=lambda _: run.cancel() if next(points) == 6 else None,
        inbox_poll_s=1,
        cancel_grace_s=30,
        body_cancel_s=1e6,
    )
    assert ended.kind == "cancelled"
    assert run.records[-1].type == "TimeoutError"
    seen = dict(effects)
    run.sleep(3600)
    run.replay()
    assert effects == seen
