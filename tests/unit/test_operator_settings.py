"""Settings: every one documented, bad values named with the variable; the key ring; memory; health's complaints."""

import base64
import dataclasses
from pathlib import Path

import pytest

from everstep.clock import SystemClock
from everstep.errors import ConfigError
from everstep.ids import JournalId, Seq
from everstep.journal.store import DurabilityReport, Head
from everstep_operator import faults
from everstep_operator.decide.model import PodView
from everstep_operator.health import Vitals, complaints
from everstep_operator.keyring import KeyRing, read_keys
from everstep_operator.memory import Memories, RunKey
from everstep_operator.process import rules_of
from everstep_operator.settings import Settings
from everstep_operator.store_check import problems_of

LEAST = {"EVERSTEP_OPERATOR_NAMESPACE": "sys", "EVERSTEP_STORE_URL": "redis://r"}


def test_every_setting_says_meaning_and_unit() -> None:
    for variable, unit, _, meaning in Settings.table():
        assert variable.startswith("EVERSTEP_")
        assert unit
        assert len(meaning) > 30, f"{variable} needs a meaning and a reason"
    assert len({row[0] for row in Settings.table()}) == len(dataclasses.fields(Settings))


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("EVERSTEP_OPERATOR_NAMESPACE", "", "EVERSTEP_OPERATOR_NAMESPACE"),
        ("EVERSTEP_STORE_URL", "", "EVERSTEP_STORE_URL_FILE"),
        ("EVERSTEP_WORKERS", "many", "a whole number"),
        ("EVERSTEP_WORKERS", "0", "at least 1"),
        ("EVERSTEP_RESYNC_SECONDS", "-5", "EVERSTEP_RESYNC_SECONDS"),
        ("EVERSTEP_DURABILITY", "Sometimes", "EveryWrite, EverySecond"),
        ("EVERSTEP_DURABILITY_DECLARED", "maybe", "true or false"),
        ("EVERSTEP_AGENT_RESOURCES", "[1]", "JSON object"),
        ("EVERSTEP_INSTALLATION", "a:b", "lower-case"),
        ("EVERSTEP_STORE_URL_FILE", "/does/not/exist", "cannot read /does/not/exist"),
        ("EVERSTEP_LOG_LEVEL", "LOUD", "EVERSTEP_LOG_LEVEL"),
    ],
)
def test_a_bad_value_is_refused_by_name(name: str, value: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Settings.from_env({**LEAST, name: value})


def test_a_file_with_the_url_wins_and_never_shows(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text("rediss://user:hunter2@r\n")
    settings = Settings.from_env({**LEAST, "EVERSTEP_STORE_URL_FILE": str(file)})
    assert settings.store_url == "rediss://user:hunter2@r"
    assert "hunter2" not in repr(settings)
    assert rules_of(settings).store_name == "rediss"


def test_the_journal_key_shown_in_the_status_is_the_real_one() -> None:
    rules = rules_of(Settings.from_env({**LEAST, "EVERSTEP_INSTALLATION": "prod"}))
    assert rules.journal_key_format.format(uid="6f0e") == "es:prod:{6f0e}:journal"


def report(level: str | None, **more: bool) -> DurabilityReport:
    return DurabilityReport(level, (), "redis 7.0.15", "id", **more)


def test_what_cannot_be_read_must_be_declared() -> None:
    plain = Settings.from_env(LEAST)
    declared = dataclasses.replace(plain, durability_declared=True)
    assert problems_of(report("EveryWrite"), plain) == ()
    assert "durabilityDeclared" in problems_of(report(None), plain)[0]
    assert problems_of(report(None), declared) == ()
    assert "everysec" in problems_of(report("EverySecond"), declared)[0], "what can be read is never taken on trust"
    assert problems_of(report("EverySecond"), dataclasses.replace(plain, durability="EverySecond")) == ()


def test_keys_newest_id_for_new_journals_and_the_anchored_one_for_begun_ones() -> None:
    ring = KeyRing({"k2": b"2" * 32, "k10": b"1" * 32})
    journal = JournalId("u")
    assert ring.current == "k10"
    old = Head(Seq(0), ring.chain(journal, "k2").genesis())
    assert ring.key_id_for_anchor(journal, old) == "k2"
    assert ring.key_id_for_anchor(journal, None) == "k10"
    assert "2222" not in repr(ring)


@pytest.mark.parametrize("data", [{}, {"k1": "###"}, {"k1": base64.b64encode(b"short").decode()}])
def test_a_key_secret_that_cannot_be_used_is_refused(data: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="Secret x"):
        read_keys({"data": data}, "Secret x")


def a_pod(uid: str, attempt: int) -> PodView:
    return PodView(uid, uid, True, attempt, "Running", SystemClock().now_epoch_ms())  # type: ignore[arg-type]  # an int stands for Attempt


def test_a_pod_that_is_gone_is_remembered_until_the_next_attempt_has_one() -> None:
    memories = Memories()
    memory = memories.of("n", "r", JournalId("u"))
    memory.see_pods([a_pod("p1", 1)])
    assert [(p.uid, p.gone) for p in memory.see_pods([])] == [("p1", True)]
    assert [(p.uid, p.gone) for p in memory.see_pods([a_pod("p2", 2)])] == [("p2", False)]
    assert [(p.uid, p.gone) for p in memory.see_pods([])] == [("p2", True)]


def test_a_name_that_has_a_new_run_tells_of_the_old_one() -> None:
    memories = Memories()
    memories.of("n", "r", JournalId("old"))
    memories.of("n", "r", JournalId("new"))
    assert memories.others(RunKey("n", "r"), JournalId("new")) == [JournalId("old")]
    memories.forget(JournalId("old"))
    assert memories.others(RunKey("n", "r"), JournalId("new")) == []
    memories.forget(JournalId("new"))
    assert memories.all() == []
    assert memories._uids == {}, "nothing is left of runs that are gone"


def test_health_complains_only_of_what_a_restart_cures() -> None:
    fine = Vitals(queue_stuck_s=1, watching=True, resync_loop_alive=True, resync_age_s=9999, ready=True)
    assert complaints(fine) == []
    assert complaints(dataclasses.replace(fine, watching=False))
    assert complaints(dataclasses.replace(fine, resync_loop_alive=False))
    assert complaints(dataclasses.replace(fine, queue_stuck_s=1000))


@pytest.mark.parametrize("spec", ["no_such_point=kill", "after_bump=explode"])
def test_an_unknown_fault_is_refused(spec: str) -> None:
    with pytest.raises(ValueError, match="unknown"):
        faults.arm(spec)


def test_a_fault_acts_once_even_over_restarts(tmp_path: Path) -> None:
    try:
        faults.arm("after_bump:2=fail", str(tmp_path))
        faults.reach("after_bump")
        with pytest.raises(faults.FaultInjected):
            faults.reach("after_bump")
        faults.disarm()
        faults.arm("after_bump:1=fail", str(tmp_path))
        faults.reach("after_bump")
    finally:
        faults.arm("", "")
        faults.disarm()
