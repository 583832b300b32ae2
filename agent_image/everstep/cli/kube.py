"""The only caller of a cluster in the command line: it runs kubectl, whose plugin this is.

So contexts, credentials, proxies and exec plugins are kubectl's own, and nothing here keeps a second idea of them. Messages of
the API server reach the person as kubectl words them.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, TypeVar

import click

from everstep.cli.exits import Exit, Refusal
from everstep.journal.keys import installation_of

F = TypeVar("F", bound=Callable[..., Any])  # Any: commands take whatever their options say

RUNS = "agentruns.everstep.dev"
REQUESTS = "humanrequests.everstep.dev"
OPERATOR_SELECTOR = "app.kubernetes.io/part-of=everstep,app.kubernetes.io/component=operator"
DEFAULT_OPERATOR_NAMESPACE = "everstep-system"
LAST_LINE_MAX_BYTES = 1024 * 1024
"""The end line of an export takes at most 64 KiB or so."""
EXEC_TRIES = 3
"""kubectl exec can lose output when a connection ends early ("Unknown stream id"). The question only reads: it is asked again."""


operator_option = click.option(
    "--operator-namespace",
    metavar="NAME",
    envvar="EVERSTEP_OPERATOR_NAMESPACE",
    help="Where the operator runs; default: looked for.",
)


def cluster_options(command: F) -> F:
    """The flags by which kubectl chooses a cluster and a namespace."""
    for option in (
        click.option("--kubeconfig", metavar="FILE", help="As kubectl's."),
        click.option("--context", metavar="NAME", help="As kubectl's."),
        click.option("-n", "--namespace", metavar="NAME", help="As kubectl's; default: the context's own."),
    ):
        command = option(command)
    return command


@dataclass(frozen=True)
class Kubectl:
    """kubectl with a person's choice of cluster and namespace."""

    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None

    def get(self, kind: str, name: str) -> dict[str, Any]:  # Any: a Kubernetes object
        """One object. Raises Refusal with the API server's words."""
        return self._json("get", kind, name, "--output=json")

    def find(self, kind: str, *arguments: str) -> list[dict[str, Any]]:  # Any: Kubernetes objects
        """The objects of a list."""
        items = self._json("get", kind, *arguments, "--output=json").get("items", [])
        return list(items)

    def patch(self, kind: str, name: str, body: object, how: str = "merge") -> None:
        """Patch an object; `how` is merge or json."""
        self.output("patch", kind, name, f"--type={how}", f"--patch={json.dumps(body)}")

    def create(self, body: dict[str, Any]) -> dict[str, Any]:  # Any: a Kubernetes object
        """Create an object; as the server holds it. Raises Refusal with the API server's words."""
        data = json.loads(self.output("create", "--filename=-", "--output=json", stdin=json.dumps(body)))
        return dict(data)

    def user(self) -> str:
        """The name by which the API server knows whoever runs this."""
        name = self._json("auth", "whoami", "--output=json").get("status", {}).get("userInfo", {}).get("username")
        if not isinstance(name, str):
            raise Refusal("`kubectl auth whoami` names no user; Kubernetes 1.28 or newer is needed", Exit.FAILED)
        return name

    def output(
        self, *arguments: str, namespace: str | None = None, file: IO[bytes] | None = None, stdin: str | None = None
    ) -> str:
        """Standard output of a kubectl command; "" if it goes to `file`. Raises Refusal with its standard error if it fails."""
        command = self.command(*arguments, namespace=namespace)
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL if stdin is None else None,
            input=stdin,
            stdout=subprocess.PIPE if file is None else file,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise Refusal(_words(done.stderr) or f"`{' '.join(command)}` ended with {done.returncode}", Exit.FAILED)
        return done.stdout or ""

    @contextlib.contextmanager
    def lines(self, *arguments: str, namespace: str | None = None) -> Iterator["Lines"]:
        """A kubectl command while it runs. It is ended with the block."""
        command = self.command(*arguments, namespace=namespace)
        with tempfile.TemporaryFile() as stderr:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr)
            try:
                assert process.stdout is not None
                yield Lines(process.stdout, stderr)
            finally:
                process.terminate()
                process.wait()
                if process.stdout is not None:
                    process.stdout.close()

    def become(self, *arguments: str) -> None:
        """Replace this process by a kubectl command (watching, tables)."""
        sys.stdout.flush()
        command = self.command(*arguments)
        os.execv(command[0], command)

    def command(self, *arguments: str, namespace: str | None = None) -> list[str]:
        """The command line. `namespace` wins over the person's choice."""
        flags = []
        for name, value in (
            ("kubeconfig", self.kubeconfig),
            ("context", self.context),
            ("namespace", namespace or self.namespace),
        ):
            if value:
                flags.append(f"--{name}={value}")
        verb, *rest = arguments
        return [_binary(), verb, *flags, *rest]

    def _json(self, *arguments: str) -> dict[str, Any]:  # Any: JSON data
        data = json.loads(self.output(*arguments))
        if not isinstance(data, dict):
            raise Refusal(f"kubectl {arguments[0]} answered no object", Exit.FAILED)
        return data


