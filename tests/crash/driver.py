"""Plays the operator for one run: anchor, fence, start `python -m everstep.run`, wait, and again until the run is finished.

It uses the process contract and the store's protocol and nothing else of the SDK, so what it sees is what an operator sees.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from everstep import contract
from everstep.contract import Termination
from everstep.ids import Attempt, InboxId, JournalId, Seq
from everstep.journal.chain import Chain
from everstep.journal.inbox import SettleBody, make_entry
from everstep.journal.open import open_store
from everstep.journal.records import Finished, Park, Record, Waited, decode
from everstep.journal.store import FenceAnswer, Head, Store, Stored

REPOSITORY = Path(__file__).resolve().parents[2]
ATTEMPT_TIMEOUT_S = 40.0
INSTALLATION = "crash"


@dataclass
class AgentProcess:
    """One attempt's process."""

    attempt: Attempt
    process: asyncio.subprocess.Process
    home: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    async def wait(self, timeout_s: float = ATTEMPT_TIMEOUT_S) -> int:
        """Its exit code, negative for a signal. A hung process is killed and the test fails with what it printed."""
        try:
            return await asyncio.wait_for(self.process.wait(), timeout_s)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
            raise AssertionError(f"attempt {self.attempt} hung for {timeout_s} s\n{self.stderr()}") from None

    async def wait_stopped(self, timeout_s: float = ATTEMPT_TIMEOUT_S) -> None:
        """Return once SIGSTOP has taken hold of it."""
        await until(lambda: self._state() == "T", f"attempt {self.attempt} is stopped", timeout_s, self.stderr)

    def _state(self) -> str:
        stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8")
        return stat.rpartition(")")[2].split()[0]

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def stderr(self) -> str:
        return (self.home / "stderr").read_text(encoding="utf-8", errors="replace")[-4000:]

    def termination(self) -> Termination | None:
        """What it left in its termination message."""
        path = self.home / "termination"
        return Termination.from_json(path.read_text(encoding="utf-8")) if path.exists() else None


