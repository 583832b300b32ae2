"""The directory of local mode, and writing a file so that a crash leaves the old or the new one, never half of it.

.everstep/
  .gitignore              keeps all of this out of version control
  journal.db              every run's journal (SQLite)
  runs/<run>.json         what the run was started with (everstep.local.spec); written once
  anchors/<run>.json      the newest head known to be durable (everstep.local.anchors); only grows
  locks/<run>.supervisor  held by the process that supervises the run
  locks/<run>.agent       held by the agent process and by whatever it forked
  keys/s1.pem             signs exports (everstep.local.signing); made at first use, for the user alone
  keys/w1.key             wraps the data keys of encrypted runs (everstep.local.sealing); made at first use, for the user alone
  attempts/<run>/         goal, inputs and termination message of the live attempt; private to the user
"""

import os
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

from everstep.errors import ConfigError
from everstep.ids import RunName

DEFAULT_DIR = ".everstep"
_SUBDIRECTORIES = ("runs", "anchors", "locks", "attempts")


def write_atomic(path: Path, text: str) -> None:
    """Replace a file durably: after a crash at any moment the old or the new text is there. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    with open(temporary, "w", encoding="utf-8") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())
    os.replace(temporary, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # the rename itself must survive a power loss, or the anchor could shrink
    finally:
        os.close(directory)


@dataclass(frozen=True)
class LocalDir:
    """Where local mode keeps everything; `root` is `./.everstep` unless `--dir` says otherwise."""

    root: Path

    def create(self) -> None:
        """Make the directory, readable by its owner alone: journals hold prompts. Raises ConfigError."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in _SUBDIRECTORIES:
                (self.root / name).mkdir(mode=0o700, exist_ok=True)
            ignore = self.root / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n", encoding="utf-8")
        except OSError as e:
            raise ConfigError(
                f"--dir {self.root}: cannot be used: {e.strerror or e}; name a directory you can write"
            ) from e

    @property
    def journal_path(self) -> Path:
        return self.root / "journal.db"

    @property
    def store_url(self) -> str:
        """URL of the SQLite store; absolute, since the agent may change its directory."""
        return f"sqlite:///{self.journal_path.resolve()}"

    def spec_path(self, run: RunName) -> Path:
        return self.root / "runs" / f"{run}.json"

    def anchor_path(self, run: RunName) -> Path:
        return self.root / "anchors" / f"{run}.json"

    def supervisor_lock(self, run: RunName) -> Path:
        return self.root / "locks" / f"{run}.supervisor"

    @property
    def keys_dir(self) -> Path:
        return self.root / "keys"

    @property
    def keys_lock(self) -> Path:
        return self.root / "locks" / ".keys"

    def agent_lock(self, run: RunName) -> Path:
        return self.root / "locks" / f"{run}.agent"

    def attempt_dir(self, run: RunName) -> Path:
        return self.root / "attempts" / run

    def fresh_attempt_dir(self, run: RunName) -> Path:
        """An empty private directory for one attempt; what an earlier one left is removed."""
        path = self.attempt_dir(run)
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(mode=0o700, parents=True)
        return path

    def runs(self) -> list[RunName]:
        """Names of all runs started here, sorted."""
        return sorted(RunName(p.stem) for p in (self.root / "runs").glob("*.json"))
