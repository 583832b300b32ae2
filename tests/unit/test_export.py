"""An export is judged rightly whatever was done to it: to each record, to each line, by people who compute hashes again.

C44: the record of what an agent did can be handed to an auditor, who proves it without a key that could forge it.
"""

import base64
import hashlib
import json
from collections.abc import Callable

import pytest
from tests.support.exports import (
    BLOB_AT,
    BOTH,
    BY_KEY,
    BY_SIGNATURE,
    OPERATOR_KEY,
    RECORDS,
    SIGNER,
    WAYS,
    Given,
    Line,
    Made,
    joined,
    judge,
    lines,
    made,
    place,
)

from everstep.errors import ConfigError, JournalLost, JournalTampered
from everstep.ids import JournalId, RecordHash, Seq
from everstep.journal.chain import Chain, derive_run_key
from everstep.journal.export import PublicChain, signed_bytes
from everstep.journal.exported import Judgement, NotAnExport
from everstep.journal.signing import PublicKey, SigningKey, SigningRing, read_public_keys
from everstep.journal.store import Head


def resealed(parts: list[Line], journal: str, key: bytes | None, *, end: bool = True) -> list[Line]:
    """What an attacker does: compute every hash that can be computed, with the key that is known (None: plain SHA-256)."""
    parts = json.loads(json.dumps(parts))
    chain = Chain(JournalId(journal), key)
    base = Head(Seq(parts[0]["base"]["seq"]), RecordHash(parts[0]["base"]["hash"]))
    public, prev, heads = PublicChain(chain.journal_id, base), base.hash, []
    for part in parts:
        if "n" in part:
            part["p"], prev = prev, chain.link(RecordHash(prev), part["r"].encode())
            part["h"], part["q"] = prev, public.add(prev, part["r"].encode())
            heads.append([part["n"], part["q"][:16]])
    if end and "end" in parts[-1]:
        head = {"seq": heads[-1][0], "hash": prev}
        parts[-1]["end"] |= {"public": public.hash, "heads": heads, "head": head, "records": len(heads)}
        parts[0]["head"] = head
    return parts


@WAYS
async def test_untouched(given: Given) -> None:
    j = await made()
    report = await judge(await j.file(), **given)
    assert (report.judgement, report.bad_seq, report.records, report.head) == (
        Judgement.WHOLE,
        None,
        RECORDS,
        j.heads[-1],
    )
    assert report.proved_by == tuple(
        word for word, on in (("key", "key" in given), ("signature", "trusted" in given)) if on
    )
    assert report.signer == SIGNER.public.id
    assert report.run == "triage"


@WAYS
async def test_the_runs_own_key_serves_as_well_as_the_operators(given: Given) -> None:
    j = await made()
    report = await judge(await j.file(), **{**given, "key": derive_run_key(OPERATOR_KEY, JournalId("j"))})
    assert report.whole


async def test_an_empty_journal_and_a_long_one() -> None:
    assert (await judge(await (await made(records=0)).file(), **BOTH)).whole
    long = await made(records=2100)
    data = await long.file()
    assert len(lines(data)[-1]["end"]["heads"]) <= 1024
    assert (await judge(data, **BOTH)).records == 2100


@WAYS
async def test_each_record_altered(given: Given) -> None:
    j = await made()
    good = lines(await j.file())
    for seq in range(1, RECORDS + 1):
        at = place(good, seq)
        record = good[at]["r"]
        for changed in (
            {"r": record.replace('"time":', '"time":1')},
            {"h": "0" * 64},
            {"p": "0" * 64},
            {"q": "0" * 64},
        ):
            parts = [*good[:at], good[at] | changed, *good[at + 1 :]]
            report = await judge(joined(parts), **given)
            assert report.judgement in (Judgement.ALTERED, Judgement.FORGED), changed
            assert report.bad_seq == seq, (changed, report)
            assert report.head == j.heads[seq - 1]
            if "r" in changed:
                assert report.judgement is Judgement.ALTERED


@WAYS
async def test_each_record_dropped(given: Given) -> None:
    good = lines(await (await made()).file())
    for seq in range(1, RECORDS + 1):
        parts = [part for part in good if part.get("n") != seq]
        report = await judge(joined(parts), **given)
        assert report.bad_seq == seq, report
        assert report.judgement is Judgement.CUT, report


