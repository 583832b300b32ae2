"""`everstep check module:agent | FILE.py`: what in agent code would differ between the first run and a replay."""

import os
import sys
from pathlib import Path

import click

from everstep.check.walk import Finding, check
from everstep.cli import show, text
from everstep.cli.exits import refusal
from everstep.cli.options import output_option
from everstep.errors import EverstepError

EPILOG = """\b
Exit codes:
  0    nothing found
  1    findings
  2    no such module, file or agent; source that is no Python
"""


@click.command("check", epilog=EPILOG)
@click.argument("targets", nargs=-1, required=True, metavar="MODULE:AGENT|FILE.py …")
@output_option("json")
def check_command(targets: tuple[str, ...], output: str | None) -> None:
    """Look for clocks, randomness, I/O, threads, environment, unordered iteration and global state in agent code.

    Follows calls from each agent through the modules of the project below the working directory; bodies of steps may do anything
    and are not looked at. Nothing is imported or run. `# everstep: ok REASON` on a line, or on a `def`, allows what is there.
    """
    here = Path.cwd()
    findings: dict[Finding, None] = {}
    agents = 0
    try:
        for target in targets:
            found, count = check(target, here)
            findings |= dict.fromkeys(found)
            agents += count
    except EverstepError as e:
        raise refusal(e) from e
    if output == "json":
        show.as_json([_document(f) for f in findings])
    else:
        for finding in findings:
            _tell(finding)
        told = f"{text.plural(len(findings), 'finding')} in " if findings else "nothing found in "
        click.echo(f"{told}{text.plural(agents, 'agent')}", err=bool(findings))
    sys.exit(1 if findings else 0)


def _tell(finding: Finding) -> None:
    rule = finding.rule
    place = f"{os.path.relpath(finding.path)}:{finding.line}:{finding.column}"
    click.echo(f"{place}: {finding.code} {rule.title}: {text.clean(finding.what, 80)}   (in {finding.trail})")
    click.echo(f"    {rule.why}; {rule.cure}")


def _document(finding: Finding) -> dict[str, object]:
    rule = finding.rule
    return {
        "path": os.path.relpath(finding.path),
        "line": finding.line,
        "column": finding.column,
        "code": finding.code,
        "title": rule.title,
        "what": finding.what,
        "trail": finding.trail,
        "why": rule.why,
        "cure": rule.cure,
    }
