"""/healthz, /readyz and /metrics over HTTP.

    /healthz   200 while the process is worth keeping; 503 with the reasons when a restart may help: watchers or resync have
               ended, or runs wait and no worker finishes anything
    /readyz    200 once the key Secret, the store's check and the first listing are through
    /metrics   Prometheus text, on its own port

An unreachable store or API server does not fail /healthz: restarting the operator cures neither.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from aiohttp import web
from prometheus_client import generate_latest

from everstep_operator.metrics import Metrics

QUEUE_STUCK_S: Final = 300.0
"""Keys wait and no worker finished anything for this long: all of them hang, as reconciles are bounded by their time-outs."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Vitals:
    """What health is judged by."""

    queue_stuck_s: float
    watching: bool
    resync_loop_alive: bool
    resync_age_s: float
    ready: bool


def complaints(vitals: Vitals) -> list[str]:
    """Why the process should be restarted; empty when it should not."""
    found = []
    if not vitals.watching:
        found.append("the watchers have ended")
    if not vitals.resync_loop_alive:
        found.append("the resync has ended")
    if vitals.queue_stuck_s > QUEUE_STUCK_S:
        found.append(f"runs wait and no worker has finished anything for {vitals.queue_stuck_s:.0f} s")
    return found


class HealthServer:
    """Serves the pages on two ports. `refresh` updates the gauges before they are read."""

    def __init__(self, metrics: Metrics, vitals: Callable[[], Vitals], refresh: Callable[[], None]) -> None:
        self._metrics, self._vitals, self._refresh = metrics, vitals, refresh
        self._runners: list[web.AppRunner] = []

    async def start(self, health_port: int, metrics_port: int) -> tuple[int, int]:
        """Listen on all addresses; 0 picks a free port. Returns the two ports."""
        health = web.Application()
        health.router.add_get("/healthz", self._healthz)
        health.router.add_get("/readyz", self._readyz)
        metrics = web.Application()
        metrics.router.add_get("/metrics", self._metrics_page)
        return await self._listen(health, health_port), await self._listen(metrics, metrics_port)

    async def aclose(self) -> None:
        """Stop listening."""
        for runner in self._runners:
            await runner.cleanup()

    async def _listen(self, app: web.Application, port: int) -> int:
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        self._runners.append(runner)
        site = web.TCPSite(runner, host=None, port=port)
        await site.start()
        return int(runner.addresses[0][1])

    async def _healthz(self, request: web.Request) -> web.Response:
        vitals = self._vitals()
        found = complaints(vitals)
        body = {
            "complaints": found,
            "queueStuckSeconds": round(vitals.queue_stuck_s, 3),
            "resyncAgeSeconds": round(vitals.resync_age_s, 3),
            "watching": vitals.watching,
        }
        return web.json_response(body, status=503 if found else 200)

    async def _readyz(self, request: web.Request) -> web.Response:
        ready = self._vitals().ready
        return web.json_response({"ready": ready}, status=200 if ready else 503)

    async def _metrics_page(self, request: web.Request) -> web.Response:
        self._refresh()
        text = generate_latest(self._metrics.registry)
        return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
