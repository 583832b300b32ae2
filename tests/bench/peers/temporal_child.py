"""Temporal: a workflow of activities, against the development server.

python -m tests.bench.peers.temporal_child PORT DATABASE
"""

import asyncio
import sqlite3
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib.metadata import version

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from tests.bench.peers.child import Body, Engine, serve

_bodies: dict[str, Body] = {}
LOST_AFTER_S = 10
"""Temporal learns of a lost worker by this time-out of the activity alone."""


@activity.defn
def work(run: str, n: int) -> str:
    return _bodies[run](n)


@workflow.defn
class Sequential:
    @workflow.run
    async def run(self, run: str, steps: int) -> str:
        for n in range(steps):
            await workflow.execute_activity(
                work,
                args=[run, n],
                start_to_close_timeout=timedelta(seconds=LOST_AFTER_S),
                retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=10)),
            )
        return "done"


class Temporal(Engine):
    """A worker in a loop on a thread."""

    def __init__(self, port: int, database: str) -> None:
        self.port, self.database = port, database
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(self._connect(), self.loop).result(60)

    async def _connect(self) -> None:
        self.client = await Client.connect(f"127.0.0.1:{self.port}")
        worker = Worker(
            self.client,
            task_queue="bench",
            workflows=[Sequential],
            activities=[work],
            activity_executor=ThreadPoolExecutor(128),
            workflow_runner=UnsandboxedWorkflowRunner(),
        )
        self.worker = asyncio.create_task(worker.run())

    def settings(self) -> dict[str, object]:
        db = sqlite3.connect(self.database)
        mode = db.execute("PRAGMA journal_mode").fetchone()[0]
        db.close()
        return {"temporalio": version("temporalio"), "journal_mode": mode, "synchronous": "the server does not tell"}

    def run(self, run: str, steps: int, body: Body) -> None:
        _bodies[run] = body
        asyncio.run_coroutine_threadsafe(
            self.client.execute_workflow(Sequential.run, args=[run, steps], id=run, task_queue="bench"), self.loop
        ).result()

    def resume(self, run: str, steps: int, body: Body) -> None:
        _bodies[run] = body
        asyncio.run_coroutine_threadsafe(self.client.get_workflow_handle(run).result(), self.loop).result()


if __name__ == "__main__":
    serve(lambda: Temporal(int(sys.argv[1]), sys.argv[2]))
