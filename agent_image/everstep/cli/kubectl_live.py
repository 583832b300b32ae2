"""`kubectl everstep live`: what the steps of a run say while they work, through the operator's pod, which alone has the store."""

import contextlib
import time
from collections.abc import Generator, Iterator
from typing import Any

import click

from everstep.cli.exits import EPILOG, Exit, Refusal
from everstep.cli.kube import (
    EXEC_TRIES,
    RUNS,
    Kubectl,
    Place,
    about_run,
    cluster_options,
    inspect_command,
    operator_option,
    operator_place,
)
from everstep.cli.live_words import JsonLines, Words, from_option
from everstep.cli.options import output_option
from everstep.journal.live import LiveEntry

AGAIN_S = 1.0
"""Before the pod is asked again after a connection was lost."""
Document = dict[str, Any]  # Any: JSON data


@click.command(epilog=EPILOG)
@click.argument("run")
@click.option(
    "-f", "--follow", is_flag=True, help="Go on until the run is over, also while it is parked; Ctrl-C ends it."
)
@from_option
@cluster_options
@operator_option
@output_option("json")
def live(
    run: str,
    follow: bool,
    after: int,
    namespace: str | None,
    context: str | None,
    kubeconfig: str | None,
    operator_namespace: str | None,
    output: str | None,
) -> None:
    """Print what the steps of a run say while they work, e.g. a model's words.

    It is not the journal: only the newest 10,000 pieces are kept, and what a lost or failed try has said is marked. With -o json
    each piece is one line with its position, step key, attempt, try and offset.

    Needs the right to read AgentRuns, and `create pods/exec` in the operator's namespace.
    """
    following = Following(Kubectl(namespace, context, kubeconfig), operator_namespace, run, after, follow)
    printer = JsonLines() if output == "json" else Words()
    try:
        with contextlib.suppress(KeyboardInterrupt), contextlib.closing(following.entries()) as entries:
            for entry in entries:
                printer.show(entry)
    finally:
        printer.end()


class Following:
    """Asks the pod for the stream, and again from where it was, until it is over. `after`: the newest position that was given."""

    def __init__(self, kubectl: Kubectl, operator_namespace: str | None, run: str, after: int, follow: bool) -> None:
        self.after = after
        self._kubectl = kubectl
        self._operator_namespace = operator_namespace
        self._run = run
        self._follow = follow
        self._end: Document | None = None
        self._said = ""
        """kubectl's own error, if it ended with one."""

    def entries(self) -> Generator[LiveEntry, None, None]:
        """Each once, in order. Raises Refusal: what the pod or kubectl said."""
        found, question, installation = about_run(self._kubectl, "live", self._run)
        place = operator_place(self._kubectl, self._operator_namespace, installation)
        follow, tries = self._follow and not _is_over(found), 0
        while True:
            before, self._end = self.after, None
            more = ["--from", str(self.after), *(["--follow"] if follow else [])]
            yield from self._one(place, [*question, *more])
            if self._end is not None and (self._end["over"] or not follow):
                return
            tries = 0 if self._end is not None or self.after > before else tries + 1
            if tries == EXEC_TRIES:
                raise Refusal(self._said or "the operator's pod broke the stream off again and again", Exit.FAILED)
            if self._end is None:
                time.sleep(AGAIN_S)
            follow = follow and not _is_over(self._kubectl.get(RUNS, self._run))

    def _one(self, place: Place, question: list[str]) -> Iterator[LiveEntry]:
        """What one command brings, up to its end or to the first line that does not follow on the one before."""
        with self._kubectl.lines(*inspect_command(place), *question, namespace=place.namespace) as lines:
            for data in lines:
                if "error" in data:
                    raise Refusal(str(data["error"]), Exit(data.get("exit", Exit.FAILED)))
                if "end" in data:
                    self._end = data["end"]
                    return
                if "alive" in data:
                    # A run that was cancelled by force or whose journal is lost has no last record that the pod could see.
                    if _is_over(self._kubectl.get(RUNS, self._run)):
                        return
                    continue
                entry = LiveEntry(**{name: value for name, value in data.items() if name in LiveEntry._fields})
                if entry.kind != "gap" and entry.position != self.after + 1:
                    return  # lines were lost on the way
                self.after = entry.position
                yield entry
            self._said = lines.words()


def _is_over(found: Document) -> bool:
    """Whether the run's object says that it is finished, well or not."""
    conditions = found.get("status", {}).get("conditions") or []
    return any(c.get("type") == "Finished" and c.get("status") == "True" for c in conditions)
