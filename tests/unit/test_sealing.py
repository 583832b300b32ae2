"""Encrypted payloads: unreadable without the data key, replayed with it, bound to their place; the chain proves either way."""

import asyncio
import io
import json
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import everstep
from everstep import Retry, StepFailed
from everstep.errors import ConfigError, JournalUnreadable
from everstep.ids import JournalId, Seq
from everstep.journal.chain import Chain
from everstep.journal.datakeys import (
    FIELD,
    WrappingKeys,
    erased_fields,
    new_key,
    rewrapped_fields,
    sealer,
    unwrap,
    wrap,
)
from everstep.journal.export import About, export
from everstep.journal.exported import check_export
from everstep.journal.inbox import SettleBody, make_entry, read_body
from everstep.journal.records import decode
from everstep.journal.sealing import ERASED, Sealer, hidden
from everstep.journal.signing import SigningKey
from everstep.journal.verify import verify
from everstep.testing import MemoryRun

JOURNAL = JournalId("memory-run")
KEY = b"\x05" * 32
SECRET = "joan-of-arc"
"""A word that stands in every payload of the agents here."""
sent: list[str] = []


def sealing(keys: dict[str, bytes] | None = None) -> Sealer:
    return Sealer(JOURNAL, {"d1": KEY} if keys is None else keys, os.urandom)


def encrypted(run: MemoryRun[Any], *, key: bytes | None = None) -> MemoryRun[Any]:
    """The same run, encrypted."""
    run.chain = Chain(run.journal_id, key, sealing())
    return run


@everstep.step(effect="read")
async def look(who: str) -> dict[str, str]:
    return {"seen": who}


@everstep.step(effect="read")
async def large(who: str) -> str:
    return who * 10_000


@everstep.step(effect="idempotent", retry=Retry(max_tries=2))
async def flaky(who: str) -> str:
    raise ConnectionError(f"{who} is away")


@everstep.step(effect="at_most_once")
async def send(who: str) -> str:
    sent.append(who)
    return f"to {who}"


@everstep.agent
async def everything(goal: str, who: str) -> str:
    seen = await look(who)
    big = await large(who)
    try:
        await flaky(who)
    except StepFailed as e:
        seen["error"] = e.message
    await asyncio.sleep(1)
    return f"{goal}: {seen} {len(big)} {everstep.uuid4()} {await send(who)}"


def begun(**more: Any) -> MemoryRun[Any]:  # Any: arguments of MemoryRun
    return MemoryRun(everything, f"find {SECRET}", {"who": SECRET}, **more)


@pytest.fixture(autouse=True)
def _fresh_world() -> None:
    sent.clear()


def stored_text(run: MemoryRun[Any]) -> str:
    """Everything the store holds of the run's payloads."""
    blobs = [value.decode() for value in run.store.blobs.values()]
    inbox = [entry.body.decode() for entry in run.store.inboxes.get(run.journal_id, [])]
    return "\n".join([*(raw.decode() for raw in run.raw_records), *blobs, *inbox])


def test_nothing_that_was_told_or_made_can_be_read_in_the_store() -> None:
    plain, run = begun(), encrypted(begun())
    assert plain.attempt().kind == "succeeded"
    ended = run.attempt()
    assert ended.kind == "succeeded"
    assert SECRET in str(ended.value)
    assert SECRET in stored_text(plain)
    text = stored_text(run)
    assert SECRET not in text
    started = json.loads(plain.raw_records[0])
    assert started["goal"] not in text, "digests could be guessed from"
    intents = [record for record in run.records if record.kind == "intent"]
    assert intents
    assert not any(record.input in text for record in intents)
    assert [r.kind for r in run.records] == [r.kind for r in plain.records], (
        "no record more: one durable write per step"
    )
    assert all(json.loads(raw)["sealed"] == "d1" for raw in run.raw_records)


