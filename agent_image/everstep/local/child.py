"""The agent process: how it is started, stopped and waited for."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from everstep import contract
from everstep.contract import Termination
from everstep.ids import Attempt
from everstep.journal.store import Head
from everstep.local import leash, stragglers
from everstep.local.files import LocalDir
from everstep.local.losses import ChildEnd
from everstep.local.spec import RunSpec

TERMINATION_FILE = "termination"


@dataclass(frozen=True)
class AttemptPlan:
    """All an attempt needs to be started."""

    spec: RunSpec
    attempt: Attempt
    anchor: Head
    predecessor_dead: bool
    mark: str
    grace_s: float
    data_keys: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """By id; empty: the run is not encrypted."""


def prepare(directory: LocalDir, plan: AttemptPlan, inherited: Mapping[str, str]) -> dict[str, str]:
    """Write the attempt's private files; the environment its process gets. Raises OSError."""
    home = directory.fresh_attempt_dir(plan.spec.run)
    _private(home / contract.FILE_GOAL, plan.spec.goal)
    _private(home / contract.FILE_INPUTS, json.dumps(dict(plan.spec.inputs), ensure_ascii=False))
    if plan.data_keys:
        _private(home / contract.FILE_DATA_KEYS, json.dumps({name: key.hex() for name, key in plan.data_keys.items()}))
    env = {k: v for k, v in inherited.items() if k not in _OURS}
    env |= {
        contract.ENV_JOURNAL_ID: plan.spec.journal,
        contract.ENV_INSTALLATION: "local",
        contract.ENV_RUN_NAME: plan.spec.run,
        contract.ENV_NAMESPACE: "local",
        contract.ENV_ATTEMPT: str(plan.attempt),
        contract.ENV_ANCHOR_SEQ: str(plan.anchor.seq),
        contract.ENV_ANCHOR_HASH: plan.anchor.hash,
        contract.ENV_ENTRYPOINT: plan.spec.entrypoint,
        contract.ENV_STORE: directory.store_url,
        contract.ENV_SECRETS_DIR: str(home.resolve()),
        contract.ENV_GRACE_S: str(plan.grace_s),
        contract.ENV_TERMINATION_LOG: str((home / TERMINATION_FILE).resolve()),
        stragglers.ENV_MARK: plan.mark,
        "PYTHONUNBUFFERED": inherited.get("PYTHONUNBUFFERED", "1"),  # what the agent prints appears beside its step
    }
    if plan.spec.budget is not None:
        env[contract.ENV_BUDGET] = json.dumps(dict(plan.spec.budget))
    if plan.predecessor_dead:
        env[contract.ENV_PREDECESSOR] = contract.PREDECESSOR_DEAD
    return env


_THEIRS = {
    contract.ENV_FAULTS,
    contract.ENV_PARK_LINGER_S,
    contract.ENV_CANCEL_GRACE_S,
    contract.ENV_DEBUG,
    contract.ENV_ALWAYS_REPLAY,
}
"""Variables of the contract that a person may set for the agent."""
_OURS = {value for name, value in vars(contract).items() if name.startswith("ENV_")} - _THEIRS
"""The others are the supervisor's to set: what it may have been told about itself must not reach the agent."""


def command() -> list[str]:
    """The agent's command line: the contract's, by this very interpreter."""
    return [sys.executable, *contract.AGENT_COMMAND[1:]]


def leashed(parent: int, env: Mapping[str, str]) -> list[str]:
    """What stands before the program that is to die with `parent` and gets `env`: setpriv where it can do what
    everstep.local.leash does, since another interpreter would be 12 ms of every start. But a shell drops variables that it could
    not name."""
    setpriv = _setpriv()
    if setpriv and all(name.isascii() and name.isidentifier() for name in env):
        return [*setpriv, "/bin/sh", "-c", '[ "$PPID" = "$0" ] || exit 75; exec "$@"', str(parent)]
    return [sys.executable, "-S", "-E", leash.__file__, str(parent)]


@cache
def _setpriv() -> tuple[str, ...]:
    """The command, () where there is none that can: that of util-linux can, that of BusyBox cannot."""
    path = shutil.which("setpriv")
    if path is None:
        return ()
    command = (path, "--pdeathsig", "KILL")
    null = subprocess.DEVNULL
    tried = subprocess.run([*command, "/bin/sh", "-c", ":"], stdin=null, stdout=null, stderr=null, check=False)
    return command if tried.returncode == 0 else ()


class AgentProcess:
    """A started agent process."""

    def __init__(self, popen: "subprocess.Popen[bytes]") -> None:
        self._popen = popen
        self._waiter: asyncio.Task[int] | None = None

    @classmethod
    def start(cls, env: Mapping[str, str], cwd: str, lock_fd: int, stdout_fd: int | None) -> "AgentProcess":
        """Start it under the leash. It inherits `lock_fd` and holds that lock until it is gone; its own session keeps the
        terminal's Ctrl-C from it. `stdout_fd` None = ours. Must be called by the main thread: the kernel's parent-death
        signal follows the thread that forked."""
        argv = [*leashed(os.getpid(), env), *command()]
        return cls(
            subprocess.Popen(
                argv,
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=stdout_fd,
                pass_fds=(lock_fd,),
                start_new_session=True,
            )
        )

    @property
    def pid(self) -> int:
        return self._popen.pid

    def poll(self) -> ChildEnd | None:
        """How it ended; None while it lives."""
        status = self._popen.poll()
        return None if status is None else ChildEnd(status)

    def terminate(self) -> None:
        """Ask it to flush and leave (SIGTERM)."""
        self._popen.terminate()

    def kill(self) -> None:
        """End it at once (SIGKILL)."""
        self._popen.kill()

    async def wait(self, timeout_s: float) -> ChildEnd | None:
        """Wait until it ends, at most `timeout_s`; None if it still lives."""
        if self._waiter is None:
            self._waiter = asyncio.create_task(asyncio.to_thread(self._popen.wait))
        await asyncio.wait({self._waiter}, timeout=timeout_s)
        return self.poll()


def termination(directory: LocalDir, spec: RunSpec) -> Termination | None:
    """The termination message of the last attempt; None if it left none."""
    try:
        return Termination.from_json((directory.attempt_dir(spec.run) / TERMINATION_FILE).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None


def forget_keys(directory: LocalDir, spec: RunSpec) -> None:
    """An attempt is over: its copy of the data keys goes."""
    (directory.attempt_dir(spec.run) / contract.FILE_DATA_KEYS).unlink(missing_ok=True)


def forget(directory: LocalDir, spec: RunSpec) -> None:
    """Remove all that the last attempt was given and left."""
    shutil.rmtree(directory.attempt_dir(spec.run), ignore_errors=True)


def _private(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(fd, "w", encoding="utf-8") as f:
        f.write(text)
