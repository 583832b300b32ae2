"""`everstep local list|get|steps|result|verify`: reading runs."""

import sys
from pathlib import Path
from typing import Any

import click

from everstep.cli import budgets, inspect, show, text
from everstep.cli.exits import EPILOG, Exit, Refusal, refusal, run_async
from everstep.cli.history import History
from everstep.cli.options import (
    anchor_file,
    anchor_head,
    directory_option,
    local_store,
    need_run,
    output_option,
    run_argument,
    with_store,
)
from everstep.clock import SystemClock
from everstep.contract import StopReason
from everstep.errors import EverstepError, JournalLost
from everstep.ids import Seq
from everstep.journal.chain import Chain
from everstep.journal.records import Finished
from everstep.journal.store import Store
from everstep.local import child
from everstep.local.files import LocalDir
from everstep.local.locks import FileLock
from everstep.local.sealing import chain_of
from everstep.local.spec import RunSpec
from everstep.run.masking import masked


@click.command("list", epilog=EPILOG)
@directory_option
@output_option("json", "wide")
def list_runs(directory: Path, output: str | None) -> None:
    """List the runs of this directory, newest first."""
    where = LocalDir(directory)
    documents = run_async(lambda: _list(where))
    if output == "json":
        show.as_json(documents)
        return
    if not documents:
        click.echo(f"no runs in {where.root}", err=True)
        return
    now = SystemClock().now_epoch_ms()
    head = ["NAME", "SUMMARY", "STEP", "ATTEMPT", "WAITING", "AGE"]
    rows = []
    for d in documents:
        row = [d["run"], d["summary"], str(d["steps"]["recorded"]), str(d["attempt"])]
        row += [", ".join(w["name"] for w in d["waiting"]) or "-", text.age(now - d["createdMs"])]
        if output == "wide":
            row += [d["entrypoint"], d["lastStep"] or "-", text.tokens((d["inputTokens"], d["outputTokens"]))]
            row += [f"{d['lineage']['run']} #{d['lineage']['step']}" if d["lineage"] else "-"]
        rows.append(row)
    show.table([*head, "ENTRYPOINT", "LAST STEP", "TOKENS", "FORKED FROM"] if output == "wide" else head, rows)


async def _list(where: LocalDir) -> list[inspect.Document]:
    documents = []
    store = local_store(where)
    try:
        for name in where.runs():
            spec = need_run(where, name)
            documents.append(await _describe(where, spec, store))
    finally:
        await store.aclose()
    return sorted(documents, key=lambda d: -d["createdMs"])


async def _describe(where: LocalDir, spec: RunSpec, store: Store) -> inspect.Document:
    """What `get` and `list` show of one run. A journal that cannot be read is told in `problem`."""
    history, wrong = History(), None
    try:
        anchor = anchor_head(where, spec)
        if where.journal_path.exists() and await store.meta(spec.journal) is not None:
            history, wrong = await inspect.read_proved(store, await chain_of(where, spec, store), spec.run, anchor)
        elif (kept := anchor_file(where, spec).read()) is not None and kept.attempt > 0:
            wrong = JournalLost(f"it is gone; its anchor is at record {kept.head.seq}", Seq(0), kept.head.seq)
    except EverstepError as e:
        wrong = e
    live = FileLock(where.supervisor_lock(spec.run)).is_held()
    summary = history.summary
    if wrong is not None:
        summary = "Unreadable"
    elif summary in ("Running", "Starting") and not live:
        summary = "Stopped"
    used = history.usage()
    last = next((row for row in reversed(history.steps)), None)
    return {
        "run": spec.run,
        "journal": spec.journal,
        "summary": summary,
        **_reason(where, spec, history, wrong, live),
        "entrypoint": spec.entrypoint,
        "goal": spec.goal,
        "inputs": masked(dict(spec.inputs)),
        "createdMs": spec.created,
        "supervised": live,
        "attempt": history.last_attempt,
        "steps": {"recorded": history.recorded(), "replayed": history.replayed(history.last_attempt)},
        "lastStep": f"{last.name} #{last.key} {last.state}" if last else "",
        "inputTokens": used.get("inputTokens", 0),
        "outputTokens": used.get("outputTokens", 0),
        "budget": budgets.document(history.spend),
        "lineage": history.started.lineage if history.started else None,
        "records": history.records,
        "firstRecord": history.first_seq,
        "waiting": _waiting(history),
        "attempts": [vars(a) for a in history.attempts.values()],
    }


