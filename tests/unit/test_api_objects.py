"""The run's Secret, its questions, times and tolerant reading (design §3, §4; C35, C41, C45)."""

import base64
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from pydantic import ValidationError
from tests.support.observed import UNCERTAIN, spec

from everstep import contract
from everstep.contract import AttemptSettings
from everstep.ids import EpochMs, JournalId, RunName
from everstep.journal.records import Waited
from everstep_operator.api.meta import RunRef
from everstep_operator.api.models import AgentRunStatus, read_spec, read_status
from everstep_operator.api.request import asks_the_same, build_request, request_name
from everstep_operator.api.secret import InvalidSecretData, RunSecretData, build_run_secret, is_ours
from everstep_operator.api.times import epoch_ms, rfc3339, whole_seconds

REF = RunRef("default", RunName("triage"), JournalId("6f0e"))
OTHER = RunRef("default", RunName("triage"), JournalId("another"))


def data(**changes: Any) -> RunSecretData:
    given = {
        "goal": "Triage ünïcode",
        "inputs": {"b": 1, "a": [1.5]},
        "run_key": b"\x01" * 32,
        "key_id": "k1",
        "store_url": "redis://:pw@store",
    }
    return RunSecretData(**(given | changes))


def test_the_sdk_reads_what_the_operator_wrote(tmp_path: Path) -> None:
    secret = build_run_secret(REF, data(store_ca_pem="PEM"), "prod")
    assert secret["immutable"] is True
    for name, value in secret["data"].items():
        (tmp_path / name).write_bytes(base64.b64decode(value))
    env = {
        contract.ENV_SECRETS_DIR: str(tmp_path),
        contract.ENV_JOURNAL_ID: "6f0e",
        contract.ENV_ATTEMPT: "1",
        contract.ENV_ENTRYPOINT: "a:b",
    }
    settings = AttemptSettings.from_env(env)
    assert (settings.goal, settings.inputs, settings.run_key, settings.key_id) == (
        "Triage ünïcode",
        {"a": [1.5], "b": 1},
        b"\x01" * 32,
        "k1",
    )
    assert (settings.store_url, settings.store_ca_path) == ("redis://:pw@store", str(tmp_path / contract.FILE_STORE_CA))


def test_a_secret_is_ours_by_the_owner_s_uid() -> None:
    secret = build_run_secret(REF, data(), "prod")
    assert is_ours(secret, REF)
    assert not is_ours(secret, OTHER), "a run of the same name is another run"
    assert not is_ours({"metadata": {}}, REF)


def test_secrets_are_not_shown() -> None:
    assert "pw" not in repr(data())
    assert "\\x01" not in repr(data())


def test_the_bound_of_the_inputs_holds_to_the_byte() -> None:
    """C45."""
    fits = {"a": "x" * (64 * 1024 - len('{"a":""}'))}
    build_run_secret(REF, data(inputs=fits), "prod")
    with pytest.raises(InvalidSecretData) as refused:
        build_run_secret(REF, data(inputs={"a": fits["a"] + "x"}), "prod")
    assert "spec.inputs takes 65537 bytes, at most 65536" in str(refused.value)


def test_a_goal_from_elsewhere_has_a_bound_too() -> None:
    with pytest.raises(InvalidSecretData, match="the goal takes"):
        build_run_secret(REF, data(goal="x" * (256 * 1024 + 1)), "prod")


# --- questions


def test_a_question() -> None:
    request = build_request(REF, structs.replace(UNCERTAIN, arguments={"to": "a@b"}, reason="lost"), "prod")
    asked = request["spec"]
    assert (asked["runRef"], asked["key"], asked["kind"], asked["step"]) == (
        {"name": "triage", "uid": "6f0e"},
        "12",
        "uncertain",
        "send_mail",
    )
    assert (asked["arguments"], asked["argumentsDigest"], asked["reason"]) == ({"to": "a@b"}, "a" * 64, "lost")
    assert "response" not in asked
    assert request["metadata"]["ownerReferences"][0]["uid"] == "6f0e"
    assert len(request["metadata"]["name"]) <= 63
    assert len(request_name("x" * 52, UNCERTAIN)) <= 63


