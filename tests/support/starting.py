"""What a fresh agent process has imported when its first body begins."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

from everstep import contract
from everstep.ids import Attempt, JournalId, Seq
from everstep.journal.chain import Chain
from everstep.journal.open import open_store
from everstep.journal.store import FenceAnswer, Head

REPOSITORY = Path(__file__).resolve().parents[2]
AGENT = """
import json, sys
import everstep

@everstep.step(effect="idempotent", retry=everstep.Retry(max_tries=2))
async def look(n: int, words: list[str], more: dict[str, int]) -> str:
    print(json.dumps(sorted(sys.modules)))
    return "seen"

@everstep.agent
async def run(goal: str, limit: int = 3) -> str:
    return await look(limit, ["a"], {"b": 1})
"""

NOT_AT_THE_START = {
    "annotated_types": "comes with pydantic",
    "click": "of the command line",
    "cryptography": "where a run is encrypted",
    "difflib": "for a message",
    "email": "for a date in Retry-After",
    "everstep.adapters": "where an agent uses one",
    "everstep.cli": "of the command line",
    "everstep.journal.export": "of commands",
    "everstep.journal.exported": "of commands",
    "everstep.journal.fork": "of commands",
    "everstep.journal.memory": "for tests",
    "everstep.journal.sealing": "where a run is encrypted",
    "everstep.local": "of the supervisor",
    "everstep.run.artifact": "where a step keeps files",
    "everstep.run.inprocess": "of everstep.run(…)",
    "everstep.run.sync_agent": "of sync agents",
    "everstep.testing": "for tests",
    "importlib.metadata": "redis-py's",
    "multiprocessing": "of nobody",
    "pydantic": "for annotations that are not plain",
    "redis": "where something fails, for TLS, Sentinel and Cluster",
    "rich": "of the command line",
    "sysconfig": "for a message",
    "unittest": "for tests",
}
"""Modules, packages with all that is in them, that a start does without, and what they are for. Each was or would be milliseconds
of every restart; whoever needs one imports it where it is used."""


async def modules_at_first_body(url: str, folder: Path) -> set[str]:
    """Run one attempt of a small agent with plain types on a fresh journal."""
    journal = JournalId("start")
    store = open_store(url, installation="start")
    fence = await store.fence(journal, Attempt(1), Head(Seq(0), Chain(journal).genesis()), {})
    await store.aclose()
    assert fence.answer is FenceAnswer.OK
    (folder / "small_agent.py").write_text(AGENT, encoding="utf-8")
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join((str(REPOSITORY / "agent_image"), str(folder))),
        contract.ENV_JOURNAL_ID: journal,
        contract.ENV_INSTALLATION: "start",
        contract.ENV_ATTEMPT: "1",
        contract.ENV_ENTRYPOINT: "small_agent:run",
        contract.ENV_STORE: url,
        contract.ENV_SECRETS_DIR: str(folder),
    }
    argv = [sys.executable, *contract.AGENT_COMMAND[1:]]
    done = await asyncio.to_thread(
        subprocess.run, argv, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def needless(modules: set[str]) -> set[str]:
    """Those of them that a start does without."""
    return {m for m in modules if any(m == n or m.startswith(f"{n}.") for n in NOT_AT_THE_START)}
