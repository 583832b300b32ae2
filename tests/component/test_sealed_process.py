"""One attempt's process as an encrypted run's pod starts it: data keys from the run's Secret, and what it says at its end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from everstep import contract
from everstep.ids import Attempt, JournalId, Seq
from everstep.journal.chain import Chain
from everstep.journal.open import open_store
from everstep.journal.store import Head

WORD = "platypus"
AGENT = """
import everstep

@everstep.agent
async def run(goal: str) -> str:
    return goal

@everstep.agent
async def fail(goal: str) -> str:
    raise ValueError(goal)
"""
WITHOUT = "import runpy, sys; sys.modules['cryptography'] = None; runpy.run_module('everstep.run', run_name='__main__')"


@pytest.fixture
async def env(tmp_path: Path) -> dict[str, str]:
    """A journal that was fenced for attempt 1, and the files of the run's Secret."""
    url = f"sqlite:///{tmp_path}/journal.db"
    store, journal = open_store(url, installation="local"), JournalId("j")
    await store.fence(journal, Attempt(1), Head(Seq(0), Chain(journal).genesis()), {})
    await store.aclose()
    (tmp_path / contract.FILE_DATA_KEYS).write_text(json.dumps({"d1": "07" * 32}))
    (tmp_path / contract.FILE_GOAL).write_text(WORD)
    (tmp_path / "app.py").write_text(AGENT)
    return {
        **os.environ,
        contract.ENV_JOURNAL_ID: journal,
        contract.ENV_ATTEMPT: "1",
        contract.ENV_ENTRYPOINT: "app:run",
        contract.ENV_STORE: url,
        contract.ENV_SECRETS_DIR: str(tmp_path),
        contract.ENV_POD_UID: "a-pod",
        contract.ENV_TERMINATION_LOG: str(tmp_path / "said"),
        "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}",
    }


def process(env: dict[str, str], folder: Path, *arguments: str) -> tuple[int, contract.Termination]:
    done = subprocess.run(
        [sys.executable, *arguments], env=env, cwd=folder, capture_output=True, timeout=60, check=False
    )
    said = contract.Termination.from_json((folder / "said").read_text())
    assert said is not None, done.stderr
    return done.returncode, said


def stored(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob("journal.db*"))


def test_it_seals_with_the_keys_of_its_secret(env: dict[str, str], tmp_path: Path) -> None:
    code, said = process(env, tmp_path, "-m", "everstep.run")
    assert (code, said.reason) == (0, contract.StopReason.FINISHED)
    assert b'"sealed":"d1"' in stored(tmp_path)
    assert WORD.encode() not in stored(tmp_path)


def test_an_errors_words_do_not_get_into_the_pods_status(env: dict[str, str], tmp_path: Path) -> None:
    code, said = process({**env, contract.ENV_ENTRYPOINT: "app:fail"}, tmp_path, "-m", "everstep.run")
    assert (code, said.message) == (70, "ValueError: (encrypted)")
    assert WORD.encode() not in stored(tmp_path)


def test_an_image_without_the_library_writes_nothing(env: dict[str, str], tmp_path: Path) -> None:
    code, said = process(env, tmp_path, "-c", WITHOUT)
    assert (code, said.seq) == (64, 0)
    assert "pip install 'everstep[integrity]'" in said.message
