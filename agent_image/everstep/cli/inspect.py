"""Reading a run's journal for people: used by `everstep local …` on a laptop and inside the operator's pod by `kubectl everstep`.

Each function takes a store and answers a document of plain JSON data; each `print_…` shows such a document. So a document can
travel from a pod to a terminal and look the same. Durations are milliseconds, times ISO 8601 in UTC.
"""

import hashlib
import json
import sys
from typing import Any, TypeAlias

import click

from everstep.cli import show, text
from everstep.cli.exits import Exit, Refusal, refusal
from everstep.cli.history import History, Row
from everstep.errors import ConfigError, EverstepError
from everstep.ids import JournalId, Seq
from everstep.journal.chain import Chain
from everstep.journal.fork import END, beginning
from everstep.journal.records import decode
from everstep.journal.sealing import hidden
from everstep.journal.store import Head, Meta, Store
from everstep.journal.verify import verify

Document: TypeAlias = dict[str, Any]  # Any: JSON data of mixed types, made here and printed here


async def read_history(store: Store, chain: Chain, run: str, anchor: Head | None) -> History:
    """Everything recorded so far, proved. Raises ConfigError for a journal that is not there, JournalTampered, JournalLost,
    JournalUnreadable."""
    history, wrong = await read_proved(store, chain, run, anchor)
    if wrong is not None:
        raise wrong
    return history


async def need_journal(store: Store, journal: JournalId, run: str, anchor: Head | None) -> Meta | None:
    """The journal's meta; None if it is lost. Raises ConfigError for a journal that never was."""
    meta = await store.meta(journal)
    if meta is None and (anchor is None or anchor.seq == 0):
        raise ConfigError(f"run {run} has no journal yet: it was never started, or its journal was removed")
    return meta


async def read_proved(
    store: Store, chain: Chain, run: str, anchor: Head | None
) -> tuple[History, EverstepError | None]:
    """The records up to the first that does not fit, and what is wrong with that one. Raises ConfigError for a journal that is
    not there."""
    meta = await need_journal(store, chain.journal_id, run, anchor)
    report = await verify(store, chain, chain.journal_id, anchor=anchor, keep=True)
    if not report.whole and meta is not None:
        now = await store.meta(chain.journal_id)
        if now is not None and now.head != meta.head:  # it grew while it was read: up to the head of then it must fit
            report = await verify(store, chain, chain.journal_id, upto=now.head, anchor=anchor, keep=True)
    history = History()
    try:
        for stored in report.records:
            history.add([decode(stored.record, stored.seq, chain.sealer)])
        report.require_whole()
    except EverstepError as e:
        return history, e
    return history, None


def steps_document(
    run: str, history: History, *, timers: bool = False, problem: EverstepError | None = None
) -> Document:
    """{"run", "steps": [{"key", "name", "try", "state", "effect", "tookMs", "inputTokens", …}]}; {"before": {"steps", "seq"}} if
    steps before the snapshot at `seq` were compacted, {"problem"} if only the steps before a bad record are there."""
    rows = list(history.rows.values()) if timers else history.steps
    told = {} if problem is None else {"problem": refusal(problem).message}
    before = {"before": {"steps": history.before, "seq": history.first_seq}} if history.before else {}
    return {"run": run, "steps": [_step(row) for row in rows]} | before | told


def _step(row: Row) -> Document:
    return {
        "key": row.key,
        "name": row.name,
        "try": row.tries,
        "state": row.state,
        "effect": row.effect,
        "tookMs": row.took_ms,
        "inputTokens": row.tokens[0],
        "outputTokens": row.tokens[1],
        "attempt": row.attempt,
        "seq": row.seq,
        "began": text.iso(row.first_epoch_ms),
        "note": row.note,
    }


def print_steps(document: Document, output: str) -> int:
    """KEY STEP TRY STATE EFFECT TOOK TOKENS; wide adds ATTEMPT, SEQ and NOTE. The exit code."""
    if output == "json":
        show.as_json(document)
    else:
        _print_steps(document, output)
        if before := document.get("before"):
            click.echo(
                f"{text.plural(before['steps'], 'earlier step')} not listed: what was before record {before['seq']}, a snapshot "
                "or segment, was compacted",
                err=True,
            )
    if "problem" not in document:
        return int(Exit.OK)
    click.echo(f"Error: {document['problem']} Only the steps recorded before it are shown.", err=True)
    return int(Exit.REFUSED)


def _print_steps(document: Document, output: str) -> None:
    head = ["KEY", "STEP", "TRY", "STATE", "EFFECT", "TOOK", "TOKENS"]
    rows = []
    for s in document["steps"]:
        used = text.tokens((s["inputTokens"], s["outputTokens"]))
        row = [
            s["key"],
            text.clean(s["name"], 60),
            str(s["try"] or "-"),
            s["state"],
            s["effect"],
            text.took(s["tookMs"]),
            used,
        ]
        if output == "wide":
            row += [str(s["attempt"]), str(s["seq"]), text.clean(s["note"], 120) or "-"]
        rows.append(row)
    if not rows:
        click.echo(f"run {document['run']} has no steps yet", err=True)
        return
    show.table([*head, "ATTEMPT", "SEQ", "NOTE"] if output == "wide" else head, rows)


