"""An attempt on one Redis starts without redis-py (see everstep.journal.redis_pipe)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import servers
from tests.support.starting import REPOSITORY, modules_at_first_body, needless

LEAKED = """
import asyncio, os, resource, sys

from everstep.clock import SystemClock
from everstep.ids import Attempt, JournalId, Owner, Seq
from everstep.journal.chain import Chain
from everstep.journal.open import open_store
from everstep.journal.records import Fired
from everstep.journal.store import Head
from everstep.journal.writer import JournalWriter
from tests.support import servers

JOURNAL, ONE, OWNER = JournalId("leak"), Attempt(1), Owner("o")

async def main(server):
    store, chain = open_store(server.url, installation="leak"), Chain(JOURNAL)
    await store.fence(JOURNAL, ONE, Head(Seq(0), chain.genesis()), {})
    head = (await store.claim(JOURNAL, ONE, OWNER)).head
    writer = JournalWriter(store, JOURNAL, ONE, OWNER, chain, head=head, clock=SystemClock(), unreachable_after_s=20)
    put = lambda: writer.put(lambda seq: Fired(seq=seq, attempt=1, time=1))
    await writer.durable(put())
    assert "redis" not in sys.modules, "or this shows nothing"
    server.pause()
    waits = asyncio.create_task(writer.durable(put()))
    await asyncio.sleep(0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 1024))
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", 0))
    except OSError:
        pass
    pipe = store._pipes[0]
    server.process.kill()
    while not pipe.closed:
        await asyncio.sleep(0.01)
    for fd in held:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    server.process.wait()
    server.run()
    await asyncio.wait_for(waits, 30)
    print(writer.confirmed.seq)
    await store.aclose()

with servers.running("redis-7.0", tcp=True) as server:
    asyncio.run(main(server))
"""


@pytest.mark.parametrize("tcp", [True, False], ids=["tcp", "socket"])
@pytest.mark.parametrize("name", servers.NAMES)
async def test_a_start_on_redis_imports_nothing_that_few_runs_need(name: str, tcp: bool, tmp_path: Path) -> None:
    with servers.running(name, tcp=tcp) as server:
        modules = await modules_at_first_body(server.url, tmp_path)
    assert "everstep.journal.redis_store" in modules, "it looked at a run on Redis"
    assert needless(modules) == set()


def test_an_append_is_answered_also_where_no_file_can_be_opened() -> None:
    """A body that leaks files, and the store goes away: nothing can be imported then, and the append must not be waited for for
    ever."""
    path = os.pathsep.join(map(str, (REPOSITORY / "agent_image", REPOSITORY)))
    done = subprocess.run(
        [sys.executable, "-c", LEAKED],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
