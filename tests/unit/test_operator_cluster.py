"""The operator's view of the API server: refusals told apart, pods read from the container `agent` alone, paced writes."""

from collections.abc import Mapping
from typing import Any

import pytest

from everstep.ids import EpochMs, JournalId
from everstep_operator import errors
from everstep_operator.api.times import epoch_ms
from everstep_operator.cluster import views
from everstep_operator.cluster.api import TokenBucket, refusal
from everstep_operator.cluster.events import NOTE_MAX_BYTES, event_name, shortened
from everstep_operator.decide.model import ContainerState


def told(reason: str = "", message: str = "no", **details: Any) -> dict[str, object]:
    return {"kind": "Status", "reason": reason, "message": message, "details": details}


@pytest.mark.parametrize(
    ("status", "body", "kind", "retryable"),
    [
        (400, told("BadRequest"), errors.Invalid, False),
        (401, told("Unauthorized"), errors.ClusterUnavailable, True),
        (403, told("Forbidden", "exceeded quota: pods"), errors.Forbidden, False),
        (404, told("NotFound"), errors.NotFound, False),
        (409, told("AlreadyExists"), errors.AlreadyExists, False),
        (409, told("Conflict"), errors.Conflict, True),
        (422, told("Invalid", causes=[{"field": "spec.goal"}]), errors.Invalid, False),
        (
            422,
            told("Invalid", "the server rejected our request due to an error in our request"),
            errors.TestFailed,
            True,
        ),
        (429, told("TooManyRequests", retryAfterSeconds=7), errors.ClusterThrottled, True),
        (500, told("InternalError"), errors.ClusterUnavailable, True),
        (503, {}, errors.ClusterUnavailable, True),
        (302, {}, errors.ClusterUnavailable, True),
    ],
)
def test_each_refusal_says_whether_to_try_again(
    status: int, body: dict[str, object], kind: type[Exception], retryable: bool
) -> None:
    error = refusal("PATCH /x", status, body)
    assert type(error) is kind
    assert error.retryable is retryable
    assert "PATCH /x" in str(error)


@pytest.mark.parametrize(
    ("headers", "details", "wanted"),
    [({"Retry-After": "3"}, {}, 3), ({}, {"retryAfterSeconds": 5}, 5), ({"Retry-After": "soon"}, {}, 1), ({}, {}, 1),
     ({"Retry-After": "86400"}, {}, 300)],
)  # fmt: skip
def test_retry_after_is_read_and_bounded(headers: dict[str, str], details: dict[str, Any], wanted: float) -> None:
    error = refusal("x", 429, told(**details), headers)
    assert isinstance(error, errors.ClusterThrottled)
    assert error.retry_after_s == wanted


def test_the_bucket_lets_a_burst_through_and_then_keeps_the_rate() -> None:
    now = [0.0]
    bucket = TokenBucket(10, 5, lambda: now[0])
    assert [bucket.reserve() for _ in range(5)] == [0] * 5
    assert [round(bucket.reserve(), 3) for _ in range(3)] == [0.1, 0.2, 0.3]
    now[0] = 100.0
    assert bucket.reserve() == 0
    bucket.pause(4)
    assert bucket.reserve() == 4, "a pause the server asks for holds every write"


def pod(status: Mapping[str, object], **spec: object) -> dict[str, object]:
    return {
        "metadata": {
            "name": "r-1",
            "uid": "p",
            "labels": {"everstep.dev/attempt": "1"},
            "ownerReferences": [{"uid": "u", "controller": True}],
            "creationTimestamp": "2026-03-01T10:00:00Z",
        },
        "spec": {"containers": [{"name": "agent", "resources": {"limits": {"memory": "512Mi"}}}], **spec},
        "status": status,
    }


def container(name: str, **state: object) -> dict[str, object]:
    return {"name": name, "state": state}


