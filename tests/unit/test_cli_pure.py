"""The parts of the command line that only compute: how numbers look, what a journal says, what a bad input is told."""

from typing import Any

import pytest

from everstep.cli import text
from everstep.cli.history import History, Row
from everstep.cli.local_run import given_inputs, resume_command
from everstep.cli.questions import decision, pick
from everstep.errors import ConfigError
from everstep.ids import JournalId, RunName
from everstep.journal.records import (
    Failure,
    Finished,
    Intent,
    Park,
    Record,
    Result,
    RunStarted,
    Settled,
    Timer,
    TryFailed,
    Uncertain,
    Waited,
)
from everstep.local.files import LocalDir
from everstep.local.spec import RunSpec, check_entrypoint, check_run_id, check_sizes, differences


class Journal:
    """Builds records with growing seq."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def add(self, kind: type[Any], attempt: int = 1, **fields: Any) -> "Journal":
        seq = len(self.records) + 1
        self.records.append(kind(seq=seq, attempt=attempt, time=1_000_000 + 1000 * seq, **fields))
        return self

    def step(self, key: str, name: str, effect: str = "read", attempt: int = 1, **result: Any) -> "Journal":
        self.add(Intent, attempt, key=key, name=name, effect=effect, input="i", idem="k")
        return self.add(Result, attempt, key=key, name=name, **result)


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [(None, "-"), (0, "0 ms"), (12, "12 ms"), (99, "99 ms"), (300, "0.3 s"), (1234, "1.2 s"), (125_000, "2 m 05 s"),
     (11_400_000, "3 h 10 m"), (260_000_000, "3 d")],
)  # fmt: skip
def test_durations(milliseconds: int | None, shown: str) -> None:
    assert text.took(milliseconds) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0s"), (41, "41s"), (119, "119s"), (180, "3m"), (9000, "2h"), (90000, "1d")]
)
def test_ages_look_like_kubectls(seconds: int, shown: str) -> None:
    assert text.age(seconds * 1000) == shown


def test_words_of_an_agent_cannot_steer_the_terminal() -> None:
    assert text.clean("a\x1b[2Jb\nc\x07\u202ed") == "a [2Jb c d"
    assert len(text.clean("x" * 1000)) == 400


def test_history_tells_steps_tries_and_what_was_replayed() -> None:
    journal = Journal().add(RunStarted, run="monday", python="3.11", sdk="0.1.0")
    journal.step("0", "load_backlog", took_ms=12)
    journal.step("1", "classify", took_ms=1200, usage={"inputTokens": 812, "outputTokens": 96})
    journal.add(Intent, key="2", name="file_ticket", effect="idempotent", input="i", idem="k")
    journal.add(TryFailed, key="2", name="file_ticket", tries=1, type="Timeout", message="slow")
    journal.add(Intent, 2, key="2", name="file_ticket", effect="idempotent", input="i", idem="k", tries=2)
    history = History().add(journal.records)
    assert [(r.key, r.state, r.tries) for r in history.steps] == [
        ("0", "result", 1),
        ("1", "result", 1),
        ("2", "intent", 2),
    ]
    assert [r.key for r in history.in_flight()] == ["2"]
    assert history.recorded() == 2
    assert (history.replayed(2), history.run_by(1), history.run_by(2)) == (2, 2, 0)
    assert history.usage() == {"inputTokens": 812, "outputTokens": 96}
    assert history.summary == "Running"
    assert (history.attempts[1].first_seq, history.attempts[1].last_seq, history.attempts[2].first_seq) == (1, 7, 8)


def test_history_tells_waits_and_ends() -> None:
    journal = Journal().add(Intent, key="0", name="send_mail", effect="at_most_once", input="i", idem="k")
    journal.add(Uncertain, 2, key="0", name="send_mail", reason="no probe")
    journal.add(Park, 2, waits=[Waited(kind="uncertain", key="0")])
    history = History().add(journal.records)
    assert history.summary == "Uncertain"
    assert [r.key for r in history.asked()] == ["0"]
    assert history.park is not None
    journal.add(Settled, 3, key="0", name="send_mail", decision="done", value=None, by="jane", reason="saw it")
    history = History().add(journal.records)
    assert (history.asked(), history.park, history.recorded()) == ([], None, 1)
    assert history.steps[0].note == "settled by jane: saw it"
    journal.add(Timer, 3, key="1", due=99).add(Park, 3, waits=[Waited(kind="timer", key="1", due=99)], wake=99)
    assert History().add(journal.records).summary == "Waiting"
    journal.add(Failure, 4, key="2", name="x", type="E", message="m").add(
        Finished, 4, outcome="failed", type="E", message="m"
    )
    assert History().add(journal.records).summary == "Failed"


def test_a_step_that_is_run_again_is_in_flight_until_its_next_outcome() -> None:
    journal = Journal().add(Intent, key="0", name="pay", effect="at_most_once", input="i", idem="k")
    journal.add(Uncertain, 2, key="0", name="pay", reason="r").add(
        Settled, 2, key="0", name="pay", decision="again", by="j"
    )
    history = History().add(journal.records)
    assert [r.state for r in history.in_flight()] == ["again"]
    assert history.recorded() == 0


def test_decision_is_exactly_one() -> None:
    assert decision("null", False, False) == ("done", None)
    assert decision('{"id": 7}', False, False) == ("done", {"id": 7})
    assert decision("sent at noon", False, False) == ("done", "sent at noon")
    assert decision("NaN", False, False) == ("done", "NaN")
    assert decision(None, True, False) == ("again", None)
    assert decision(None, False, True) == ("fail", None)
    for given in [(None, False, False), ("x", True, False), (None, True, True)]:
        with pytest.raises(ConfigError, match="one of --done VALUE"):
            decision(*given)


def ask(step: str, rows: list[Row]) -> Row:
    return pick("m", step, rows, lambda r: r.key, lambda r: r.name)


def test_question_is_found_by_key_hash_key_or_only_name_and_else_all_are_listed() -> None:
    """C35: an answer names its question; a bare one is refused if several wait."""
    journal = Journal()
    for key, name in (("3", "pay"), ("5", "send_mail"), ("t0/1", "pay")):
        journal.add(Intent, key=key, name=name, effect="at_most_once", input="i", idem="k")
        journal.add(Uncertain, 2, key=key, name=name, reason="r")
    rows = History().add(journal.records).asked()
    assert ask("3", rows).key == "3"
    assert ask("#t0/1", rows).key == "t0/1"
    assert ask("send_mail", rows).key == "5"
    with pytest.raises(ConfigError, match="more than once; name one by its key: pay #3, send_mail #5, pay #t0/1"):
        ask("pay", rows)
    with pytest.raises(ConfigError, match="'9' of run m does not wait for a person; these do: pay #3"):
        ask("9", rows)
    with pytest.raises(ConfigError, match="no step of run m waits for a person"):
        ask("3", [])


def test_inputs_are_json_or_text() -> None:
    assert given_inputs(("a=1", "b=[1, 2]", "c=some text", 'd="1"', "e=", "f=x=y"), None) == {
        "a": 1, "b": [1, 2], "c": "some text", "d": "1", "e": "", "f": "x=y",
    }  # fmt: skip
    with pytest.raises(ConfigError, match="'novalue': write NAME=VALUE"):
        given_inputs(("novalue",), None)
    with pytest.raises(ConfigError, match="--input a: given twice"):
        given_inputs(("a=1", "a=2"), None)


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ("triage", "triage:run"),
        ("triage.py:run", "triage:run"),
        ("a/b.py:go", "a.b:go"),
        (":run", "module:run"),
        ("a:b:c", "a:b"),
    ],
)
def test_a_wrong_entrypoint_is_shown_the_right_form(given: str, advice: str) -> None:
    with pytest.raises(ConfigError, match=f"write MODULE:FUNCTION, for example {advice}"):
        check_entrypoint(given)


@pytest.mark.parametrize("given", ["", "../x", "-x", "a/b", "x" * 53, "a b", ".hidden"])
def test_a_run_id_is_a_safe_file_name(given: str) -> None:
    with pytest.raises(ConfigError, match="letter or digit first, at most 52"):
        check_run_id(given)


def test_sizes_are_checked_at_their_bounds() -> None:
    """C45: a byte below, at and above each bound."""
    check_sizes("x" * 65536, {"a": "y" * (65536 - 8)})
    with pytest.raises(ConfigError, match="goal: 65537 bytes, at most 65536"):
        check_sizes("x" * 65537, {})
    with pytest.raises(ConfigError, match="inputs: 65537 bytes as JSON, at most 65536"):
        check_sizes("x", {"a": "y" * (65536 - 7)})
    with pytest.raises(ConfigError, match="not JSON"):
        check_sizes("x", {"a": float("nan")})
    with pytest.raises(ConfigError, match="the goal is empty"):
        check_sizes(" \n", {})


def spec(**changes: Any) -> RunSpec:
    values: dict[str, Any] = {"entrypoint": "triage:run", "goal": "Triage", "inputs": {"n": 1, "s": "x"}}
    return RunSpec(RunName("monday"), JournalId("monday.1"), **(values | changes))


def test_every_difference_to_the_run_is_named_with_both_values() -> None:
    found = differences(spec(), entrypoint="other:run", goal="Else", inputs={"n": 1.0, "t": True})
    assert found == [
        "entrypoint: was triage:run, now other:run",
        "goal: was 'Triage', now 'Else'",
        "input n: was '1', now '1.0'",
        "input s: was '\"x\"', now absent",
        "input t: was absent, now 'true'",
    ]
    assert differences(spec(), entrypoint="triage:run", goal="Triage", inputs={"s": "x", "n": 1}) == []


def test_the_resume_command_can_be_pasted() -> None:
    import shlex
    from pathlib import Path

    line = resume_command(spec(goal="it's $HOME", inputs={"n": "1", "o": {"a": "b c"}}), LocalDir(Path(".everstep")))
    words = shlex.split(line)
    assert words[words.index("--goal") + 1] == "it's $HOME"
    pairs = tuple(words[i + 1] for i, w in enumerate(words) if w == "--input")
    assert given_inputs(pairs, None) == {"n": "1", "o": {"a": "b c"}}
