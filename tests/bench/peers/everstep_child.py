"""Everstep itself: whole attempts of the engine, as a pod or a supervisor runs them.

python -m tests.bench.peers.everstep_child URL
"""

import asyncio
import sys

from everstep.clock import SystemClock
from everstep.ids import Attempt as Number
from everstep.ids import JournalId, Owner, RunName, Seq
from everstep.journal.chain import Chain
from everstep.journal.open import open_store
from everstep.journal.store import FenceAnswer, Head, Store
from everstep.run.agents import agent
from everstep.run.attempt import Attempt, AttemptEnd, RunIdentity
from everstep.run.config import EngineConfig
from everstep.run.hosting import attend, host
from everstep.run.lane import Lane
from everstep.run.loop import AgentLoop
from everstep.run.steps import step
from tests.bench.peers.child import Body, Engine, serve

KEY = b"k" * 32
_bodies: dict[str, Body] = {}


@step(effect="idempotent")
async def work(run: str, n: int) -> str:
    """The measured step."""
    return _bodies[run](n)


@agent
async def sequential(goal: str, steps: int) -> str:
    """`steps` steps, one after the other."""
    for n in range(steps):
        await work(goal, n)
    return "done"


class Everstep(Engine):
    """One run in a loop of its own, as `everstep.run` does it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def settings(self) -> dict[str, object]:
        async def ask() -> dict[str, object]:
            store = open_store(self.url, installation="bench")
            report = await store.durability()
            await store.aclose()
            return {"server": report.server, "durability": report.level, "problems": list(report.problems)}

        return asyncio.run(ask())

    def run(self, run: str, steps: int, body: Body) -> None:
        _bodies[run] = body
        lane, store = Lane(AgentLoop(SystemClock())), open_store(self.url, installation="bench")
        _check(host(lane, self._attempt(lane, store, run, steps), store.aclose))

    def many(self, run: str, runs: int, steps: int, body: Body) -> None:
        """In one loop, each in a lane of its own, as `everstep.run_async` does it."""
        loop, store = AgentLoop(SystemClock()), open_store(self.url, installation="bench")

        async def one(name: str) -> None:
            _bodies[name] = body
            lane = Lane(loop)
            _check(await attend(lane, self._attempt(lane, store, name, steps)))

        async def each() -> None:
            await asyncio.gather(*(one(f"{run}-{n}") for n in range(runs)))
            await store.aclose()

        loop.run_until_complete(each())
        loop.close()

    async def _attempt(self, lane: Lane, store: Store, run: str, steps: int) -> AttemptEnd:
        journal = JournalId(f"bench-{run}")
        chain = Chain(journal, KEY)
        meta = await store.meta(journal)
        number = Number(meta.attempt + 1 if meta else 1)
        anchor = meta.head if meta else Head(Seq(0), chain.genesis())
        assert (await store.fence(journal, number, anchor, {})).answer is FenceAnswer.OK
        identity = RunIdentity(
            chain,
            Owner(f"bench-{number}"),
            goal=run,
            inputs={"steps": steps},
            run_name=RunName(run),
            namespace="bench",
            entrypoint="bench:sequential",
            anchor_seq=anchor.seq,
            anchor_hash=anchor.hash,
        )
        config = EngineConfig(journal, number, predecessor_dead=True, max_steps=1_000_000)
        return await Attempt(lane, store, lambda: sequential, identity, config, SystemClock()).run()


def _check(end: AttemptEnd) -> None:
    assert end.error is None, end.error
    assert end.record.kind == "finished", end.record


if __name__ == "__main__":
    serve(lambda: Everstep(sys.argv[1]))
