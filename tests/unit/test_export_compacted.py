"""Exports of journals whose beginning was compacted: they begin at a snapshot, and only a real one may."""

import asyncio
import json

from tests.support.exports import BY_KEY, OPERATOR_KEY, WAYS, Given, Made, joined, judge, lines, place

import everstep
from everstep.ids import JournalId, RecordHash, Seq
from everstep.journal.chain import Chain, derive_run_key
from everstep.journal.export import PublicChain
from everstep.journal.exported import Judgement
from everstep.journal.store import Head
from everstep.testing import MemoryRun


@everstep.step(effect="read")
async def look(n: int) -> int:
    return n


@everstep.agent
async def counting(goal: str) -> int:
    state = everstep.restored(dict) or {"n": 0}
    while state["n"] < 6:
        state["n"] += await look(1)
        if state["n"] % 2 == 0:
            everstep.snapshot(state)
    return int(state["n"])


async def compacted(*, cut: bool = True) -> tuple[Made, int]:
    """A journal with three snapshots, without what was before the second; and the seq of that one."""
    chain = Chain(JournalId("memory-run"), derive_run_key(OPERATOR_KEY, JournalId("memory-run")))
    run: MemoryRun[int] = MemoryRun(counting, "count", key=chain.key)
    assert (await asyncio.to_thread(run.attempt)).kind == "succeeded"
    journal = run.store.journals_by_id[run.journal_id]
    heads = [Head(Seq(0), chain.genesis()), *(Head(s.seq, s.hash) for s in journal.records)]
    seq = [r.seq for r in run.records if r.kind == "snapshot"][1]
    if cut:
        journal.records = journal.records[seq - 1 :]
    return Made(run.store, chain, heads), seq


@WAYS
async def test_a_journal_that_begins_at_a_snapshot(given: Given) -> None:
    j, seq = await compacted()
    data = await j.file()
    report = await judge(data, **given)
    assert (report.judgement, report.head, report.message) == (
        Judgement.WHOLE,
        j.heads[-1],
        f"whole: records {seq} to {j.heads[-1].seq}",
    )
    good = lines(data)
    for bad in range(seq, j.heads[-1].seq + 1):
        at = place(good, bad)
        altered = [*good[:at], good[at] | {"r": good[at]["r"].replace('"time":', '"time":1')}, *good[at + 1 :]]
        report = await judge(joined(altered), **given)
        assert report.bad_seq == bad, report
        assert report.judgement in (Judgement.ALTERED, *([Judgement.FORGED] if bad == seq else [])), report
        report = await judge(joined([*good[:at], *good[at + 1 :]]), **given)
        assert (report.judgement, report.bad_seq) == (Judgement.CUT, bad), report
    report = await judge(data, anchor=j.heads[seq + 1], **given)
    assert report.whole


@WAYS
async def test_a_beginning_that_was_cut_off_the_file(given: Given) -> None:
    """An attacker makes a whole export look as if it began later: at a record of its own choice, with a header that fits."""
    j, seq = await compacted(cut=False)
    good = lines(await j.file())
    for first in (3, seq):
        at = place(good, first)
        base = {"seq": first - 1, "hash": good[at]["p"]}
        parts = [good[0] | {"base": base}, *good[at:]]
        public = PublicChain(JournalId("memory-run"), Head(Seq(first - 1), RecordHash(good[at]["p"])))
        for part in parts:
            if "n" in part:
                part["q"] = public.add(part["h"], part["r"].encode())
        parts[-1] = json.loads(json.dumps(parts[-1]))
        parts[-1]["end"] |= {"records": len(good) - at - 1, "public": public.hash}
        if given is BY_KEY:
            parts[-1]["signature"], parts[0]["signer"] = None, None
        report = await judge(joined(parts), **given)
        if given is BY_KEY and first == seq:  # as a compacted journal: genuine, and said to begin there
            assert (report.judgement, report.message) == (Judgement.WHOLE, f"whole: records {seq} to {j.heads[-1].seq}")
            assert any("compacted" in note for note in report.notes)
        else:
            assert not report.whole, report
        report = await judge(joined(parts), anchor=j.heads[2], **given)
        assert not report.whole, "an anchor before the beginning"