_REFUSING = (
    StopReason.DIVERGED,
    StopReason.JOURNAL_TAMPERED,
    StopReason.JOURNAL_LOST,
    StopReason.JOURNAL_UNREADABLE,
)
"""Reasons for which no attempt is started before a person has acted."""


def _reason(
    where: LocalDir, spec: RunSpec, history: History, wrong: EverstepError | None, live: bool
) -> dict[str, str]:
    """{"reason", "message"}: why the run stands where it does; both empty while it runs, waits or has succeeded."""
    if wrong is not None:
        return {"reason": type(wrong).__name__, "message": refusal(wrong).message.removesuffix(" Nothing was run.")}
    end = history.finished
    if end is not None and end.outcome != "succeeded":
        return {"reason": StopReason.AGENT_FAILED.value if end.outcome == "failed" else "", "message": _why(end)}
    if end is not None or live or history.park is not None:
        return {"reason": "", "message": ""}
    said = child.termination(where, spec)
    if said is not None:
        at = f" at record {said.bad_seq}" if said.bad_seq else ""
        return {"reason": said.reason.value, "message": f"{said.message}{at}"}
    lost = "the last attempt was killed or crashed; the same command goes on" if history.records else ""
    return {"reason": "", "message": lost}


def _why(end: Finished) -> str:
    return ": ".join(filter(None, (end.type or "", end.message or "")))


def _waiting(history: History) -> list[dict[str, Any]]:  # Any: JSON data
    if history.park is None:
        return []
    return [
        {
            "kind": w.kind,
            "key": w.key,
            "name": f"{w.name or w.kind} #{w.key}",
            "reason": w.reason,
            "due": w.due,
            "since": w.since,
        }
        for w in history.park.waits
    ]


@click.command(epilog=EPILOG)
@run_argument
@directory_option
@output_option("json")
def get(run: str, directory: Path, output: str | None) -> None:
    """Show one run: state, what it waits for, head, attempts."""
    where = LocalDir(directory)

    async def read(spec: RunSpec, store: Store) -> inspect.Document:
        anchor = anchor_head(where, spec)
        checkpoint = {"seq": anchor.seq, "hash": anchor.hash} if anchor else None
        return await _describe(where, spec, store) | {"checkpoint": checkpoint}

    document = with_store(where, run, read)
    if output == "json":
        show.as_json(document)
    else:
        _print_get(document)


def _compacted(d: inspect.Document) -> str:
    first = d["firstRecord"]
    return "" if first == 1 else f" from {first} on, a snapshot or segment; what was before was compacted"