def test_a_sidecar_neither_keeps_a_run_alive_nor_ends_it() -> None:
    ended = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-03-01T10:00:05Z"}
    status = {
        "phase": "Running",
        "containerStatuses": [container("proxy", running={}), container("agent", terminated=ended)],
    }
    seen = views.pod_view(pod(status), "u")
    assert seen.agent.state is ContainerState.TERMINATED
    assert (seen.agent.exit_code, seen.agent.reason) == (137, "OOMKilled")
    assert seen.agent.finished_epoch_ms == epoch_ms("2026-03-01T10:00:05Z")
    assert seen.agent.memory_limit_bytes == 512 * 2**20
    alive = {
        "phase": "Running",
        "containerStatuses": [container("proxy", terminated=ended), container("agent", running={})],
    }
    assert views.pod_view(pod(alive), "u").agent.state is ContainerState.RUNNING


def test_a_bare_new_pod_is_read() -> None:
    bare = {"metadata": {"name": "r-1", "uid": "p"}}
    seen = views.pod_view(bare, "u")
    assert (seen.phase, seen.owned, seen.attempt, seen.agent.state) == ("Pending", False, None, ContainerState.ABSENT)


@pytest.mark.parametrize(
    ("status", "node", "deleted", "wanted"),
    [
        ({"phase": "Running", "containerStatuses": [container("agent", running={})]}, "n", False, False),
        ({"phase": "Running", "containerStatuses": [container("agent", running={})]}, "n", True, True),
        ({"phase": "Running", "containerStatuses": [container("agent", running={})],
          "conditions": [{"type": "Ready", "status": "False"}]}, "n", False, True),
        ({"phase": "Pending"}, "", False, False),
        ({"phase": "Pending"}, "n", False, True),
        ({"phase": "Failed", "containerStatuses": [container("agent", terminated={})]}, "n", True, False),
    ],
)  # fmt: skip
def test_a_node_is_looked_at_only_for_pods_in_doubt(
    status: dict[str, object], node: str, deleted: bool, wanted: bool
) -> None:
    raw = pod(status, nodeName=node)
    if deleted:
        raw["metadata"]["deletionTimestamp"] = "2026-03-01T10:00:30Z"  # type: ignore[index]  # a plain JSON object
    assert views.in_doubt(views.pod_view(raw, "u")) is wanted


def test_a_lost_node_tells_since_when() -> None:
    ready = {"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-03-01T10:00:00Z"}
    seen = views.node_view({"status": {"conditions": [ready]}})
    assert (seen.exists, seen.ready, seen.unreachable_since_epoch_ms) == (True, False, EpochMs(1772359200000))
    assert views.node_view(None).exists is False


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("512Mi", 512 * 2**20),
        ("1G", 10**9),
        ("1.5Gi", 3 * 2**29),
        ("1000m", 1),
        ("0", 0),
        ("lots", None),
        (None, None),
        (64, 64),
    ],
)
def test_quantities(text: object, wanted: int | None) -> None:
    assert views.quantity(text) == wanted


def test_a_run_whose_spec_or_status_is_broken_is_data() -> None:
    meta = {"name": "r", "namespace": "n", "uid": "u", "generation": 2, "resourceVersion": "7"}
    seen = views.run_view({"metadata": meta, "spec": {"agent": {}}, "status": {"attempt": 3, "attempts": "x"}})
    assert seen.spec is None
    assert "spec.agent.entrypoint" in seen.spec_error
    assert seen.status.attempt == 3, "a number that was given out is honoured whatever else is unreadable"
    assert seen.uid == JournalId("u")


def test_the_same_words_are_the_same_event_and_long_ones_are_cut() -> None:
    assert event_name("r", "u", "Normal", "A", "x") == event_name("r", "u", "Normal", "A", "x")
    assert event_name("r", "u", "Normal", "A", "x") != event_name("r", "u2", "Normal", "A", "x")
    assert len(shortened("é" * 2000).encode()) <= NOTE_MAX_BYTES
    assert shortened("short") == "short"
