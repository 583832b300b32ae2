"""At-most-once steps that were in flight: settled by a probe, by a person, or waiting; never run again on a guess."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import everstep
from everstep import NOT_DONE, UNKNOWN, Done, Probed, Retry, StepFailed
from everstep.journal.inbox import SettleBody
from everstep.journal.records import Intent
from everstep.run.agents import Agent
from everstep.run.steps import AsyncStep
from everstep.testing import Ended, MemoryRun

sent: list[str] = []
answer: list[Any] = [UNKNOWN]  # what the probe says next


@pytest.fixture(autouse=True)
def _fresh_world() -> None:
    sent.clear()
    answer[:] = [UNKNOWN]


async def was_sent(text: str) -> Probed[int]:
    if isinstance(answer[0], BaseException):
        raise answer[0]
    return answer[0]  # type: ignore[no-any-return]  # see `answer`


@everstep.step(effect="at_most_once")
async def send(text: str) -> int:
    await asyncio.sleep(1)
    sent.append(text)
    await asyncio.sleep(1)
    return len(sent)


@everstep.step(effect="at_most_once", probe=was_sent)
async def send_probed(text: str) -> int:
    sent.append(text)
    return len(sent)


@everstep.step(effect="at_most_once", on_uncertain="fail")
async def send_or_fail(text: str) -> int:
    sent.append(text)
    return len(sent)


@everstep.step(effect="at_most_once", timeout=1.5)
async def send_slowly(text: str) -> int:
    sent.append(text)
    await asyncio.sleep(60)
    return 1


@everstep.step(effect="read")
async def look() -> str:
    return "seen"


def mailer(step: AsyncStep[[str], int]) -> Agent[..., Any]:
    @everstep.agent
    async def mail(goal: str) -> str:
        try:
            number = await step("hello")
        except StepFailed as e:
            return f"failed: {e.type}: {e.message}"
        return f"{await look()} {number}"

    return mail


def lost_in_flight(step: AsyncStep[[str], int], at: str = "after_effect") -> MemoryRun[str]:
    run: MemoryRun[str] = MemoryRun(mailer(step), "go")
    assert run.attempt(crash_at=at).kind == "crashed"
    return run


def question(ended: Ended[str]) -> str:
    assert ended.kind == "parked", ended
    assert [w.kind for w in ended.waits] == ["uncertain"]
    return ended.waits[0].reason


def test_c16_lost_after_the_effect_the_run_asks_and_does_not_send_again() -> None:
    run = lost_in_flight(send)
    for _ in range(3):
        ended = run.attempt()
        assert "was lost while the step was in flight" in question(ended)
        assert ended.waits[0].arguments == {"text": "hello"}
    assert sent == ["hello"]
    assert run.kinds().count("uncertain 0") == 1


def test_a_person_says_done_with_a_value() -> None:
    run = lost_in_flight(send)
    run.attempt()
    run.settle("0", "done", 42)
    assert run.run() == "seen 42"
    assert sent == ["hello"]
    assert run.replay() == "seen 42"


def test_a_person_says_fail() -> None:
    run = lost_in_flight(send)
    run.attempt()
    run.settle("0", "fail", reason="the mail server burnt down")
    assert run.run() == "failed: StepUncertain: the mail server burnt down (tester)"
    run.replay()


def test_a_person_says_again_which_licenses_exactly_one_intent() -> None:
    run = lost_in_flight(send)
    run.attempt()
    run.settle("0", "again")
    assert run.attempt(crash_at="in_body").kind == "crashed"  # the second try is lost as well
    assert "in flight" in question(run.attempt())
    assert sent == ["hello"]  # it was lost before it sent
    assert [r.tries for r in run.records if r.kind == "intent" and r.key == "0"] == [1, 2]
    run.settle("0", "again")
    assert run.run() == "seen 2"


def test_an_answer_of_another_type_is_refused_and_the_question_stays() -> None:
    run = lost_in_flight(send)
    run.attempt()
    run.settle("0", "done", "many", by="jane")
    reason = question(run.attempt())
    assert "the answer of jane was refused" in reason
    assert "result" in reason
    run.settle("0", "done", 7)
    assert run.run() == "seen 7"


def test_c41_an_answer_about_other_arguments_is_refused() -> None:
    run = lost_in_flight(send)
    run.attempt()
    run.settle("0", "done", 1)
    body = run.store.inboxes[run.journal_id][0].body.replace(b'"input":"', b'"input":"0')
    entry = run.store.inboxes[run.journal_id][0]
    run.store.inboxes[run.journal_id][0] = type(entry)(
        entry.id, body, run.chain.inbox_mac(entry.id, body), entry.position
    )
    assert "other arguments" in question(run.attempt())


def test_a_forged_answer_is_skipped() -> None:
    run = lost_in_flight(send)
    run.attempt()
    run.settle("0", "done", 1)
    entry = run.store.inboxes[run.journal_id][0]
    run.store.inboxes[run.journal_id][0] = type(entry)(entry.id, entry.body, "00", entry.position)
    assert "refused" not in question(run.attempt())


@pytest.mark.parametrize("dead", [True, False])
def test_a_probe_that_says_not_done_counts_only_if_the_old_process_is_dead(dead: bool) -> None:
    run = lost_in_flight(send_probed, at="in_body")
    answer[:] = [NOT_DONE]
    ended = run.attempt(predecessor_dead=dead)
    if dead:
        assert ended.value == "seen 1"
        assert run.kinds().count("intent 0") == 2
    else:
        assert "may still be alive" in question(ended)
        assert sent == []


def test_a_probe_that_says_done_delivers_its_value() -> None:
    run = lost_in_flight(send_probed)
    answer[:] = [Done(9)]
    assert run.attempt(predecessor_dead=False).value == "seen 9"
    assert sent == ["hello"]
    run.replay()


@pytest.mark.parametrize("said", [UNKNOWN, ValueError("no idea"), "yes", Done("many")], ids=repr)
def test_a_probe_that_cannot_tell_leads_to_the_question(said: object) -> None:
    run = lost_in_flight(send_probed)
    answer[:] = [said]
    question(run.attempt())
    assert sent == ["hello"]


def test_on_uncertain_fail_asks_nobody() -> None:
    run = lost_in_flight(send_or_fail)
    assert str(run.run()).startswith("failed: StepUncertain: the process of attempt 1 was lost")
    assert sent == ["hello"]


def test_a_time_out_of_an_at_most_once_step_is_uncertain() -> None:
    run: MemoryRun[str] = MemoryRun(mailer(send_slowly), "go")
    assert "timed out" in question(run.attempt())
    run.settle("0", "done", 5)
    assert run.run() == "seen 5"
    assert sent == ["hello"]


def test_a_time_out_proves_nothing_whatever_the_probe_says() -> None:
    """Cancelling a body does not stop what it started: here a thread that sends later."""

    @everstep.step(effect="at_most_once", timeout=0.05, probe=was_sent, retry=Retry(max_tries=3, backoff_s=0))
    async def hands_over(text: str) -> int:
        await asyncio.to_thread(released.wait, 5)
        return 1

    released = threading.Event()
    answer[:] = [NOT_DONE]
    run: MemoryRun[str] = MemoryRun(mailer(hands_over), "go", real_time=True)
    try:
        assert "may still be alive" in question(run.attempt())
    finally:
        released.set()
    assert run.kinds().count("intent 0") == 1


def test_an_answer_that_comes_while_the_run_parks_is_taken_before_it_parks() -> None:
    """`again` licenses a body: the run must not park beside it."""
    run = lost_in_flight(send, at="in_body")
    told: list[str] = []

    def tell(point: str) -> None:
        if point == "before_park" and not told:
            told.append(point)
            intent = next(r for r in run.records if isinstance(r, Intent))
            run._add(SettleBody(key="0", input=intent.input, decision="again", by="jane"))

    assert run.attempt(on_point=tell).value == "seen 1"
    assert told
    assert sent == ["hello"]
    assert "park" not in run.kinds()


def test_c41_an_answer_counts_for_the_question_it_was_given_to() -> None:
    """Two answers to one question: the second is not kept for the next uncertainty of the same step."""
    run = lost_in_flight(send)
    run.attempt()
    run.settle("0", "again")
    run.settle("0", "done", 77)
    assert run.attempt(crash_at="after_effect").kind == "crashed"
    run.clock.advance(1.0)
    assert "earlier question" in question(run.attempt(predecessor_dead=False))


def test_not_done_raised_by_the_body_may_be_tried_again() -> None:
    @everstep.step(effect="at_most_once", retry=Retry(max_tries=3, backoff_s=0.1))
    async def refuses(text: str) -> int:
        sent.append(text)
        if len(sent) < 3:
            raise everstep.NotDone("the server was busy")
        return 3

    assert MemoryRun[str](mailer(refuses), "go").run() == "seen 3"


def test_another_error_of_the_body_is_an_outcome_and_never_tried_again() -> None:
    @everstep.step(effect="at_most_once", retry=Retry(max_tries=3))
    async def breaks(text: str) -> int:
        sent.append(text)
        raise ConnectionError("reset")

    assert MemoryRun[str](mailer(breaks), "go").run() == "failed: ConnectionError: reset"
    assert sent == ["hello"]


def cancelling(step: AsyncStep[[str], int], after_s: float) -> MemoryRun[str]:
    @everstep.agent
    async def gives_up(goal: str) -> str:
        try:
            async with asyncio.timeout(after_s):
                await step("hello")
        except TimeoutError:
            return "gave up"
        return "sent"

    return MemoryRun(gives_up, "go")


def test_cancelled_by_the_agent_in_flight_it_goes_to_a_person_before_the_run_ends() -> None:
    run = cancelling(send, 1.5)
    assert "the agent cancelled it" in question(run.attempt())
    run.settle("0", "again")
    assert "so it cannot run again" in question(run.attempt())
    run.settle("0", "done", 1)
    assert run.run() == "gave up"
    assert sent == ["hello"]
    run.replay()


def test_cancelled_before_its_body_began_it_is_abandoned() -> None:
    @everstep.agent
    async def at_once(goal: str) -> str:
        task = asyncio.create_task(send("hello"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return "never mind"

    run: MemoryRun[str] = MemoryRun(at_once, "go")
    assert run.run() == "never mind"
    assert sent == []
    assert "abandoned t0/0" in run.kinds()


def test_sigterm_between_intent_and_body_says_that_it_did_not_begin() -> None:
    run: MemoryRun[str] = MemoryRun(mailer(send_probed), "go")
    ended = run.attempt(on_point=lambda p: run.terminate() if p == "after_intent" else None)
    assert isinstance(ended.error, everstep.errors.Terminated)
    assert sent == []
    assert run.run() == "seen 1"  # without a question: the record says that the body had not begun


def test_park_is_refused_while_an_unread_answer_lies_in_the_inbox() -> None:
    """E29: the answer that arrives at the last moment is read by this very process."""
    run = lost_in_flight(send)
    answered: list[str] = []

    def answer_late(point: str) -> None:
        if point == "before_park" and not answered:
            answered.append(point)
            run.settle("0", "done", 3)

    assert run.attempt(on_point=answer_late).value == "seen 3"


def test_e29_the_same_question_answered_twice_is_applied_once() -> None:
    run = lost_in_flight(send)
    run.attempt()
    run.settle("0", "done", 1)
    run.settle("0", "done", 2)
    assert run.run() == "seen 1"
    assert [r.kind for r in run.records].count("settled") == 1


def make_two(first: Callable[..., Any], second: Callable[..., Any]) -> Agent[..., Any]:
    @everstep.agent
    async def two(goal: str) -> list[Any]:
        async def one(n: int) -> Any:
            got = await (first, second)[n](f"m{n}")
            return [got, await look()]

        return list(await asyncio.gather(one(0), one(1)))

    return two


def test_c35_c36_two_questions_are_answered_apart_and_what_follows_runs_once() -> None:
    run: MemoryRun[Any] = MemoryRun(make_two(send, send), "go")
    run.attempt(crash_at="after_effect:2")
    run.attempt()
    asked = run.attempt().waits
    assert sorted(w.key for w in asked) == ["t0/0", "t1/0"]
    run.settle("t1/0", "done", 11)
    ended = run.attempt()
    assert [w.key for w in ended.waits] == ["t0/0"]
    run.settle("t0/0", "done", 10)
    assert run.run() == [[10, "seen"], [11, "seen"]]
    assert run.bodies["t1/1"] == 1