async def result_document(store: Store, chain: Chain, run: str, history: History) -> Document:
    """{"run", "outcome", "result"} or {"run", "outcome", "type", "message", "data"}. Raises Refusal while there is none."""
    end = history.finished
    if end is None:
        raise Refusal(f"run {run} has no result yet: it is {history.summary}", Exit.WAITING)
    if end.outcome == "succeeded":
        return {"run": run, "outcome": end.outcome, "result": await _resolve(store, chain, end.value)}
    return {"run": run, "outcome": end.outcome, "type": end.type, "message": end.message, "data": end.data}


async def _resolve(store: Store, chain: Chain, value: object) -> object:
    """A value, fetched if the record only names a blob."""
    if not (isinstance(value, dict) and isinstance(value.get("$blob"), str)):
        return value
    raw = await store.blob_get(chain.journal_id, value["$blob"])
    if raw is None:
        raise Refusal(f"the result is kept beside the journal and is missing: blob {value['$blob']}", Exit.REFUSED)
    if hashlib.sha256(raw).hexdigest() != value["$blob"]:
        raise Refusal(f"journal tampered: the result kept beside it, blob {value['$blob']}, was changed", Exit.REFUSED)
    return json.loads(raw if chain.sealer is None else chain.sealer.open_blob(raw, Seq(0)))


def print_result(document: Document, output: str) -> int:
    """The result alone on standard output, or why there is none on standard error; the exit code."""
    failed = document["outcome"] != "succeeded"
    if output == "json":
        show.as_json(document)
    elif failed:
        why = ": ".join(filter(None, (document.get("type", ""), document.get("message", ""))))
        click.echo(
            f"run {document['run']} {document['outcome']}" + (f": {text.clean(why, 2000)}" if why else ""), err=True
        )
    else:
        whole = text.value(document["result"])
        click.echo(text.harmless(whole) if sys.stdout.isatty() else whole)
    return int(Exit.FAILED if failed else Exit.OK)


async def verify_document(store: Store, chain: Chain, run: str, anchor: Head | None) -> Document:
    """{"run", "whole", "verdict", "message", "records", "first", "head", "badSeq", "anchor", "lineage", "notes"}"""
    report = await verify(store, chain, chain.journal_id, anchor=anchor)
    return {
        "run": run,
        "journal": chain.journal_id,
        "whole": report.whole,
        "verdict": report.verdict.value,
        "message": report.message,
        "records": report.head.seq,
        "first": report.first,
        "head": {"seq": report.head.seq, "hash": report.head.hash},
        "badSeq": report.bad_seq,
        "anchor": None if anchor is None else {"seq": anchor.seq, "hash": anchor.hash},
        "lineage": await _lineage(store, chain) if report.head.seq else None,
        "notes": list(report.notes),
    }


async def _lineage(store: Store, chain: Chain) -> Document | None:
    """Where a fork comes from, by its proved first record."""
    sealer = chain.sealer or hidden(chain.journal_id)
    async for stored in store.read(chain.journal_id):
        begun = beginning(decode(stored.record, stored.seq, sealer))
        return None if begun is None else begun.lineage
    return None


def forked_from(lineage: Document | None) -> str:
    """`monday before step #12, its record 40, hash 4f1c…a9`; "" for a run that is no fork."""
    if lineage is None:
        return ""
    step = lineage["step"] if lineage["step"] == END else f"#{lineage['step']}"
    hash_ = text.short_hash(lineage["hash"])
    return f"{text.clean(lineage['run'])} before step {step}, its record {lineage['seq']}, hash {hash_}"


def _extent(document: Document) -> str:
    first, last = document.get("first", 1), document["records"]
    whole = text.plural(last, "record")
    return whole if first == 1 else f"records {first} to {last}, compacted before"


def print_verify(document: Document, output: str) -> int:
    """`monday: whole · 161 records · head 161 4f1c…a9`, or what is wrong; the exit code."""
    if output == "json":
        show.as_json(document)
    else:
        head = document["head"]
        end = f"head {head['seq']} {text.short_hash(head['hash'])}"
        if document["whole"]:
            click.echo(f"{document['run']}: whole · {_extent(document)} · {end}")
        else:
            word = "lost" if document["verdict"] in ("lost", "tail-cut") else "tampered"
            where = "" if document["badSeq"] is None else f" at record {document['badSeq']}"
            click.echo(f"{document['run']}: {word}{where} · {document['message']} · proved up to {end}")
        if document.get("lineage"):
            click.echo(f"  forked from {forked_from(document['lineage'])}")
        if output == "wide":
            for note in document["notes"]:
                click.echo(f"  {note}")
            if document["anchor"] is None:
                click.echo("  no anchor was given: a cut of the end could not be seen")
    return int(Exit.OK if document["whole"] else Exit.REFUSED)
