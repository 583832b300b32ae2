"""What `fork` tells, of a local run as of one on a cluster."""

import click

from everstep.cli import text
from everstep.cli.inspect import Document
from everstep.ids import JournalId
from everstep.journal import fork as forks
from everstep.journal.verify import VerifyReport

STEP_HELP = "The first step not to keep: its key (12), its name if called once, or `end` to keep them all."


def fork_document(planned: forks.Fork, report: VerifyReport, run: str, journal: JournalId) -> Document:
    """{"run", "journal", "lineage", "records", "inFlight", "brought", "problem"}"""
    return {
        "run": run,
        "journal": journal,
        "lineage": dict(planned.lineage),
        "records": len(planned.records),
        "inFlight": list(planned.in_flight),
        "brought": list(planned.brought),
        "problem": None if report.whole else report.message,
    }


def print_fork(document: Document, follow: str) -> None:
    """`follow`: how it goes on."""
    line = document["lineage"]
    step = line["step"] if line["step"] == forks.END else f"#{line['step']}"
    kept = text.plural(document["records"], "record")
    click.echo(f"run {document['run']} · forked from {line['run']} before step {step} · {kept} kept")
    if document["problem"]:
        said = f"{text.clean(line['run'])} is not whole: {document['problem']}; only proved records were used"
        click.echo(f"  {said}", err=True)
    if document["inFlight"]:
        keys = ", ".join(f"#{key}" for key in document["inFlight"][:10])
        click.echo(f"  in flight at that moment: {keys}; they go on under their recorded keys")
    click.echo(f"  {follow}")
