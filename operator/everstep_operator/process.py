"""All parts of one operator process, put together and kept alive."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, Final, TypeVar, cast

import kopf

from everstep.clock import Clock
from everstep.errors import ConfigError, EverstepError, RetryableError
from everstep.ids import JournalId
from everstep.journal.keys import JournalKeys
from everstep.journal.open import open_store
from everstep.journal.store import Store
from everstep_operator.act import Actor
from everstep_operator.api.words import LABEL_INSTALLATION, LABEL_RUN_UID
from everstep_operator.cluster.api import KubeApi, TokenBucket, load_client
from everstep_operator.cluster.client import Cluster
from everstep_operator.cluster.own import OwnSecrets
from everstep_operator.decide.model import Rules
from everstep_operator.errors import ClusterRefused, NotFound
from everstep_operator.handlers import kopf_settings, make_registry
from everstep_operator.health import HealthServer, Vitals
from everstep_operator.journal_view import Journals
from everstep_operator.keyring import KeyRing, load_or_create
from everstep_operator.memory import Key, Memories
from everstep_operator.metrics import Metrics
from everstep_operator.observe import Observer
from everstep_operator.queue import KeyQueue, WorkQueue, jitter_of
from everstep_operator.settings import Settings
from everstep_operator.signing_keys import make_if_absent
from everstep_operator.store_check import StoreCheck
from everstep_operator.sweeper import Sweeper
from everstep_operator.worker import Intake, Reconciler, Resync, retry_after
from everstep_operator.wrapping_keys import Wrapping

KEY_GAP_S: Final = 0.1
"""A run is reconciled at most ten times a second, however often it is edited."""
START_RETRY_S: Final = 2.0
STOP_WITHIN_S: Final = 3.0

T = TypeVar("T")
log = logging.getLogger(__name__)


class Operator:
    """One operator process: its parts, and `run`."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        api: KubeApi,
        metrics: Metrics,
        store: Store,
        ring: KeyRing,
        wrapping: Wrapping,
    ) -> None:
        self.settings, self.clock, self.metrics, self.store = settings, clock, metrics, store
        self.cluster = Cluster(api)
        self.memories = Memories()
        self.journals = Journals(store, ring, clock, timeout_s=settings.store_timeout_s, wrapping=wrapping)
        self.store_check = StoreCheck(store, settings)
        keys: KeyQueue[Key] = KeyQueue(
            base_s=settings.backoff_base_s,
            max_s=settings.backoff_max_s,
            jitter=jitter_of(clock),
            gap_s=KEY_GAP_S,
        )
        observer = Observer(self.cluster, self.journals, self.store_check, self.memories)
        instance = socket.gethostname()
        actor = Actor(self.cluster, self.journals, settings, metrics, clock, instance=instance)
        self.queue: WorkQueue[Key] = WorkQueue(
            keys,
            self._work,
            lambda key, error: retry_after(metrics, key, error),
            workers=settings.workers,
            monotonic_s=clock.monotonic_s,
        )
        self.reconciler = Reconciler(observer, actor, self.memories, metrics, rules_of(settings), clock, self.queue.add)
        self.intake = Intake(self.queue, self.memories)
        self.resync = Resync(self.cluster, self.queue, self.memories, clock, settings.watch_namespaces)
        self.sweeper = Sweeper(
            self.cluster, self.journals, self.memories, metrics, clock, self.queue.add, after_s=settings.sweep_after_s
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._kopf_tasks: Collection[asyncio.Task[Any]] = []  # Any: kopf's own
        self._watching = False
        self.health = HealthServer(metrics, self.vitals, self.refresh_gauges)

    async def _work(self, key: Key) -> float | None:
        return await self.reconciler.reconcile(key)

    def vitals(self) -> Vitals:
        """What /healthz judges."""
        return Vitals(
            queue_stuck_s=self.queue.stuck_s(),
            watching=self._watching,
            resync_loop_alive=all(not task.done() for task in self._tasks),
            resync_age_s=self.resync.age_s(),
            ready=self.resync.done_once and self.store_check.checked,
        )

    def refresh_gauges(self) -> None:
        """Bring the gauges up to date before they are read."""
        m = self.metrics
        m.queue_depth.set(self.queue.depth())
        m.queue_delayed.set(self.queue.delayed())
        m.queue_oldest_s.set(self.queue.oldest_wait_s())
        m.resync_age_s.set(self.resync.age_s())
        m.store_up.set(0 if self.journals.down_since else 1)
        m.store_problems.set(len(self.store_check.health.problems))
        m.runs.clear()
        for summary, count in self.memories.summaries().items():
            m.runs.labels(summary).set(count)

    async def run(self, stop: asyncio.Event) -> int:
        """Until `stop`, a signal, or the end of a part that must not end. Returns the exit code."""
        s = self.settings
        await self.health.start(s.health_port, s.metrics_port)
        parts: list[tuple[str, Coroutine[None, None, None]]] = [
            ("queue", self.queue.run()),
            ("resync", self.resync.run(s.resync_s)),
            ("sweeper", self.sweeper.run(s.sweep_every_s)),
            ("store check", self.store_check.run(s.durability_check_s)),
        ]
        self._tasks = [asyncio.create_task(part, name=name) for name, part in parts]
        await asyncio.sleep(0)  # kopf leaves alone what ran before it
        watching = asyncio.create_task(self._watch(stop), name="watchers")
        self._watching = True
        try:
            done, _ = await asyncio.wait([watching, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
            return self._ended(done, watching)
        finally:
            self._watching = False
            stop.set()
            await self._close(watching)

    def _ended(self, done: set[asyncio.Task[None]], watching: asyncio.Task[None]) -> int:
        for task in done:
            error = task.exception()
            if error is not None or task is not watching:
                log.error("%s ended; the process ends with it", task.get_name(), exc_info=error)
                return 1
        return 0

    async def _watch(self, stop: asyncio.Event) -> None:
        """Run kopf until one of its root tasks ends. `kopf.operator` would first wait for its other tasks, and a watcher that
        waits for a new login then hangs for ever: a process without watches that looks alive. Here the first end counts."""
        s = self.settings
        selector = f"{LABEL_RUN_UID},{LABEL_INSTALLATION}={s.installation}"
        self._kopf_tasks = await kopf.spawn_tasks(
            registry=make_registry(self.intake),
            settings=kopf_settings(selector, jitter_of(self.clock)),
            # kopf would look up this user's name, and a container's uid has none. Only peering, which is off, uses it.
            identity=cast(Any, s.installation),
            standalone=True,
            clusterwide=not s.watch_namespaces,
            namespaces=list(s.watch_namespaces),
            stop_flag=stop,
        )
        done, _ = await asyncio.wait(self._kopf_tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def _close(self, watching: asyncio.Task[None]) -> None:
        """An act that is cut here is safe: whoever comes next looks again. Bounded: the caller ends the process anyhow."""
        tasks = [watching, *self._tasks, *self._kopf_tasks]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=STOP_WITHIN_S)
        await self.health.aclose()
        with contextlib.suppress(EverstepError):
            await self.journals.aclose()


def rules_of(settings: Settings) -> Rules:
    """The part of the settings that deciding needs."""
    shown = JournalKeys(settings.installation, JournalId("@")).journal
    return Rules(
        store_name=settings.store_url.split(":", 1)[0],
        journal_key_format=shown.replace("{@}", "{{{uid}}}"),
        default_image=settings.default_image,
        anchor_every_s=max(1, round(settings.anchor_s)),
        progress_every_s=max(1, round(settings.progress_s)),
        poll_live_s=max(1, round(settings.progress_s)),
        resync_s=max(1, round(settings.resync_s)),
        node_loss_policy="Wait" if settings.node_loss_policy == "Wait" else "Fence",
        node_loss_after_s=settings.node_loss_after_s,
    )


async def started(settings: Settings, clock: Clock) -> tuple[Operator, KubeApi]:
    """An operator that is ready to run: logged in, CRDs found, keys loaded. Waits for an API server that does not answer.
    Raises ConfigError."""
    metrics = Metrics()
    bucket = TokenBucket(settings.api_qps, settings.api_burst, clock.monotonic_s)
    api_client = await load_client(settings.api_timeout_s)
    api = KubeApi(api_client, bucket, timeout_s=settings.api_timeout_s, on_request=metrics.count_request)
    cluster = Cluster(api)
    await _patiently(lambda: _find_crds(cluster, settings))
    own = OwnSecrets(api, settings.operator_namespace)
    ring = await _patiently(lambda: load_or_create(own, settings.key_secret, clock))
    await _patiently(lambda: make_if_absent(own, settings.key_secret))
    wrapping = Wrapping(own, settings, clock)
    if settings.encrypt:
        await _patiently(wrapping.check)
    store = open_store(settings.store_url, installation=settings.installation, ca_path=settings.store_ca_file or None)
    return Operator(settings, clock, api, metrics, store, ring, wrapping), api


async def _find_crds(cluster: Cluster, settings: Settings) -> None:
    try:
        async for _ in cluster.list_runs(settings.watch_namespaces):
            return
    except NotFound as e:
        raise ConfigError(f"the AgentRun CRD is not installed ({e}): install the chart everstep-crds first") from e


async def _patiently(act: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await act()
        except RetryableError as e:
            log.warning("start: %s; trying again in %g s", e, START_RETRY_S)
            await asyncio.sleep(START_RETRY_S)
        except ClusterRefused as e:
            raise ConfigError(f"the operator may not do what it must: {e}") from e