def test_without_the_option_the_bytes_are_as_ever() -> None:
    from everstep.journal.records import encode

    run = begun()
    run.attempt()
    assert run.raw_records == [encode(record) for record in run.records]
    assert b"$enc" not in b"".join(run.raw_records)


def test_replay_repeats_nothing_and_gives_the_same() -> None:
    run = encrypted(begun())
    first = run.attempt()
    before = dict(run.bodies)
    again = run.attempt(run_to_end=True)
    assert (again.kind, again.value) == ("succeeded", first.value)
    assert dict(run.bodies) == before


def test_every_crash_goes_on_from_the_record() -> None:
    moment, history = 1, 0
    while True:
        run = encrypted(begun(), key=b"\x03" * 32)
        if run.attempt(crash_at=f"any:{moment}").kind != "crashed":
            break
        kept = run.raw_records
        ended = run.attempt()
        if ended.kind == "parked":
            run.settle("3", "done", f"to {SECRET}", reason=SECRET)
            ended = run.attempt()
        assert ended.kind == "succeeded", (moment, run.reached[-1:], ended)
        assert run.raw_records[: len(kept)] == kept, "the crashed history is a prefix of the final one"
        assert sent.count(SECRET) <= 1
        assert SECRET not in stored_text(run)
        sent.clear()
        moment, history = moment + 1, history + len(kept)
    assert moment > 20
    assert history


def test_a_persons_answer_is_sealed_in_the_inbox_and_taken() -> None:
    run = encrypted(MemoryRun(mailing, "go", {"who": SECRET}))
    assert run.attempt(crash_at="after_effect").kind == "crashed"
    ended = run.attempt(predecessor_dead=False)
    assert ended.kind == "parked"
    assert ended.waits[0].arguments == {"who": SECRET}
    run.settle(ended.waits[0].key, "done", f"to {SECRET}", reason=f"asked {SECRET}")
    assert run.attempt().value == f"to {SECRET}"
    assert SECRET not in stored_text(run)
    assert sent == [SECRET]


@everstep.agent
async def mailing(goal: str, who: str) -> str:
    return await send(who)


@pytest.mark.parametrize("given", [None, Sealer(JOURNAL, {"d1": b"\x06" * 32}, os.urandom)], ids=["none", "another"])
def test_an_attempt_without_the_key_starts_nothing(given: Sealer | None) -> None:
    run = encrypted(begun())
    run.attempt(crash_at="after_effect")
    bodies = dict(run.bodies)
    run.chain = replace(run.chain, sealer=given)
    ended = run.attempt()
    assert isinstance(ended.error, JournalUnreadable)
    assert dict(run.bodies) == bodies


def test_no_payload_can_be_moved() -> None:
    """Ciphertexts are genuine, each for its own journal, record, kind and field."""
    run = encrypted(begun())
    run.attempt()
    raws = [json.loads(raw) for raw in run.raw_records]
    places = [
        (n, name)
        for n, raw in enumerate(raws)
        for name, value in raw.items()
        if isinstance(value, dict) and "$enc" in value
    ]
    assert len(places) > 10
    opened = sealing()
    for n, name in places:
        m, other = next(place for place in places if place != (n, name))
        moved = dict(raws[n], **{name: raws[m][other]})
        with pytest.raises(JournalUnreadable, match="cannot be decrypted"):
            opened.open(json.dumps(moved).replace(": ", ":").encode(), Seq(n + 1))
    elsewhere = Sealer(JournalId("other"), {"d1": KEY}, os.urandom)
    with pytest.raises(JournalUnreadable):
        elsewhere.open(run.raw_records[0], Seq(1))


async def test_the_chain_proves_and_exports_without_any_data_key() -> None:
    run = encrypted(begun(), key=b"\x03" * 32)
    await asyncio.to_thread(run.attempt)
    bare = Chain(run.journal_id, b"\x03" * 32)
    assert (await verify(run.store, bare, run.journal_id)).whole
    out, signer = io.BytesIO(), SigningKey.new()
    await export(run.store, bare, About("r"), out.write, anchor=None, signer=signer)
    assert SECRET.encode() not in out.getvalue()
    report = await check_export(io.BytesIO(out.getvalue()), trusted=[signer.public], demand_signature=True)
    assert report.whole


