"""`python -m everstep_operator.inspect` on a real Redis with a keyed journal: the documents that `kubectl everstep` shows."""

import io
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from click.testing import CliRunner

from everstep.cli import inspect as shown
from everstep.cli.exits import Refusal
from everstep.errors import ConfigError, JournalLost, JournalTampered
from everstep.ids import Attempt, JournalId, Owner, Seq
from everstep.journal.chain import Chain
from everstep.journal.exported import check_export
from everstep.journal.inbox import BudgetBody, read_body
from everstep.journal.open import open_store
from everstep.journal.records import Finished, Intent, Park, Record, Result, RunStarted, Waited, encode
from everstep.journal.signing import SigningKey, SigningRing, read_public_keys
from everstep.journal.store import AppendAnswer, Head, Sealed, Store
from everstep_operator import inspect
from everstep_operator.keyring import KeyRing
from everstep_operator.settings import Settings
from tests.support import servers

JOURNAL = JournalId("6f0e1f0a-0000-4000-8000-000000000001")
RING = KeyRing({"k1": b"\x07" * 32})
CHAIN = RING.chain(JOURNAL, "k1")
SIGNING = SigningRing({"s1": SigningKey.new(), "s2": SigningKey.new()})


@pytest.fixture(scope="module")
def redis_url() -> Any:
    with servers.running("redis-7.0") as server:
        yield server.url


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[Store]:
    found = open_store(redis_url, installation="prod")
    await found.fence(JOURNAL, Attempt(1), Head(Seq(0), CHAIN.genesis()), {"name": "triage", "keyId": "k1"})
    await found.claim(JOURNAL, Attempt(1), Owner("o"))
    yield found
    await found.sweep(JOURNAL)
    await found.aclose()


