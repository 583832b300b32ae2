"""Many runs in one process, which is killed again and again: each run goes on as if it had been alone."""

import asyncio
import json
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from everstep.journal.chain import Chain
from everstep.journal.open import open_store
from everstep.journal.verify import verify
from everstep.local.files import LocalDir
from everstep.local.spec import load

RUNS, ITEMS = 6, 5
SERVICE = """
import asyncio, json, os, signal, sys
import everstep

KILL_AT = int(sys.argv[1])  # effects of this process, after which it dies
done = 0

def effect(kind, key):
    global done
    fd = os.open("effects", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, json.dumps([kind, key]).encode() + b"\\n")
    os.close(fd)
    done += 1
    if done == KILL_AT:
        os.kill(os.getpid(), signal.SIGKILL)

def was_mailed(to: str):
    sent = [json.loads(line) for line in open("effects")]
    return everstep.Done(to) if ["mail", to] in sent else everstep.NOT_DONE

@everstep.step(effect="idempotent")
async def file(name: str) -> str:
    await asyncio.sleep(0.002)
    effect("file", name)
    return name

@everstep.step(effect="at_most_once", probe=was_mailed)
async def mail(to: str) -> str:
    await asyncio.sleep(0)
    effect("mail", to)
    return to

@everstep.agent
async def work(goal: str, items: int) -> list[str]:
    filed = await asyncio.gather(*(file(f"{goal}-{n}") for n in range(items)))
    await asyncio.sleep(0.003)
    return [await mail(name) for name in filed]

async def main(runs: int, items: int) -> None:
    results = await asyncio.gather(
        *(everstep.run_async(work, goal=f"r{n}", run_id=f"r{n}", items=items) for n in range(runs))
    )
    print(json.dumps(results))

asyncio.run(main(int(sys.argv[2]), int(sys.argv[3])))
"""


@pytest.mark.parametrize("seed", range(4))
def test_a_service_with_many_runs_is_killed_at_random_effects(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    script = tmp_path / "service.py"
    script.write_text(SERVICE)
    kills = 0
    while True:
        kill_at = chance.randrange(1, 20) if kills < 8 else 0
        argv = [sys.executable, str(script), str(kill_at), str(RUNS), str(ITEMS)]
        ended = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        if ended.returncode != -signal.SIGKILL:
            break
        kills += 1
    assert ended.returncode == 0, ended.stderr
    assert kills >= 3
    assert json.loads(ended.stdout) == [[f"r{n}-{i}" for i in range(ITEMS)] for n in range(RUNS)]
    told = Counter(tuple(json.loads(line)) for line in (tmp_path / "effects").read_text().splitlines())
    names = [f"r{n}-{i}" for n in range(RUNS) for i in range(ITEMS)]
    assert {told["mail", name] for name in names} == {1}
    assert max(told["file", name] for name in names) <= 1 + kills
    asyncio.run(_each_is_whole(LocalDir(tmp_path / ".everstep")))


async def _each_is_whole(directory: LocalDir) -> None:
    store = open_store(directory.store_url, installation="local")
    try:
        for n in range(RUNS):
            spec = load(directory.spec_path(f"r{n}"))
            assert spec is not None
            (await verify(store, Chain(spec.journal), spec.journal)).require_whole()
    finally:
        await store.aclose()