@dataclass(frozen=True)
class Lines:
    """What a kubectl command prints, as it does."""

    stdout: IO[bytes]
    stderr: IO[bytes]

    def __iter__(self) -> Iterator[dict[str, Any]]:  # Any: JSON data
        """JSON objects, one a line, up to the first line that is none: the connection was cut within it."""
        for line in self.stdout:
            try:
                data = json.loads(line)
            except ValueError:
                return
            if not isinstance(data, dict):
                return
            yield data

    def words(self) -> str:
        """Its error, once it has ended."""
        self.stderr.seek(0)
        return _words(self.stderr.read().decode(errors="replace"))


@dataclass(frozen=True)
class Place:
    """A Deployment of the operator. `installation` is empty if it does not tell."""

    namespace: str
    name: str
    installation: str

    @classmethod
    def of(cls, deployment: dict[str, Any]) -> "Place":  # Any: a Kubernetes object
        containers = deployment.get("spec", {}).get("template", {}).get("spec", {}).get("containers", [])
        env = {e["name"]: e.get("value", "") for c in containers if c["name"] == "operator" for e in c.get("env", [])}
        meta = deployment["metadata"]
        return cls(str(meta["namespace"]), str(meta["name"]), env.get("EVERSTEP_INSTALLATION", ""))


def operator_place(kubectl: Kubectl, given: str | None, installation: str = "") -> Place:
    """The operator that keeps the journals of `installation` (empty: the only one). Raises Refusal saying which flag helps:
    another installation's operator would take the run's journal for lost."""
    where = [f"--namespace={given}"] if given else ["--all-namespaces"]
    everywhere = Kubectl(given, kubectl.context, kubectl.kubeconfig)
    try:
        found = everywhere.find("deployments", *where, f"--selector={OPERATOR_SELECTOR}")
    except Refusal:
        if given:
            raise
        # who may not list the whole cluster may still read the usual namespace
        everywhere = Kubectl(DEFAULT_OPERATOR_NAMESPACE, kubectl.context, kubectl.kubeconfig)
        found = everywhere.find("deployments", f"--selector={OPERATOR_SELECTOR}")
    places = [Place.of(d) for d in found]
    if not places:
        raise Refusal("no operator was found; name its namespace with --operator-namespace", Exit.FAILED)
    if installation:
        fitting = [p for p in places if p.installation == installation] or [p for p in places if not p.installation]
        if not fitting:
            shown = ", ".join(f"{p.installation} in namespace {p.namespace}" for p in places)
            raise Refusal(
                f"the run's journal is kept by installation {installation}, but the operator found is another one's: "
                f"{shown}; name the right one's namespace with --operator-namespace",
                Exit.FAILED,
            )
        places = fitting
    if len(places) == 1:
        return places[0]
    shown = ", ".join(p.namespace for p in places)
    raise Refusal(f"there are several operators ({shown}); choose one with --operator-namespace", Exit.FAILED)