@WAYS
async def test_each_pair_swapped(given: Given) -> None:
    """Whole lines; and only the bytes, with each line keeping its number."""
    good = lines(await (await made()).file())
    for seq in range(1, RECORDS):
        a, b = place(good, seq), place(good, seq + 1)
        whole, bytes_only = list(good), list(good)
        whole[a], whole[b] = good[b], good[a]
        bytes_only[a], bytes_only[b] = good[a] | {"r": good[b]["r"]}, good[b] | {"r": good[a]["r"]}
        for parts in (whole, bytes_only):
            report = await judge(joined(parts), **given)
            assert (report.judgement, report.finding, report.bad_seq) == (Judgement.ALTERED, "swapped", seq), report


@WAYS
async def test_each_record_spliced_from_another_run(given: Given) -> None:
    good, foreign = lines(await (await made()).file()), lines(await (await made("other")).file())
    for seq in range(1, RECORDS + 1):
        at = place(good, seq)
        parts = [*good[:at], foreign[place(foreign, seq)], *good[at + 1 :]]
        report = await judge(joined(parts), **given)
        assert (report.judgement, report.finding, report.bad_seq) == (Judgement.FORGED, "foreign", seq), report


@WAYS
async def test_each_cut_of_the_tail(given: Given) -> None:
    """At the end of each line, and in the middle of it."""
    data = await (await made()).file()
    whole = data.splitlines(keepends=True)
    for kept in range(1, len(whole)):
        begun = sum("n" in json.loads(line) for line in whole[:kept])
        for more in (b"", whole[kept][:-3]):
            report = await judge(b"".join(whole[:kept]) + more, **given)
            assert report.judgement is Judgement.CUT, report
            assert report.bad_seq == begun + 1 or (report.finding == "blob" and report.bad_seq == BLOB_AT)


@WAYS
async def test_a_cut_whose_end_line_was_put_back(given: Given) -> None:
    good = lines(await (await made()).file())
    for kept in range(1, RECORDS):
        parts = [*(p for p in good[:-1] if p.get("n", 0) <= kept and ("blob" not in p or kept >= BLOB_AT)), good[-1]]
        report = await judge(joined(parts), **given)
        assert (report.judgement, report.bad_seq) == (Judgement.CUT, kept + 1), report


@pytest.mark.parametrize("known", [None, b"\x09" * 32], ids=["plain", "another-key"])
async def test_hashes_made_again_without_the_key_by_key(known: bytes | None) -> None:
    """The attacker computes every hash again from the altered record on, as far as it can be done."""
    good = lines(await (await made()).file())
    for seq in range(2, RECORDS + 1):
        at = place(good, seq)
        altered = good[at] | {"r": good[at]["r"].replace('"time":', '"time":1')}
        tail = resealed([*good[:at], altered, *good[at + 1 :]], "j", known)
        mixed = [*good[:at], *tail[at:]]
        mixed[at] = tail[at] | {
            "p": good[at]["p"],
            "h": Chain(JournalId("j"), known).link(good[at]["p"], altered["r"].encode()),
        }
        report = await judge(joined(mixed), **BY_KEY)
        assert report.bad_seq == seq, report
        assert not report.whole
        if known is None:
            assert (report.judgement, report.finding) == (Judgement.FORGED, "recomputed")


async def test_hashes_made_again_are_seen_by_auditors_who_hold_no_key() -> None:
    """Everything that can be computed without the key and without the signing key was computed; the signed line was kept."""
    good = lines(await (await made()).file())
    for seq in range(1, RECORDS + 1):
        at = place(good, seq)
        parts = json.loads(json.dumps(good))
        parts[at]["r"] = parts[at]["r"].replace('"time":', '"time":1')
        public = PublicChain(JournalId("j"), Head(Seq(0), RecordHash(good[0]["base"]["hash"])))
        for part in parts:
            if "n" in part:
                part["q"] = public.add(part["h"], part["r"].encode())
        report = await judge(joined(parts), **BY_SIGNATURE)
        assert (report.judgement, report.finding, report.bad_seq) == (Judgement.FORGED, "resealed", seq), report
        parts[-1]["end"]["public"] = public.hash
        report = await judge(joined(parts), **BY_SIGNATURE)
        assert (report.judgement, report.finding, report.bad_seq) == (Judgement.FORGED, "signature", None), report
        report = await judge(joined(parts), **BOTH)
        assert (report.judgement, report.bad_seq) == (Judgement.ALTERED, seq), "the key names it all the same"