def _print_get(d: inspect.Document) -> None:
    now = SystemClock().now_epoch_ms()
    checkpoint = d["checkpoint"]
    used = text.tokens((d["inputTokens"], d["outputTokens"]))
    show.facts(
        [
            ("Name", d["run"]),
            ("Summary", d["summary"]),
            ("Reason", text.clean(": ".join(filter(None, (d["reason"], d["message"]))), 1000)),
            ("Entrypoint", d["entrypoint"]),
            ("Goal", text.clean(d["goal"], 200)),
            ("Inputs", ", ".join(d["inputs"])),
            ("Forked from", inspect.forked_from(d["lineage"])),
            ("Created", f"{text.iso(d['createdMs'])} ({text.age(now - d['createdMs'])} ago)"),
            ("Steps", f"{d['steps']['recorded']} recorded, {d['steps']['replayed']} replayed by the last attempt"),
            ("Last step", text.clean(d["lastStep"])),
            ("Tokens", "" if used == "-" else used),
            ("Budget", budgets.told(d["budget"])),
            ("Journal", f"{d['journal']}, {text.plural(d['records'], 'record')}" + _compacted(d)),
            (
                "Anchor",
                f"record {checkpoint['seq']}, hash {text.short_hash(checkpoint['hash'])}" if checkpoint else "missing",
            ),
        ]
    )
    for wait in d["waiting"]:
        if wait["kind"] == "timer":
            click.echo(f"Waits for:  {text.clean(wait['name'])} until {text.iso(wait['due'])}")
        elif wait["kind"] == "budget":
            click.echo(f"Waits for:  {text.clean(wait['name'])}: {text.clean(wait['reason'], 400)}")
            click.echo(f"            {budgets.cure(d['run'], wait['reason'])}")
        else:
            click.echo(f"Waits for:  {text.clean(wait['name'])} may have happened: {text.clean(wait['reason'])}")
            click.echo(f"            everstep local settle {d['run']} {wait['key']} --done VALUE | --again | --fail")
    if d["attempts"]:
        click.echo("Attempts:")
    for a in d["attempts"]:
        spent = text.took(a["end_epoch_ms"] - a["start_epoch_ms"])
        click.echo(
            f"  {a['number']:<4} records {a['first_seq']}-{a['last_seq']}   {text.iso(a['start_epoch_ms'])}   {spent}"
        )


@click.command(epilog=EPILOG)
@run_argument
@click.option("--timers", is_flag=True, help="Also list durable timers.")
@directory_option
@output_option("json", "wide")
def steps(run: str, timers: bool, directory: Path, output: str | None) -> None:
    """List the steps of a run in the order they began."""
    where = LocalDir(directory)

    async def read(spec: RunSpec, store: Store) -> inspect.Document:
        chain = await chain_of(where, spec, store)
        history, wrong = await inspect.read_proved(store, chain, run, anchor_head(where, spec))
        return inspect.steps_document(run, history, timers=timers, problem=wrong)

    sys.exit(inspect.print_steps(with_store(where, run, read), output or ""))


@click.command(epilog=EPILOG)
@run_argument
@directory_option
@output_option("json")
def result(run: str, directory: Path, output: str | None) -> None:
    """Print the result of a finished run, and nothing else."""
    where = LocalDir(directory)

    async def read(spec: RunSpec, store: Store) -> inspect.Document:
        chain = await chain_of(where, spec, store)
        history = await inspect.read_history(store, chain, run, anchor_head(where, spec))
        if history.finished is None:
            raise _no_result(await _describe(where, spec, store))
        return await inspect.result_document(store, chain, run, history)

    sys.exit(inspect.print_result(with_store(where, run, read), output or ""))


def _no_result(d: inspect.Document) -> Refusal:
    """Why a run has none; a run that waits for a person to act upon its journal is refused as the run itself would be."""
    why = ": ".join(filter(None, (d["reason"], text.clean(d["message"], 1000))))
    said = f"run {d['run']} has no result yet: it is {d['summary']}" + (f" ({why})" if why else "")
    return Refusal(said, Exit.REFUSED if d["reason"] in _REFUSING else Exit.WAITING)


@click.command(epilog=EPILOG)
@run_argument
@directory_option
@output_option("json", "wide")
def verify(run: str, directory: Path, output: str | None) -> None:
    """Prove the journal whole: every record from the first to the newest anchor, and the chain up to its end."""
    where = LocalDir(directory)

    async def read(spec: RunSpec, store: Store) -> inspect.Document:
        return await inspect.verify_document(store, Chain(spec.journal), run, anchor_head(where, spec))

    sys.exit(inspect.print_verify(with_store(where, run, read), output or ""))