@pytest.fixture
def settings(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Settings:
    async def keys(_: Settings) -> KeyRing:
        return RING

    async def signing_keys(_: Settings) -> SigningRing:
        return SIGNING

    monkeypatch.setattr(inspect, "_keys", keys)  # the Secrets need a cluster; e2e reads the real ones
    monkeypatch.setattr(inspect, "_signing_keys", signing_keys)
    return Settings(installation="prod", operator_namespace="ops", store_url=redis_url)


async def write(store: Store, *records: Record) -> Head:
    """Append records behind the head."""
    meta = await store.meta(JOURNAL)
    assert meta is not None
    head = meta.head
    for record in records:
        raw = encode(record)
        link = CHAIN.link(head.hash, raw)
        sealed = Sealed(Seq(head.seq + 1), raw, head.hash, link)
        reply = await store.append(JOURNAL, Attempt(1), Owner("o"), head, [sealed])
        assert reply.answer is AppendAnswer.OK
        head = Head(sealed.seq, link)
    return head


def story(value: object) -> list[Record]:
    common: dict[str, Any] = {"attempt": 1, "time": 1_767_225_600_000}
    return [
        RunStarted(seq=1, run="triage", python="3.11", sdk="0.1.0", **common),
        Intent(seq=2, key="0", name="classify", effect="read", input="i", idem="k", **common),
        Result(
            seq=3,
            key="0",
            name="classify",
            value=1,
            took_ms=1200,
            usage={"inputTokens": 8, "outputTokens": 9},
            **common,
        ),
        Finished(seq=4, outcome="succeeded", value=value, **common),
    ]


async def ask(settings: Settings, *words: str) -> dict[str, Any]:
    arguments = inspect._parser().parse_args([*words, "--run", "triage", "--journal", JOURNAL])
    return await inspect.answer(arguments, settings)


async def test_steps_and_result(store: Store, settings: Settings) -> None:
    await write(store, *story("triaged"))
    assert await ask(settings, "result") == {"run": "triage", "outcome": "succeeded", "result": "triaged"}
    (step,) = (await ask(settings, "steps"))["steps"]
    assert (step["key"], step["name"], step["state"], step["tookMs"], step["inputTokens"]) == (
        "0",
        "classify",
        "result",
        1200,
        8,
    )


async def test_a_large_result_is_fetched_from_beside_the_journal_and_checked(store: Store, settings: Settings) -> None:
    import hashlib

    raw = json.dumps("x" * 100_000).encode()
    digest = hashlib.sha256(raw).hexdigest()
    await write(store, *story({"$blob": digest, "bytes": len(raw)}))
    with pytest.raises(Refusal, match="is missing"):
        await ask(settings, "result")
    await store.blob_put(JOURNAL, digest, raw)
    assert (await ask(settings, "result"))["result"] == "x" * 100_000
    await store.blob_put(JOURNAL, digest, raw)
    await store.sweep(JOURNAL)


async def test_no_result_yet_and_no_journal_are_told_apart(store: Store, settings: Settings) -> None:
    with pytest.raises(Refusal, match="no result yet") as caught:
        await ask(settings, "result")
    assert caught.value.exit_code == 3
    await store.sweep(JOURNAL)
    with pytest.raises(ConfigError, match="has no journal yet"):
        await ask(settings, "result")


async def test_verify_uses_the_runs_key_and_the_anchor_of_the_object(store: Store, settings: Settings) -> None:
    head = await write(store, *story("triaged"))
    whole = await ask(settings, "verify", "--anchor", f"4:{head.hash}")
    assert (whole["whole"], whole["records"], whole["badSeq"]) == (True, 4, None)
    wrong = await ask(settings, "verify", "--anchor", f"4:{'a' * 64}")
    assert (wrong["whole"], wrong["badSeq"]) == (False, 4)
    lost = await ask(settings, "verify", "--anchor", f"9:{head.hash}")
    assert (lost["whole"], lost["verdict"]) == (False, "lost")
    with pytest.raises(ConfigError, match="write SEQ:HASH"):
        await ask(settings, "verify", "--anchor", "nonsense")


async def test_a_journal_rebuilt_without_the_key_is_not_whole(store: Store, settings: Settings) -> None:
    await store.sweep(JOURNAL)
    plain = Chain(JOURNAL)
    await store.fence(JOURNAL, Attempt(1), Head(Seq(0), plain.genesis()), {"keyId": "k1"})
    await store.claim(JOURNAL, Attempt(1), Owner("o"))
    raw = encode(story("forged")[0])
    link = plain.link(plain.genesis(), raw)
    await store.append(
        JOURNAL, Attempt(1), Owner("o"), Head(Seq(0), plain.genesis()), [Sealed(Seq(1), raw, plain.genesis(), link)]
    )
    forged = await ask(settings, "verify")
    assert (forged["whole"], forged["badSeq"]) == (False, 1)


async def test_a_forged_result_is_refused_and_only_proved_steps_are_shown(store: Store, settings: Settings) -> None:
    """Anybody who writes to Redis can append a `finished` record, but has no key."""
    head = await write(store, *story("triaged")[:3])
    raw = encode(story("FORGED")[3])
    link = Chain(JOURNAL).link(head.hash, raw)
    await store.append(JOURNAL, Attempt(1), Owner("o"), head, [Sealed(Seq(4), raw, head.hash, link)])
    with pytest.raises(JournalTampered) as caught:
        await ask(settings, "result")
    assert caught.value.bad_seq == 4
    document = await ask(settings, "steps")
    assert "tampered at record 4" in document["problem"]
    assert [step["name"] for step in document["steps"]] == ["classify"]


async def exported(settings: Settings, *words: str) -> bytes:
    question = ["export", "--run", "triage", "--namespace", "prod", "--journal", JOURNAL, *words]
    out = io.BytesIO()
    await inspect.write_export(inspect._parser().parse_args(question), settings, out.write)
    return out.getvalue()


async def test_an_export_is_proved_by_the_keys_that_public_key_prints(store: Store, settings: Settings) -> None:
    head = await write(store, *story("triaged"))
    data = await exported(settings, "--anchor", f"4:{head.hash}")
    public = read_public_keys((await ask(settings, "public-key"))["publicKeys"], "here")
    report = await check_export(io.BytesIO(data), trusted=public, demand_signature=True, anchor=head)
    assert (report.whole, report.records, report.proved_by, report.signer) == (True, 4, ("signature",), public[1].id)
    report = await check_export(io.BytesIO(data), key=RING.keys["k1"])
    assert (report.whole, report.proved_by) == (True, ("key",))
    header = json.loads(data.splitlines()[0])
    assert (header["namespace"], header["keyId"], header["chain"]) == ("prod", "k1", "hmac-sha256")
    assert RING.keys["k1"].hex() not in data.decode()


async def test_what_is_not_whole_is_not_exported(store: Store, settings: Settings) -> None:
    head = await write(store, *story("triaged"))
    with pytest.raises(JournalLost):
        await exported(settings, "--anchor", f"9:{head.hash}")
    with pytest.raises(JournalTampered):
        await exported(settings, "--anchor", f"4:{'a' * 64}")


def test_the_module_answers_one_document_even_when_it_fails(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EVERSTEP_OPERATOR_NAMESPACE", "ops")
    monkeypatch.setenv("EVERSTEP_STORE_URL", redis_url)
    inspect.main(["result", "--run", "nobody", "--journal", "none"])
    document = json.loads(capsys.readouterr().out)
    assert document == {
        "error": "run nobody has no journal yet: it was never started, or its journal was removed",
        "exit": 2,
    }
    monkeypatch.setenv("EVERSTEP_STORE_URL", "unix:///nonexistent/redis.sock")
    inspect.main(["steps", "--run", "nobody", "--journal", "none"])
    assert json.loads(capsys.readouterr().out)["exit"] == 69


def test_a_failed_run_prints_nothing_on_standard_output() -> None:
    import click

    @click.command()
    def command() -> None:
        document = {"run": "r", "outcome": "failed", "type": "ValueError", "message": "no\x1b[2J ticket", "data": None}
        raise SystemExit(shown.print_result(document, ""))

    done = CliRunner().invoke(command)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "ValueError: no" in done.stderr
    assert "\x1b" not in done.stderr


async def test_a_change_of_the_budget_becomes_an_inbox_entry_under_the_runs_key(
    store: Store, settings: Settings
) -> None:
    records = story(1)[:3]
    head = await write(store, *records)
    words = ["budget", "--limits", '{"maxTokens": 400}', "--by", "jane", "--entry", "ab12"]
    assert await ask(settings, *words) == {"run": "triage", "entry": "budget-0-ab12", "parked": False}
    await ask(settings, *words)
    (entry,) = await store.inbox_read(JOURNAL)
    body = read_body(CHAIN, entry)
    assert isinstance(body, BudgetBody)
    assert (body.limits, body.by) == ({"maxTokens": 400}, "jane")
    with pytest.raises(ConfigError, match="unknown field maxToken"):
        await ask(settings, "budget", "--limits", '{"maxToken": 400}', "--entry", "x")
    held = Waited(kind="budget", key="1", name="think")
    await write(store, Park(seq=head.seq + 1, attempt=1, time=1_767_225_600_000, waits=[held]))
    told = await ask(settings, *words)
    assert (told["entry"], told["parked"]) == (f"budget-{head.seq + 1}-ab12", True)
    assert len(await store.inbox_read(JOURNAL)) == 2