async def until(
    condition: Callable[[], bool], what: str, timeout_s: float = ATTEMPT_TIMEOUT_S, detail: Callable[[], str] = str
) -> None:
    """Wait for a condition with a bound."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not condition():
        assert loop.time() < deadline, f"not within {timeout_s} s: {what}\n{detail()}"
        await asyncio.sleep(0.01)


@dataclass
class Driver:
    """One run on one store. `home` is a directory of its own."""

    store_url: str
    journal: JournalId
    home: Path
    entrypoint: str = "tests.crash.agents:script"
    inputs: dict[str, object] = field(default_factory=dict)
    run_key: bytes | None = None
    env: dict[str, str] = field(default_factory=dict)
    """Added to each process's environment."""
    bare_inputs: bool = False
    """The agent takes no `effects`."""

    def __post_init__(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        self.chain = Chain(self.journal, self.run_key)
        self.anchor = Head(Seq(0), self.chain.genesis())
        self.attempt = Attempt(0)
        self.exits: list[int] = []
        self._seen: list[Stored] = []
        self.store: Store = open_store(self.store_url, installation=INSTALLATION)

    @property
    def effects(self) -> Path:
        return self.home / "effects"

    async def __aenter__(self) -> "Driver":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.store.aclose()

    async def fence(self) -> None:
        """Announce the next attempt to the store."""
        self.attempt = Attempt(self.attempt + 1)
        reply = await self.store.fence(self.journal, self.attempt, self.anchor, {"name": "crash"})
        assert reply.answer is FenceAnswer.OK, reply

    async def spawn(self, *, faults: str = "", predecessor_dead: bool = False) -> AgentProcess:
        """Start a process for the attempt in force."""
        home = self.home / f"process-{len(list(self.home.glob('process-*'))) + 1}"
        secrets = home / "secrets"
        secrets.mkdir(parents=True)
        (secrets / contract.FILE_GOAL).write_text("go", encoding="utf-8")
        inputs = self.inputs if self.bare_inputs else {"effects": str(self.effects), **self.inputs}
        (secrets / contract.FILE_INPUTS).write_text(json.dumps(inputs), encoding="utf-8")
        (secrets / contract.FILE_STORE_URL).write_text(self.store_url, encoding="utf-8")
        if self.run_key is not None:
            (secrets / contract.FILE_RUN_KEY).write_text(self.run_key.hex(), encoding="utf-8")
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(REPOSITORY / part) for part in ("agent_image", ".")),
            contract.ENV_JOURNAL_ID: self.journal,
            contract.ENV_INSTALLATION: INSTALLATION,
            contract.ENV_RUN_NAME: "crash",
            contract.ENV_NAMESPACE: "default",
            contract.ENV_ATTEMPT: str(self.attempt),
            contract.ENV_ANCHOR_SEQ: str(self.anchor.seq),
            contract.ENV_ANCHOR_HASH: self.anchor.hash,
            contract.ENV_ENTRYPOINT: self.entrypoint,
            contract.ENV_SECRETS_DIR: str(secrets),
            contract.ENV_TERMINATION_LOG: str(home / "termination"),
            contract.ENV_PARK_LINGER_S: "0.3",
            contract.ENV_FAULTS: faults,
            **self.env,
        }
        if predecessor_dead:
            env[contract.ENV_PREDECESSOR] = contract.PREDECESSOR_DEAD
        with (home / "stderr").open("wb") as err:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *contract.AGENT_COMMAND[1:], env=env, cwd=home, stdout=err, stderr=err
            )
        return AgentProcess(self.attempt, process, home)

    async def records(self) -> list[Record]:
        """The whole journal, its chain checked link by link; also what was compacted since it was looked at before."""
        async for stored in self.store.read(self.journal):
            if stored.seq <= len(self._seen):
                assert stored.hash == self._seen[stored.seq - 1].hash, f"record {stored.seq} changed"
                continue
            before = self._seen[-1].hash if self._seen else self.chain.genesis()
            assert stored.seq == len(self._seen) + 1, f"gap before {stored.seq}"
            assert stored.prev_hash == before, f"chain broken at {stored.seq}"
            assert stored.hash == self.chain.link(before, stored.record), f"record {stored.seq} altered"
            self._seen.append(stored)
        return [decode(stored.record, stored.seq) for stored in self._seen]

    async def last(self) -> Record | None:
        """The newest record."""
        stored = await self.store.last(self.journal)
        return None if stored is None else decode(stored.record, stored.seq)

    async def take_anchor(self) -> None:
        """Copy the head, as the operator does between attempts."""
        meta = await self.store.meta(self.journal)
        assert meta is not None
        assert meta.head.seq >= self.anchor.seq, "the head went back"
        self.anchor = meta.head

    async def settle(self, wait: Waited) -> None:
        """Answer for a person who looked into the file of effects: done if it is there, else run again; exhausted tries begin
        anew."""
        name = _value_of(wait)
        done = wait.kind == "uncertain" and any(line["name"] == name for line in self.lines())
        body = SettleBody(
            key=wait.key,
            input=wait.input,
            decision="done" if done else "again",
            value=name if done else None,
            by="test",
        )
        entry = make_entry(self.chain, InboxId(f"settle-{wait.key}-{self.attempt}"), body)
        assert await self.store.inbox_add(self.journal, entry)

    async def sleep_until(self, wake_epoch_ms: int | None) -> None:
        """Let the parked run's timer fall due."""
        if wake_epoch_ms is not None:
            await asyncio.sleep(max(0.0, wake_epoch_ms / 1000 - time.time()))

    def lines(self) -> list[dict[str, object]]:
        """All effects so far, in order."""
        if not self.effects.exists():
            return []
        return [json.loads(line) for line in self.effects.read_text(encoding="utf-8").splitlines()]

    async def finish(self, *, faults: str = "", max_attempts: int = 8) -> Finished:
        """Attempt after attempt until `finished`, as an operator would. Every process is waited for, so each predecessor is
        proved dead; `faults` are given to all (use point@attempt)."""
        while True:
            await self.fence()
            agent = await self.spawn(faults=faults, predecessor_dead=self.attempt > 1)
            code = await agent.wait()
            self.exits.append(code)
            head = await self.last()
            await self.records()  # what the next attempt may compact
            await self.take_anchor()
            if isinstance(head, Finished):
                return head
            assert code in (0, -signal.SIGKILL, 75, 143), f"exit {code}\n{agent.stderr()}"
            assert code != 0 or isinstance(head, Park), f"exit 0 without park or finished\n{agent.stderr()}"
            assert self.attempt < max_attempts, f"not finished after {self.attempt} attempts: {head}\n{agent.stderr()}"
            if isinstance(head, Park):
                for wait in head.waits:
                    if wait.kind != "timer":
                        await self.settle(wait)
                if all(wait.kind == "timer" for wait in head.waits):
                    await self.sleep_until(head.wake)


def _value_of(wait: Waited) -> object:
    """What the step would have returned: the scripted at_most_once steps return their last argument."""
    arguments = wait.arguments
    if isinstance(arguments, dict):
        return arguments["name"]
    assert isinstance(arguments, list)
    return arguments[-1]