async def test_a_long_export_made_again_is_placed_within_a_stride() -> None:
    good = lines(await (await made(records=2100)).file())
    stride, at = good[0]["stride"], place(good, 1500)
    good[at]["r"] = good[at]["r"].replace('"time":', '"time":1')
    public = PublicChain(JournalId("j"), Head(Seq(0), RecordHash(good[0]["base"]["hash"])))
    for part in good:
        if "n" in part:
            part["q"] = public.add(part["h"], part["r"].encode())
    report = await judge(joined(good), **BY_SIGNATURE)
    assert report.bad_seq is not None
    assert (report.finding, 1500 - stride < report.bad_seq <= 1500) == ("resealed", True)


HEADER_CHANGES: list[Line] = [
    {"run": "other"},
    {"namespace": "prod"},
    {"keyId": "k2"},
    {"time": 5},
    {"anchor": {"seq": 3, "hash": "0" * 64}},
    {"head": {"seq": RECORDS - 1, "hash": "0" * 64}},
    {"head": {"seq": RECORDS + 5, "hash": "0" * 64}},
    {"stride": 7},
    {"signer": None},
    {"chain": "sha256"},
    {"journal": "k"},
    {"base": {"seq": 0, "hash": "0" * 64}},
]


@pytest.mark.parametrize("change", HEADER_CHANGES, ids=lambda change: next(iter(change)))
@pytest.mark.parametrize("given", [BY_SIGNATURE, BOTH], ids=["signature", "both"])
async def test_header_forged(given: Given, change: Line) -> None:
    header, *rest = lines(await (await made()).file())
    report = await judge(joined([header | change, *rest]), **given)
    assert (report.judgement, report.finding, report.bad_seq) == (Judgement.FORGED, "header", 0), report


@WAYS
async def test_an_older_export_with_a_newer_anchor(given: Given) -> None:
    """Both are genuine; only the anchor tells."""
    j = await made(records=6)
    older = await j.file()
    newer = await made()
    assert newer.heads[6] == j.heads[6]
    report = await judge(older, anchor=newer.heads[8], **given)
    assert (report.judgement, report.bad_seq, report.head.seq) == (Judgement.ROLLED_BACK, 7, 6), report
    for at in range(RECORDS + 1):
        assert (await judge(await newer.file(), anchor=newer.heads[at], **given)).whole


@WAYS
async def test_another_history_of_the_same_run_is_not_the_anchored_one(given: Given) -> None:
    theirs, ours = await made(word="y"), await made()
    report = await judge(await theirs.file(), anchor=ours.heads[4], **given)
    assert (report.judgement, report.finding, report.bad_seq) == (Judgement.FORGED, "anchor", 4), report


async def test_signature_stripped() -> None:
    good = lines(await (await made()).file())
    bare = [*good[:-1], good[-1] | {"signature": None}]
    for given in (BY_SIGNATURE, BOTH, BY_KEY, {}):
        report = await judge(joined(bare), **given)
        assert (report.judgement, report.finding, report.bad_seq) == (Judgement.FORGED, "unsigned", None), report
    silent = [good[0] | {"signer": None}, *bare[1:]]
    assert (await judge(joined(silent), **BY_SIGNATURE)).finding == "unsigned"
    assert (await judge(joined(silent), **BY_KEY)).whole, "the key proves the records, signed or not"
    assert (await judge(joined(silent))).judgement is Judgement.UNPROVED


async def test_signed_by_somebody_else() -> None:
    """An attacker with a signing key of his own, who makes everything again."""
    stranger = SigningKey.new()
    data = await (await made(key=b"\x09" * 32, word="y")).file(signer=stranger)
    report = await judge(data, **BY_SIGNATURE)
    assert (report.judgement, report.finding) == (Judgement.FORGED, "signer")
    report = await judge(data)
    assert (report.judgement, report.proved_by) == (Judgement.UNPROVED, ())
    report = await judge(data, **BY_KEY)
    assert (report.judgement, report.bad_seq) == (Judgement.FORGED, 1)
    good = lines(await (await made()).file())
    posing = good[-1]["signature"] | {"public": base64.b64encode(stranger.public.raw).decode()}
    posing["value"] = base64.b64encode(stranger.sign(signed_bytes(good[-1]["end"]))).decode()
    report = await judge(joined([*good[:-1], good[-1] | {"signature": posing}]), **BY_SIGNATURE)
    assert (report.judgement, report.finding) == (Judgement.FORGED, "signature"), "an id is the key's own"