def ask_operator(
    kubectl: Kubectl, operator_namespace: str | None, question: Sequence[str], installation: str = ""
) -> dict[str, Any]:
    """Run `python -m everstep_operator.inspect …` in the operator's pod, which alone reaches the journal; its document.

    Any: JSON data. Raises Refusal: what the pod said, with its exit code. Needs the right `create pods/exec` in the operator's
    namespace."""
    place = operator_place(kubectl, operator_namespace, installation)
    document, text = None, ""
    for _ in range(EXEC_TRIES):
        text = kubectl.output(*inspect_command(place), *question, namespace=place.namespace)
        with contextlib.suppress(ValueError):
            document = json.loads(text)
            break
    if not isinstance(document, dict):
        raise Refusal(f"the operator's pod answered no document: {text[:200]!r}", Exit.FAILED)
    if "error" in document:
        raise Refusal(str(document["error"]), Exit(document.get("exit", Exit.FAILED)))
    return document


def copy_from_operator(
    kubectl: Kubectl, operator_namespace: str | None, question: Sequence[str], installation: str, file: IO[bytes]
) -> dict[str, Any]:
    """As `ask_operator`, for an answer of many lines, written to `file` (seekable). It is whole if its last line, which is
    returned, has an `end`. Any: JSON data.

    Raises Refusal: what the pod said, or that the connection lost lines again and again."""
    place = operator_place(kubectl, operator_namespace, installation)
    for _ in range(EXEC_TRIES):
        file.seek(0)
        file.truncate()
        kubectl.output(*inspect_command(place), *question, namespace=place.namespace, file=file)
        last = _last_line(file)
        if "error" in last:
            raise Refusal(str(last["error"]), Exit(last.get("exit", Exit.FAILED)))
        if "end" in last:
            return last
    raise Refusal("the operator's pod did not send all of the export; try again", Exit.FAILED)


def _last_line(file: IO[bytes]) -> dict[str, Any]:  # Any: JSON data
    """{} if it is no JSON object."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - LAST_LINE_MAX_BYTES))
    lines = file.read().splitlines()
    with contextlib.suppress(ValueError):
        data = json.loads(lines[-1] if lines else b"")
        return data if isinstance(data, dict) else {}
    return {}


def inspect_command(place: Place) -> tuple[str, ...]:
    """The command of kubectl that asks the operator's pod, without the question."""
    module = ("python", "-m", "everstep_operator.inspect")
    return ("exec", f"deployment/{place.name}", "--container=operator", "--", *module)


def about_run(kubectl: Kubectl, verb: str, run: str) -> tuple[dict[str, Any], list[str], str]:
    """The object, the question to the operator's pod, and the installation that keeps its journal. The anchor comes from the
    object, so it is the person's view of it that is checked. Any: a Kubernetes object."""
    found = kubectl.get(RUNS, run)
    question = [verb, "--run", run, "--journal", str(found["metadata"]["uid"])]
    checkpoint = found.get("status", {}).get("checkpoint") or {}
    if "seq" in checkpoint and checkpoint.get("hash"):
        question += ["--anchor", f"{checkpoint['seq']}:{checkpoint['hash']}"]
    return found, question, installation_of(checkpoint.get("key") or "")


_LOG_LINE = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d")
"""How kubectl's own log lines begin (`E1130 22:05:01.123 memcache.go:265] …`)."""


def _words(stderr: str) -> str:
    """kubectl's error without its log lines, which say the same before; the last of them if there is nothing else."""
    lines = stderr.strip().splitlines()
    return "\n".join(line for line in lines if not _LOG_LINE.match(line)).strip() or (lines[-1] if lines else "")


def _binary() -> str:
    found = os.environ.get("KUBECTL") or shutil.which("kubectl")
    if not found:
        raise Refusal("kubectl is not on the PATH; install it, or name it in KUBECTL", Exit.FAILED)
    return found
