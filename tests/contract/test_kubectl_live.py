"""`kubectl everstep live` whole: the real kubectl and its exec protocol, the operator's own program in the pod's place, a real
Redis, an agent's real processes. C55 on a cluster: what a lost try said is marked; C18: the dead do not speak."""

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from everstep.ids import Attempt, JournalId, Owner, Seq
from everstep.journal.chain import Chain
from everstep.journal.live import LiveEntry
from everstep.journal.open import open_store
from everstep.journal.sealing import Sealer
from everstep.journal.store import Head, Store
from everstep_operator import inspect, watching
from tests.crash.driver import INSTALLATION, REPOSITORY, Driver
from tests.support import servers
from tests.support.kubectl_cluster import KubectlCluster, Write, serving

TEAM = "team"
KEY = b"\x07" * 32
TIMEOUT_S = 60


class Pod:
    """The operator's: each command is a process, whose reader may go away at any time, as under a real kubelet."""

    def __init__(self, home: Path, url: str) -> None:
        self.home = home
        self.url = url
        self.kubeconfig = ""
        self.processes: list[asyncio.subprocess.Process] = []
        self.cut_after: list[int] = []
        """Lines after which the next commands lose their connection."""
        self.lose: list[int] = []
        """Lines of the next commands that get lost on the way."""

    async def run(self, command: list[str], write: Write) -> None:
        env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(str(REPOSITORY / part) for part in ("agent_image", "operator")),
            "KUBECONFIG": self.kubeconfig,
            "EVERSTEP_INSTALLATION": INSTALLATION,
            "EVERSTEP_OPERATOR_NAMESPACE": "ops",
            "EVERSTEP_STORE_URL": self.url,
        }
        with (self.home / "stderr").open("ab") as err:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *command[1:], env=env, stdout=subprocess.PIPE, stderr=err
            )
        self.processes.append(process)
        assert process.stdout is not None
        cut, lost, n = self.cut_after.pop(0) if self.cut_after else 0, self.lose.pop(0) if self.lose else 0, 0
        try:
            async for line in process.stdout:
                n += 1
                if n != lost:
                    await write(line)
                if n == cut:
                    raise ConnectionResetError
            await process.wait()
        finally:
            process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]  # nobody reads on

    def stderr(self) -> str:
        return (self.home / "stderr").read_text(encoding="utf-8")