def test_a_question_about_exhausted_tries() -> None:
    wait = structs.replace(UNCERTAIN, kind="exhausted", reason="all tries failed (max_tries is 3)")
    request = build_request(REF, wait, "prod")
    assert request["spec"]["kind"] == "exhausted"
    assert "failed in all the tries it has" in request["spec"]["prompt"]
    assert request_name("triage", wait) != request_name("triage", UNCERTAIN)


def test_long_arguments_are_not_shown_but_their_digest_is() -> None:
    request = build_request(REF, structs.replace(UNCERTAIN, arguments="x" * 5000), "prod")
    assert "arguments" not in request["spec"]
    assert request["spec"]["argumentsDigest"] == "a" * 64


def test_every_question_has_its_own_name() -> None:
    """C35: parallel and later questions never share one."""
    others: list[Waited] = [structs.replace(UNCERTAIN, **u) for u in ({"key": "13"}, {"since": 1}, {"input": "b" * 64})]
    names = {
        request_name("triage", UNCERTAIN),
        request_name("triage", UNCERTAIN, 2),
        *(request_name("triage", w) for w in others),
    }
    assert len(names) == 5
    assert request_name("triage", UNCERTAIN) == request_name("triage", structs.replace(UNCERTAIN, reason="other words"))


def test_only_the_same_unanswered_question_is_adopted() -> None:
    wanted = build_request(REF, UNCERTAIN, "prod")
    assert asks_the_same(wanted, wanted)
    assert not asks_the_same({**wanted, "spec": {**wanted["spec"], "prompt": "send it?"}}, wanted)
    assert not asks_the_same({**wanted, "spec": {**wanted["spec"], "response": {"decision": "done"}}}, wanted)


# --- times and reading


@pytest.mark.parametrize("ms", [0, 1, 999, 1000, 1_770_000_000_000, 1_770_000_000_250])
def test_times_round_trip(ms: int) -> None:
    assert epoch_ms(rfc3339(EpochMs(ms))) == ms


def test_times_on_the_wire() -> None:
    assert rfc3339(EpochMs(1_770_000_000_000)) == "2026-02-02T02:40:00Z"
    assert rfc3339(EpochMs(1_770_000_000_250)) == "2026-02-02T02:40:00.250Z"
    assert whole_seconds(EpochMs(1_770_000_000_250)) == "2026-02-02T02:40:00Z"
    assert epoch_ms("2026-02-02T02:40:00.123456Z") == 1_770_000_000_123
    assert epoch_ms("tomorrow") is None
    assert epoch_ms(None) is None


def test_unknown_fields_of_a_newer_schema_are_ignored() -> None:
    parsed = read_spec({**spec(), "budget": {"maxSteps": 5}, "agent": {"entrypoint": "a:b", "gpu": True}})
    assert parsed.agent.entrypoint == "a:b"


def test_a_missing_entrypoint_is_named() -> None:
    with pytest.raises(ValidationError, match=r"entrypoint"):
        read_spec({"goal": "x", "agent": {}})


def test_an_absent_status_reads_as_the_empty_one_and_a_written_one_round_trips() -> None:
    assert read_status(None) == AgentRunStatus()
    wire = {
        "attempt": 2,
        "attempts": [{"number": 1, "podUID": "u", "class": "Disruption"}],
        "usage": {"costMicroUSD": 7},
        "conditions": None,
    }
    status = read_status(wire)
    assert (status.attempts[0].pod_uid, status.attempts[0].class_, status.usage.cost_micro_usd) == (
        "u",
        "Disruption",
        7,
    )
    again = status.to_wire()
    assert again["attempts"][0]["podUID"] == "u"
    assert again["attempts"][0]["class"] == "Disruption"
    assert again["usage"]["costMicroUSD"] == 7
    assert read_status(again) == status