def test_who_has_no_key_sees_what_happened_and_not_what_was_said() -> None:
    run = encrypted(begun())
    run.attempt(crash_at="after_effect:5")
    run.attempt(predecessor_dead=False)
    for shown in (hidden(JOURNAL), Sealer(JOURNAL, {}, os.urandom, ERASED)):
        records = [decode(raw, Seq(n + 1), shown) for n, raw in enumerate(run.raw_records)]
        assert [(r.kind, r.key, r.name) for r in records] == [(r.kind, r.key, r.name) for r in run.records]
        text = "\n".join(str(record) for record in records)
        assert SECRET not in text
        assert str(shown.hidden) in text
        assert records[-1].kind == "park"


def test_two_data_keys_open_what_each_sealed() -> None:
    run = encrypted(begun())
    run.attempt(crash_at="after_effect:2")
    run.chain = replace(run.chain, sealer=sealing({"d1": KEY, "d2": b"\x06" * 32}))
    assert run.attempt().kind == "succeeded"
    assert {json.loads(raw)["sealed"] for raw in run.raw_records} == {"d1", "d2"}


def test_the_same_blob_put_twice_has_one_name() -> None:
    blob = b'"' + b"x" * 100_000 + b'"'
    once, again = sealing().seal_blob(blob), sealing().seal_blob(blob)
    assert once == again
    assert sealing().open_blob(once, Seq(1)) == blob
    with pytest.raises(JournalUnreadable, match="not sealed"):
        sealing().open_blob(blob, Seq(1))


def test_an_inbox_entry_is_bound_to_its_id_and_may_be_plain() -> None:
    """An operator without the data key writes plain answers; they count as well."""
    from everstep.ids import InboxId

    chain, body = (
        Chain(JOURNAL, sealer=sealing()),
        SettleBody(key="3", input="i", decision="done", value=SECRET, by="jane"),
    )
    entry = make_entry(chain, InboxId("settle-1"), body)
    assert SECRET.encode() not in entry.body
    assert read_body(chain, entry) == body
    moved = InboxId("settle-2")
    assert read_body(chain, entry._replace(id=moved, mac=chain.inbox_mac(moved, entry.body))) is None
    assert read_body(chain, make_entry(Chain(JOURNAL), InboxId("settle-3"), body)) == body


# --- data keys


RING = WrappingKeys({"w1": b"\x01" * 32})
Spoil = Callable[[str], str]


def test_a_data_key_is_kept_wrapped_rotated_and_erased() -> None:
    made, fields = new_key(RING, JOURNAL, os.urandom)
    key = made.keys["d1"]
    assert key.hex() not in str(fields)
    found = sealer(fields, RING, JOURNAL, os.urandom)
    assert found is not None
    assert found.keys == {"d1": key}
    newer = WrappingKeys({**RING.keys, "w2": b"\x02" * 32})
    rewrapped = rewrapped_fields(fields, newer, JOURNAL, os.urandom)
    assert rewrapped[FIELD + "d1"].startswith("w2:")
    assert rewrapped_fields(rewrapped, newer, JOURNAL, os.urandom) == {}
    only_new = WrappingKeys({"w2": b"\x02" * 32})
    again = sealer(rewrapped, only_new, JOURNAL, os.urandom)
    assert again is not None
    assert again.keys == {"d1": key}
    with pytest.raises(ConfigError, match="wrapped under w1, which is not here"):
        sealer(fields, only_new, JOURNAL, os.urandom)
    gone = fields | erased_fields(fields, 1234)  # type: ignore[arg-type]  # a plain number stands for the time
    after = sealer(gone, WrappingKeys({}), JOURNAL, os.urandom)
    assert after is not None
    assert (dict(after.keys), after.hidden) == ({}, ERASED)
    assert erased_fields(gone, 5678) == {}  # type: ignore[arg-type]  # as above
    assert sealer({"name": "x"}, RING, JOURNAL, os.urandom) is None