@WAYS
async def test_values_kept_beside_the_journal(given: Given) -> None:
    good = lines(await (await made()).file())
    at = place(good, BLOB_AT) + 1
    assert "blob" in good[at]
    altered = good[at] | {"b": base64.b64encode(b'"other"').decode()}
    report = await judge(joined([*good[:at], altered, *good[at + 1 :]]), **given)
    assert (report.judgement, report.finding, report.bad_seq) == (Judgement.ALTERED, "blob", BLOB_AT)
    report = await judge(joined([*good[:at], *good[at + 1 :]]), **given)
    assert (report.judgement, report.finding, report.bad_seq) == (Judgement.CUT, "blob", BLOB_AT)
    other = {"blob": hashlib.sha256(b"1").hexdigest(), "b": base64.b64encode(b"1").decode()}
    report = await judge(joined([*good[:3], other, *good[3:]]), **given)
    assert (report.judgement, report.finding, report.bad_seq) == (Judgement.ALTERED, "blob", 2), report


@WAYS
async def test_junk_in_a_line_and_behind_the_end(given: Given) -> None:
    data = await (await made()).file()
    parts = data.splitlines(keepends=True)
    report = await judge(b"".join([*parts[:4], b"\xff{\n", *parts[4:]]), **given)
    assert (report.judgement, report.finding, report.bad_seq) == (Judgement.ALTERED, "line", 4)
    report = await judge(data + b"{}\n", **given)
    assert (report.judgement, report.finding) == (Judgement.ALTERED, "line")


async def test_what_is_no_export_is_not_judged() -> None:
    for data in (b"", b"hello\n", b"{}\n", b'{"everstep": "export/1"}\n', b"\xff\xfe\n", b"[" * 100_000):
        with pytest.raises(NotAnExport):
            await judge(data)
    with pytest.raises(NotAnExport, match="export/2"):
        await judge(b'{"everstep": "export/2"}\n')


async def test_plain_chains_are_proved_by_signature_alone() -> None:
    """A local journal has no secret key: whoever can write it could compute its hashes."""
    j = await made(key=None)
    assert (await judge(await j.file(), **BY_SIGNATURE)).whole
    unsigned = await j.file(signer=None)
    assert (await judge(unsigned)).judgement is Judgement.UNPROVED
    again = resealed(lines(await j.file()), "j", None)
    again[2]["r"] = again[2]["r"].replace('"time":', '"time":1')
    again = resealed(again, "j", None)
    assert (await judge(joined(again), **BY_SIGNATURE)).judgement is Judgement.FORGED
    assert (await judge(joined(again))).judgement is Judgement.FORGED


Break = Callable[[Made], None]


def _alter(j: Made) -> None:
    kept = j.store.journals_by_id[j.chain.journal_id].records
    kept[3] = kept[3]._replace(record=kept[3].record.replace(b'"time":', b'"time":1'))


def _lose_blob(j: Made) -> None:
    j.store.blobs.clear()


@pytest.mark.parametrize(("broken", "seq"), [(_alter, 4), (_lose_blob, BLOB_AT)])
async def test_a_journal_that_is_not_whole_is_not_exported(broken: Break, seq: int) -> None:
    j = await made()
    broken(j)
    with pytest.raises(JournalTampered) as raised:
        await j.file()
    assert raised.value.bad_seq == seq


async def test_a_journal_behind_its_anchor_is_not_exported() -> None:
    with pytest.raises(JournalLost):
        await (await made(records=6)).file(anchor=(await made()).heads[8])


def test_keys_are_kept_and_handed_out_as_text() -> None:
    ring = SigningRing({"s1": SigningKey.new(), "s10": SigningKey.new(), "s2": SIGNER})
    assert (ring.names, ring.next_name) == (["s1", "s2", "s10"], "s11")
    assert ring.current is ring.keys["s10"]
    found = read_public_keys(ring.public_text(), "here")
    assert found == [ring.keys[name].public for name in ring.names]
    assert "PRIVATE" not in ring.public_text()
    assert "BEGIN" not in repr(SIGNER)
    for wrong in ("", "x", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"):
        with pytest.raises(ConfigError, match="here"):
            read_public_keys(wrong, "here")
    with pytest.raises(ConfigError):
        SigningKey("nonsense").public  # noqa: B018 - the property reads the key
    assert not PublicKey(b"\xff" * 32).verifies(b"\x00" * 64, b"x")
