"""kopf's part: it watches AgentRuns, HumanRequests and pods, and each event puts a key into our queue. Nothing is decided here.

Of kopf only `on.event`, the login and the process host are used: no state handlers (they keep copies of the spec in annotations),
timers, daemons, index, peering, finalizers or webhooks, and kopf never patches an object. What a watch misses, the resync heals.
Pods are filtered on the server by our label: a cluster's other pods cost nothing.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import kopf

GROUP: Final = "everstep.dev"
VERSION: Final = "v1alpha1"
BACKOFF_FIRST_S: Final = 1.0
BACKOFF_MAX_S: Final = 15.0
PAGE_OBJECTS: Final = 500
CONNECT_TIMEOUT_S: Final = 10.0
STREAM_S: Final = 300
"""One watch request lasts this long at most, then a new one follows from where it ended. Whole: the API server refuses 300.0."""


class Sink(Protocol):
    """Where events go. Called on the loop, must not block or raise. `gone` = the object was deleted, `listed` = seen in a
    listing (a start or a re-list), not as an event of now. The objects are plain dictionaries, never kept as they are."""

    def saw_run(self, run: dict[str, Any], *, gone: bool, listed: bool) -> None: ...  # Any: the API server's JSON

    def saw_pod(self, pod: dict[str, Any], *, gone: bool, listed: bool) -> None: ...  # Any: the API server's JSON

    def saw_request(self, request: dict[str, Any], *, gone: bool, listed: bool) -> None: ...  # Any: as above


class EndlessBackoff:
    """Pauses between kopf's tries of one request: doubling with jitter, for ever. A watcher must outlast any outage of the
    API server: its end would end the process, and restarts in a row help nobody. `jitter` returns 0 … 1."""

    def __init__(self, jitter: Callable[[], float]) -> None:
        self._jitter = jitter

    def __iter__(self) -> Iterator[float]:
        delay = BACKOFF_FIRST_S
        while True:
            yield delay * (1 - 0.5 * self._jitter())
            delay = min(BACKOFF_MAX_S, delay * 2)


def kopf_settings(pod_selector: str, jitter: Callable[[], float]) -> kopf.OperatorSettings:
    """kopf with everything off that we do not use."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.networking.error_backoffs = EndlessBackoff(jitter)
    settings.networking.connect_timeout = CONNECT_TIMEOUT_S
    settings.watching.connect_timeout = CONNECT_TIMEOUT_S
    settings.watching.server_timeout = STREAM_S
    settings.watching.chunk_size = PAGE_OBJECTS
    settings.watching.label_selectors["v1", "pods"] = pod_selector
    settings.queueing.idle_timeout = 1.0  # our queue holds what is worth holding
    return settings


def make_registry(sink: Sink) -> kopf.OperatorRegistry:
    """Handlers that only tell the sink."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:  # Any: kopf hands over whatever it has
        return kopf.login_with_service_account(**kwargs) or kopf.login_via_client(**kwargs)

    @kopf.on.event(GROUP, VERSION, "agentruns", registry=registry)
    def on_run(event: kopf.RawEvent, **_: Any) -> None:  # Any: as above
        sink.saw_run(dict(event["object"]), gone=event["type"] == "DELETED", listed=event["type"] is None)

    @kopf.on.event(GROUP, VERSION, "humanrequests", registry=registry)
    def on_request(event: kopf.RawEvent, **_: Any) -> None:  # Any: as above
        sink.saw_request(dict(event["object"]), gone=event["type"] == "DELETED", listed=event["type"] is None)

    @kopf.on.event("v1", "pods", registry=registry)
    def on_pod(event: kopf.RawEvent, **_: Any) -> None:  # Any: as above
        sink.saw_pod(dict(event["object"]), gone=event["type"] == "DELETED", listed=event["type"] is None)

    return registry