class Scene:
    """One run of a mock cluster, and a person's terminal."""

    def __init__(self, cluster: KubectlCluster, pod: Pod, env: dict[str, str], journal: JournalId) -> None:
        self.cluster, self.pod, self.journal = cluster, pod, journal
        self.env = {
            **env,
            "PYTHONPATH": os.pathsep.join(str(REPOSITORY / part) for part in ("agent_image", "operator")),
        }
        self.started: list[subprocess.Popen[str]] = []
        self.object: dict[str, Any] = {
            "apiVersion": "everstep.dev/v1alpha1",
            "kind": "AgentRun",
            "metadata": {"name": "a", "namespace": TEAM, "uid": journal, "resourceVersion": "1", "generation": 1},
            "spec": {"goal": "g", "agent": {"entrypoint": "m:f"}},
            "status": {},
        }
        cluster.objects.items["agentruns", TEAM, "a"] = self.object

    def live(self, *arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", "from everstep.cli.kubectl import main; main()", "live", "a", *arguments]
        process = subprocess.Popen(
            command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.started.append(process)
        return process

    def done(self, process: "subprocess.Popen[str]", code: int = 0) -> tuple[str, str]:
        # Not by `communicate` alone: of what came with a line that was read before, it sees nothing.
        out = process.stdout.read() if process.stdout is not None else ""
        _, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == code, f"{out}\n{err}\n{self.pod.stderr()}"
        return out, err

    def shown(self, *arguments: str) -> list[dict[str, Any]]:
        out, _ = self.done(self.live("-o", "json", *arguments))
        return [json.loads(line) for line in out.splitlines()]

    def finish(self) -> None:
        """The object says so; its journal may not."""
        self.object["status"]["conditions"] = [{"type": "Finished", "status": "True"}]


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with servers.running("redis-7.0") as server:
        yield server.url


@pytest.fixture
def scene(redis_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    pod = Pod(tmp_path, redis_url)
    cluster = KubectlCluster(pod.run)
    with serving(cluster, tmp_path, INSTALLATION) as env:
        pod.kubeconfig = env["KUBECONFIG"]
        keys = {"k1": base64.b64encode(KEY).decode()}
        meta = {"name": "everstep-keys", "namespace": "ops", "uid": "k", "resourceVersion": "1"}
        cluster.objects.items["secrets", "ops", "everstep-keys"] = {
            "apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": keys,
        }  # fmt: skip
        found = Scene(cluster, pod, env, JournalId(f"live-{abs(hash(request.node.name))}"))
        yield found
        for process in found.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def until(what: str, condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end_s, f"not within {TIMEOUT_S} s: {what}"
        time.sleep(0.02)


def playing(scene: Scene, home: Path, gate: Path, faults: str = "") -> threading.Thread:
    """The run, attempt after attempt, in a thread of its own."""

    async def play() -> None:
        entrypoint, inputs = "tests.support.talkers:run", {"gate": str(gate)}
        async with Driver(scene.pod.url, scene.journal, home / "agent", entrypoint, inputs) as driver:
            assert (await driver.finish(faults=faults)).value == 6

    thread = threading.Thread(target=lambda: asyncio.run(play()))
    thread.start()
    return thread


def test_following_a_run_over_a_kill_to_its_end(scene: Scene, tmp_path: Path) -> None:
    """Begun before the run has a journal; ends by itself with the run."""
    gate = tmp_path / "gate"
    words, lines = scene.live("--follow"), scene.live("--follow", "-o", "json")
    until("both look", lambda: len(scene.pod.processes) == 2)
    run = playing(scene, tmp_path, gate, "after_live:2@1=kill")
    assert lines.stdout is not None
    first = lines.stdout.readline()
    assert json.loads(first)["kind"] == "begin", "told while the run goes on"
    assert not gate.exists()
    gate.touch()
    out, _ = scene.done(words)
    told = out.splitlines()
    assert "── talk #0 · attempt 1 is dead: what it said above does not count ──" in told
    again = told.index("── talk #0 · attempt 2, try 2 ──")
    assert told[again + 1] == "one two three �[31mfour ", "nothing reaches the terminal but text"
    assert told[-1] == "five six "
    rest, _ = scene.done(lines)
    entries = [json.loads(line) for line in [first, *rest.splitlines()]]
    assert [e["position"] for e in entries] == list(range(1, len(entries) + 1))
    assert {e["attempt"] for e in entries} == {1, 2}
    run.join(TIMEOUT_S)
    assert scene.shown() == entries
    assert scene.shown("--from", "4", "--follow") == entries[4:], "a run that is over ends the following"


def test_a_connection_that_breaks_loses_nothing_and_repeats_nothing(scene: Scene, tmp_path: Path) -> None:
    """kubectl exec drops streams and lines; the stream is asked for again from the last position."""
    gate = tmp_path / "gate"
    scene.pod.cut_after, scene.pod.lose = [2, 0, 1], [0, 3, 0]
    process = scene.live("--follow", "-o", "json")
    run = playing(scene, tmp_path, gate)
    gate.touch()
    out, _ = scene.done(process)
    run.join(TIMEOUT_S)
    entries = [json.loads(line) for line in out.splitlines()]
    assert [e["position"] for e in entries] == list(range(1, len(entries) + 1))
    assert "".join(e["text"] for e in entries).split()[-1] == "six"
    assert len(scene.pod.processes) >= 4


def test_a_pod_that_cannot_be_asked_is_told_of_after_a_few_tries(scene: Scene) -> None:
    scene.pod.lose = [1] * 9
    scene.object["status"] = {"checkpoint": {"seq": 3, "hash": "0" * 64, "key": f"es:{INSTALLATION}:{{x}}:journal"}}
    _, err = scene.done(scene.live(), 1)
    assert "broke the stream off again and again" in err
    assert "Traceback" not in err
    assert 2 <= len(scene.pod.processes) <= 4


def test_ctrl_c_ends_it_without_a_word_and_the_program_in_the_pod_too(scene: Scene, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    run = playing(scene, tmp_path, gate)
    process = scene.live("--follow")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("── talk #0")
    os.killpg(process.pid, signal.SIGINT)
    _, err = scene.done(process)
    assert err == ""
    until("the pod's program notices that nobody reads", lambda: scene.pod.processes[0].returncode is not None)
    gate.touch()
    run.join(TIMEOUT_S)
    assert "Traceback" not in scene.pod.stderr()


def test_a_run_that_ended_without_a_last_record_ends_the_following(scene: Scene, redis_url: str) -> None:
    """Cancelled by force: only the object knows."""
    asyncio.run(speak(redis_url, scene.journal, ["one "]))
    process = scene.live("--follow", "-o", "json")
    assert process.stdout is not None
    process.stdout.readline()
    scene.finish()
    scene.done(process)


def test_without_a_journal_it_says_so_or_waits(scene: Scene, redis_url: str) -> None:
    _, err = scene.done(scene.live(), 2)
    assert "run a has no journal yet" in err
    process = scene.live("--follow", "-o", "json")
    until("it waits", lambda: len(scene.pod.processes) == 2)
    asyncio.run(speak(redis_url, scene.journal, ["hello "]))
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["text"] == "hello "
    scene.finish()
    scene.done(process)


async def speak(url: str, journal: JournalId, words: list[str], sealer: Sealer | None = None) -> Store:
    store = open_store(url, installation=INSTALLATION)
    await store.fence(journal, Attempt(1), Head(Seq(0), Chain(journal).genesis()), {"name": "a"})
    await store.claim(journal, Attempt(1), Owner("o"))
    sealed = [word if sealer is None else sealer.seal_text(word) for word in words]
    entries = [LiveEntry("text", "0", "talk", 1, text=word).to_bytes() for word in sealed]
    await store.live_add(journal, Attempt(1), Owner("o"), entries)  # type: ignore[attr-defined]  # every store has it
    return store


async def test_an_encrypted_runs_words_are_opened_in_the_pod_and_an_erased_ones_are_not(redis_url: str) -> None:
    journal = JournalId("live-sealed")
    sealer = Sealer(journal, {"d1": b"k" * 32}, os.urandom)
    store = await speak(redis_url, journal, ["secret "], sealer)
    arguments = inspect._parser().parse_args(["live", "--run", "a", "--journal", journal])

    async def told(opener: Sealer | None) -> list[dict[str, Any]]:
        lines: list[bytes] = []

        async def get() -> Sealer | None:
            return opener

        await watching.write_live(store, get, arguments, None, lines.append, inspect.SystemClock())
        return [json.loads(line) for line in lines]

    assert [line.get("text") for line in await told(sealer)] == ["secret ", None]
    gone = Sealer(journal, {}, os.urandom, hidden="(erased)")
    assert (await told(gone))[0]["text"] == "(erased)"
    assert "secret" not in json.dumps(await told(None))
    assert (await told(sealer))[-1] == {"end": {"position": 1, "over": True}}
    await store.aclose()


async def test_a_command_does_not_live_for_ever_and_says_that_it_is_not_the_end(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "FOLLOW_S", 0.5)
    monkeypatch.setattr(watching, "ALIVE_S", 0.2)
    journal = JournalId("live-long")
    store = await speak(redis_url, journal, ["a "])
    arguments = inspect._parser().parse_args(["live", "--run", "a", "--journal", journal, "--follow", "--from", "0"])
    lines: list[bytes] = []

    async def get() -> Sealer | None:
        return None

    await watching.write_live(store, get, arguments, None, lines.append, inspect.SystemClock())
    told = [json.loads(line) for line in lines]
    assert told[0]["text"] == "a "
    assert {"alive": 1} in told
    assert told[-1] == {"end": {"position": 1, "over": False}}
    await store.aclose()
