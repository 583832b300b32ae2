"""Judging what a server says of itself: levels, policies, roles, versions, and what must be declared."""

import pytest

from everstep.journal import durability
from everstep.journal.durability import judge
from everstep.journal.store import DurabilityReport

GOOD: dict[str, object] = {
    "redis_version": "7.0.15",
    "run_id": "a",
    "aof_enabled": 1,
    "aof_last_write_status": "ok",
    "maxmemory_policy": "noeviction",
    "role": "master",
    "connected_slaves": 0,
}


def report(appendfsync: str | None = "always", **changes: object) -> DurabilityReport:
    return durability.report({"": {**GOOD, **changes}}, [appendfsync])


def test_a_good_server() -> None:
    assert report() == DurabilityReport("EveryWrite", (), "redis 7.0.15", "a", False)
    assert judge(report(), None) == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"maxmemory_policy": "allkeys-lru"}, "maxmemory-policy is allkeys-lru"),
        ({"maxmemory_policy": "volatile-ttl"}, "Set it to noeviction"),
        ({"role": "slave"}, "the server is a replica"),
        ({"redis_version": "6.2.14"}, "redis 6.2.14 is too old"),
        ({"valkey_version": "7.1.0"}, "valkey 7.1.0 is too old"),
        ({"aof_last_write_status": "err"}, "last write to the append-only file failed"),
    ],
)
def test_what_no_declaration_heals(changes: dict[str, object], says: str) -> None:
    """C51."""
    for declared in (None, "EveryWrite", "EverySecond", "None"):
        [problem] = judge(report(**changes), declared)  # type: ignore[arg-type]  # fields of INFO
        assert says in problem


def test_a_managed_service_without_persistence_fields() -> None:
    bare = {k: v for k, v in GOOD.items() if not k.startswith("aof")}
    made = durability.report({"": bare}, [None])
    assert made.level is None
    assert "Say what the service keeps" in judge(made, None)[0]
    assert judge(made, "EverySecond") == []


def test_the_weakest_node_of_a_cluster_counts() -> None:
    nodes = {"a:1": GOOD, "b:2": {**GOOD, "run_id": "b", "role": "slave"}}
    made = durability.report(nodes, ["always", "everysec"])
    assert made.level == "EverySecond"
    assert made.problems == (
        "b:2: the server is a replica: point the store's URL at its primary (or use redis+sentinel://)",
    )
    assert made.run_id == "a,b"
    assert durability.report(nodes, ["always", None]).level is None


def test_replicated() -> None:
    assert "no replica is connected" in judge(report(), "Replicated")[0]
    assert judge(report(connected_slaves=1), "Replicated") == []
    assert judge(report(appendfsync="everysec", connected_slaves=2), "Replicated") == []


def test_unknown_level_is_named_with_the_known_ones() -> None:
    assert judge(report(), "always") == [
        "journal.durability: always is unknown; write one of EveryWrite, Replicated, EverySecond, None"
    ]


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ({"appendfsync": "always"}, "always"),
        ({b"appendfsync": b"everysec"}, "everysec"),
        ({}, None),
        (None, None),
    ],
)
def test_shapes_of_config_get(reply: object, value: str | None) -> None:
    assert durability.appendfsync_of(reply) == value
