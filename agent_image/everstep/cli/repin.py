"""`kubectl everstep repin RUN --image IMAGE`: another image for a run, kept only if the journal replays with it.

The attempt that runs is stopped (suspended), the spec gets the image, and the next attempt is followed: it replays the journal
before any step runs. If it tells another story the operator ends the run as Diverged with nothing written; then the old image is
put back, which opens the run again.
"""

import json
import time
from typing import Any

import click

from everstep.cli import text
from everstep.cli.exits import EPILOG, Exit, Refusal
from everstep.cli.kube import RUNS, Kubectl, cluster_options
from everstep.cli.options import output_option
from everstep.clock import SystemClock

ANNOTATION = "everstep.dev/repin"
"""As the operator's ANNOTATION_REPIN: wakes a parked run once."""
POLL_S = 1.0
"""Between two looks at the run while it replays; one small read each."""
OVER = ("Succeeded", "Cancelled", "CancelForced", "AgentFailed", "DeadlineExceeded")
"""Reasons of Finished that no image changes."""
STARTING = ("", "Starting", "Replaying", "Blocked")
"""Summaries before the journal has been replayed."""
Document = dict[str, Any]  # Any: a Kubernetes object


@click.command(epilog=EPILOG)
@click.argument("run")
@click.option("--image", required=True, metavar="IMAGE", help="The image to go on with; best with its digest.")
@click.option("--timeout", "timeout_s", type=click.IntRange(min=1), default=300, show_default=True, metavar="SECONDS",
              help="How long to wait for the replay.")  # fmt: skip
@cluster_options
@output_option("json")
def repin(
    run: str,
    image: str,
    timeout_s: int,
    namespace: str | None,
    context: str | None,
    kubeconfig: str | None,
    output: str | None,
) -> None:
    """Go on with another image, if the journal replays with it.

    The running attempt is stopped, the next one replays the recorded steps with IMAGE before it does anything new. Where the new
    code tells another story nothing is written, the old image is put back, and the difference is shown (exit 65).
    """
    Repin(Kubectl(namespace, context, kubeconfig), run, image, timeout_s, as_json=output == "json").go()


class Repin:
    """One change of image, followed to its end."""

    def __init__(self, kubectl: Kubectl, run: str, image: str, timeout_s: int, *, as_json: bool) -> None:
        self.kubectl = kubectl
        self.run = run
        self.image = image
        self.timeout_s = timeout_s
        self.as_json = as_json
        self.until_s = SystemClock().monotonic_s() + timeout_s
        self.old: str | None = None

    def go(self) -> None:
        """Raises Refusal unless the run goes on with the image."""
        found = self._get()
        self.old = found["spec"].get("agent", {}).get("image")
        self._check(found)
        attempt = int(found.get("status", {}).get("attempt") or 0)
        if attempt == 0:
            self._set(self.image)
            self._say("set", f"run {self.run} has not started; it will start with {self.image}", found)
            return
        if not self._rests(found):
            self._stop()
        self._set(self.image)
        self._follow(attempt)

    def _check(self, found: Document) -> None:
        spec, finished = found["spec"], _condition(found, "Finished")
        if finished.get("status") == "True" and finished.get("reason") in OVER:
            raise Refusal(f"run {self.run} is over ({finished.get('reason')}): nothing to go on with", Exit.USAGE)
        if self.old == self.image:
            raise Refusal(f"run {self.run} names {self.image} already; nothing was changed", Exit.USAGE)
        if spec.get("desiredState", "Running") != "Running":
            state = str(spec["desiredState"])
            cure = f": kubectl everstep resume {self.run}" if state == "Suspended" else ""
            raise Refusal(f"run {self.run} is to be {state}; resume it first{cure}", Exit.USAGE)

    @staticmethod
    def _rests(found: Document) -> bool:
        """No attempt runs: parked, or ended by a refusal."""
        return any(_condition(found, kind).get("status") == "True" for kind in ("Parked", "Finished"))

    def _stop(self) -> None:
        self.kubectl.patch(RUNS, self.run, {"spec": {"desiredState": "Suspended"}})
        while _condition(found := self._get(), "Suspended").get("status") != "True":
            if _condition(found, "Finished").get("status") == "True":
                self.kubectl.patch(RUNS, self.run, {"spec": {"desiredState": "Running"}})
                raise Refusal(f"run {self.run} ended while it was being stopped; nothing was changed", Exit.USAGE)
            if not self._pause():
                self.kubectl.patch(RUNS, self.run, {"spec": {"desiredState": "Running"}})
                raise Refusal(
                    f"the running attempt of {self.run} did not stop within {self.timeout_s} s; its image is unchanged",
                    Exit.WAITING,
                )

    def _set(self, image: str | None) -> None:
        mark = image if image == self.image else None
        spec = {"agent": {"image": image}, "desiredState": "Running"}
        self.kubectl.patch(RUNS, self.run, {"metadata": {"annotations": {ANNOTATION: mark}}, "spec": spec})

    def _follow(self, before: int) -> None:
        while True:
            found = self._get()
            status, finished = found.get("status", {}), _condition(found, "Finished")
            if int(status.get("attempt") or 0) > before:
                if finished.get("status") == "True" and finished.get("reason") not in OVER:
                    self._put_back(found, str(finished.get("reason")), str(finished.get("message", "")))
                if status.get("summary", "") not in STARTING:
                    self._unmark()
                    replayed = int(status.get("steps", {}).get("replayed") or 0)
                    what = f"attempt {status['attempt']} replayed {text.plural(replayed, 'step')} with {self.image}"
                    self._say("replayed", f"run {self.run}: {what}, and goes on with it", found)
                    return
            if not self._pause():
                self._unmark()
                now = f"{status.get('summary')} ({status.get('reason')})"
                raise Refusal(
                    f"run {self.run} has not replayed within {self.timeout_s} s: it is {now}. It still has the new image; put "
                    f"the old one back with: kubectl everstep repin {self.run} --image {self.old or 'OLD'}",
                    Exit.WAITING,
                )

    def _put_back(self, found: Document, reason: str, message: str) -> None:
        self._set(self.old)
        said = (
            f"run {self.run} does not go on with {self.image}: {reason}. The old image is put back "
            f"({self.old or 'none: the default one'}), and nothing was written.\n{message}"
        )
        code = Exit.REFUSED if reason == "Diverged" or reason.startswith("Journal") else Exit.FAILED
        if self.as_json:
            self._say(reason, message, found)
            raise click.exceptions.Exit(int(code))
        raise Refusal(said, code)

    def _unmark(self) -> None:
        self.kubectl.patch(RUNS, self.run, {"metadata": {"annotations": {ANNOTATION: None}}})

    def _say(self, outcome: str, message: str, found: Document) -> None:
        if not self.as_json:
            click.echo(message)
            return
        status = found.get("status", {})
        click.echo(
            json.dumps(
                {
                    "run": self.run,
                    "outcome": outcome,
                    "image": self.image,
                    "was": self.old,
                    "attempt": status.get("attempt", 0),
                    "replayed": status.get("steps", {}).get("replayed", 0),
                    "message": message,
                }
            )
        )

    def _get(self) -> Document:
        return self.kubectl.get(RUNS, self.run)

    def _pause(self) -> bool:
        """False when the time is up."""
        if SystemClock().monotonic_s() > self.until_s:
            return False
        time.sleep(POLL_S)
        return True


def _condition(found: Document, kind: str) -> Document:
    conditions = found.get("status", {}).get("conditions") or []
    return next((c for c in conditions if c.get("type") == kind), {})
