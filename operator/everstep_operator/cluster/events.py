"""Events about a run, as `kubectl describe` shows them: the same words again raise the count of one Event object.

An Event's name is made from the run's uid, reason and note, so whoever says the same thing twice (a restarted operator, a second
one) finds the first Event by name. Best effort throughout: an Event that is lost is lost, and never holds up a run.
"""

import hashlib
import logging
from collections.abc import Mapping
from typing import Any, Final

from everstep.errors import EverstepError
from everstep_operator.cluster.client import Cluster
from everstep_operator.errors import AlreadyExists

NOTE_MAX_BYTES: Final = 1024
COMPONENT: Final = "everstep-operator"

log = logging.getLogger(__name__)


async def record(
    cluster: Cluster, about: Mapping[str, str], *, kind: str, reason: str, note: str, now: str, instance: str
) -> None:
    """Say it about one object. `about` is an ObjectReference (apiVersion, kind, namespace, name, uid), `kind` is Normal or
    Warning, `now` RFC 3339 with seconds. Raises nothing."""
    namespace = about["namespace"]
    name = event_name(about["name"], about["uid"], kind, reason, note)
    try:
        await cluster.create_event(namespace, _new(about, name, kind, reason, note, now, instance))
    except AlreadyExists:
        await _count_up(cluster, namespace, name, now)
    except EverstepError as e:
        log.warning("event %s for %s/%s is lost: %s", reason, namespace, about["name"], e)


def event_name(name: str, uid: str, kind: str, reason: str, note: str) -> str:
    """`<run>.<16 hex digits>`; at most 253 characters as run names have 52."""
    digest = hashlib.sha256("\0".join((uid, kind, reason, note)).encode()).hexdigest()
    return f"{name}.{digest[:16]}"


def _new(
    about: Mapping[str, str],
    name: str,
    kind: str,
    reason: str,
    note: str,
    now: str,
    instance: str,
) -> Mapping[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": about["namespace"]},
        "involvedObject": dict(about),
        "type": kind,
        "reason": reason,
        "message": shortened(note),
        "count": 1,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "source": {"component": COMPONENT, "host": instance},
        "reportingComponent": COMPONENT,
        "reportingInstance": instance,
    }


async def _count_up(cluster: Cluster, namespace: str, name: str, now: str) -> None:
    try:
        event = await cluster.get_event(namespace, name)
        if event is not None:
            await cluster.patch_event(
                namespace, name, {"count": int(event.get("count") or 1) + 1, "lastTimestamp": now}
            )
    except EverstepError as e:
        log.warning("event %s/%s is not counted: %s", namespace, name, e)


def shortened(note: str) -> str:
    """At most NOTE_MAX_BYTES of UTF-8, the API server's own bound for a note."""
    raw = note.encode()
    if len(raw) <= NOTE_MAX_BYTES:
        return note
    return raw[: NOTE_MAX_BYTES - 3].decode(errors="ignore") + "…"