@pytest.mark.parametrize(
    "spoil",
    [lambda t: t[:-6] + "AAAAA=", lambda t: "w1:", lambda t: "w1:%%%", lambda t: t.replace("w1", "w9")],
    ids=["altered", "empty", "no-base64", "unknown"],
)
def test_a_wrapped_key_that_was_changed_is_refused(spoil: Spoil) -> None:
    text = wrap(RING, JOURNAL, "d1", KEY, os.urandom)
    assert unwrap(RING, JOURNAL, "d1", text) == KEY
    with pytest.raises(ConfigError):
        unwrap(RING, JOURNAL, "d1", spoil(text))
    for journal, key_id in ((JournalId("other"), "d1"), (JOURNAL, "d2")):
        with pytest.raises(ConfigError, match="cannot be unwrapped"):
            unwrap(RING, journal, key_id, text)


# --- epochs


@everstep.agent
async def counting(goal: str, who: str) -> str:
    state = everstep.restored(dict) or {"seen": []}
    while len(state["seen"]) < 4:
        state["seen"].append((await look(f"{who} {len(state['seen'])}"))["seen"])
        state["pad"] = who * 10_000 if len(state["seen"]) == 2 else ""
        everstep.snapshot(state)
    return ",".join(state["seen"])


@everstep.agent
async def chaining(goal: str, who: str, round_: int = 0) -> str:
    await look(f"{who} {round_}")
    if round_ < 2:
        everstep.continue_as_new(who=who * (7_000 if round_ == 1 else 1), round_=round_ + 1)
    return f"{len(who)}"


@pytest.mark.parametrize("agent", [counting, chaining], ids=["snapshot", "segment"])
def test_epochs_are_sealed_and_taken_up(agent: Any) -> None:
    """State and inputs, small and as a blob, and the records that are carried over."""
    plain: Any = MemoryRun(agent, f"find {SECRET}", {"who": SECRET}).attempt().value
    moment = 1
    while True:
        run = encrypted(MemoryRun(agent, f"find {SECRET}", {"who": SECRET}))
        crashed = run.attempt(crash_at=f"any:{moment}").kind == "crashed"
        ended = run.attempt()
        assert (ended.kind, ended.value) == ("succeeded", plain), (moment, ended)
        assert SECRET not in stored_text(run)
        if not crashed:
            break
        moment += 7
    assert {"snapshot", "segment"} & {r.kind for r in run.records}
    records = [decode(raw, Seq(n + 1), hidden(JOURNAL)) for n, raw in enumerate(run.raw_records)]
    assert SECRET not in str(records)


async def test_values_that_only_a_kept_record_names_are_exported() -> None:
    run = MemoryRun(chaining, "go", {"who": SECRET})
    await asyncio.to_thread(run.attempt)
    out = io.BytesIO()
    await export(run.store, run.chain, About("r"), out.write, anchor=None, signer=None)
    assert out.getvalue().count(b'{"blob"') == len(run.store.blobs) > 0


def test_a_fork_is_sealed_anew_values_beside_the_records_too() -> None:
    run = encrypted(begun(), key=b"\x03" * 32)
    assert run.attempt().kind == "succeeded"
    twin = run.fork("3")
    assert SECRET not in stored_text(twin)
    ended = twin.attempt()
    assert ended.kind == "succeeded"
    assert sent == [SECRET, SECRET], "what comes after the cut is the fork's own"
    assert SECRET not in stored_text(twin)
    with pytest.raises(JournalUnreadable):
        sealing().open(twin.raw_records[0], Seq(1))
