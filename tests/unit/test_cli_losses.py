"""What the local supervisor does when the agent process ended: every class, its pauses, and when it gives up."""

import signal
from typing import Any

import pytest

from everstep.journal.records import Finished, Park, Result
from everstep.local.losses import MAX_APPLICATION, ChildEnd, LossClass, Losses, Over, Restart, Stop, Waits, decide

RESULT: Any = Result(seq=5, key="1", attempt=1, time=1)
PARK: Any = Park(seq=5, attempt=1, time=1, waits=[])
FINISHED: Any = Finished(seq=5, attempt=1, time=1, outcome="failed")


@pytest.mark.parametrize("status", [0, 1, 70, 75, -9, -11, 143])
def test_a_finished_record_ends_the_run_however_the_process_ended(status: int) -> None:
    assert decide(ChildEnd(status), FINISHED, Losses()) == Over()


def test_exit_0_without_a_word_in_the_journal_is_a_crash() -> None:
    follows = decide(ChildEnd(0), RESULT, Losses())
    assert isinstance(follows, Restart)
    assert follows.loss is LossClass.APPLICATION
    assert decide(ChildEnd(0), PARK, Losses()) == Waits()
    assert isinstance(decide(ChildEnd(-9), PARK, Losses()), Restart)  # killed after the park record: assessed anew


@pytest.mark.parametrize("status", [64, 65])
def test_what_would_fail_alike_is_not_tried_again(status: int) -> None:
    assert decide(ChildEnd(status), RESULT, Losses()) == Stop(status)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_kill_is_followed_at_once_and_never_charged(number: int) -> None:
    losses, pauses = Losses(), []
    for _ in range(20):
        follows = decide(ChildEnd(-number), RESULT, losses)
        assert isinstance(follows, Restart)
        assert follows.loss is LossClass.DISRUPTION
        pauses.append(follows.after_s)
        losses = follows.losses
    assert pauses[:5] == [0, 1, 2, 4, 8]
    assert max(pauses) == 60
    assert losses == Losses(disruption=20)


@pytest.mark.parametrize("status", [69, 75])
def test_an_unreachable_journal_is_waited_for(status: int) -> None:
    follows = decide(ChildEnd(status), RESULT, Losses())
    assert follows == Restart(1.0, LossClass.DISRUPTION, Losses(disruption=1))


@pytest.mark.parametrize("status", [1, 70, -signal.SIGSEGV, -signal.SIGABRT, 200])
def test_crashes_are_given_up_after_their_budget_and_losses_of_other_kinds_do_not_count(status: int) -> None:
    losses = Losses(disruption=50)
    for nth in range(1, MAX_APPLICATION + 1):
        follows = decide(ChildEnd(status), RESULT, losses)
        assert isinstance(follows, Restart)
        assert follows.after_s == 2 ** (nth - 1)
        losses = follows.losses
    assert decide(ChildEnd(status), RESULT, losses) == Stop(status, given_up=True)


def test_ends_are_named() -> None:
    assert str(ChildEnd(-9)) == "killed by SIGKILL"
    assert str(ChildEnd(70)) == "exit 70"
    assert str(ChildEnd(-250)) == "killed by signal 250"
