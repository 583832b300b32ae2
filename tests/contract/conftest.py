"""Every kind of store, each test on a journal of its own."""

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from everstep.journal.store import Store
from tests.contract.stores import Bench, MemoryBench, RedisBench, SqliteBench
from tests.support import servers, topologies

OpenStore = Callable[[], Store]


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Callable[[str], servers.Server]]:
    """One server per version for all tests that leave it as it was."""
    started: dict[str, servers.Server] = {}

    def get(name: str) -> servers.Server:
        if name not in started:
            started[name] = servers.start(name)
        return started[name]

    yield get
    for server in started.values():
        server.end()


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[Callable[[], servers.Server]]:
    """A three-node cluster, made at its first use; answers one of its nodes (C50)."""
    with ExitStack() as stack:
        yield functools.cache(lambda: stack.enter_context(topologies.cluster("redis-7.0"))[0])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`bench` runs over every kind of store; modules with WITH_CLUSTER also over a cluster, where each look behind the store's
    back is slow."""
    if "bench" in metafunc.fixturenames:
        kinds = ["memory", "sqlite", *servers.NAMES]
        kinds += ["cluster"] if getattr(metafunc.module, "WITH_CLUSTER", False) else []
        metafunc.parametrize("bench", kinds, indirect=True)


@pytest.fixture
def bench(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    shared_server: Callable[[str], servers.Server],
    shared_cluster: Callable[[], servers.Server],
) -> Iterator[Bench]:
    """One kind of store after the other."""
    if request.param == "memory":
        yield MemoryBench()
    elif request.param == "sqlite":
        yield SqliteBench(tmp_path / "journal.db")
    elif request.param == "cluster":
        node = shared_cluster()
        yield from _flushed(RedisBench(node, url=f"redis+cluster://127.0.0.1:{node.port}"))
    else:
        yield from _redis_bench(shared_server(request.param))


@pytest.fixture(params=servers.NAMES)
def redis_bench(request: pytest.FixtureRequest, shared_server: Callable[[str], servers.Server]) -> Iterator[RedisBench]:
    """Each real server, for what only a server has."""
    yield from _redis_bench(shared_server(request.param))


def _redis_bench(server: servers.Server) -> Iterator[RedisBench]:
    yield from _flushed(RedisBench(server))


def _flushed(one: RedisBench) -> Iterator[RedisBench]:
    yield one
    with one.client() as c:
        c.flushall()


@pytest.fixture
async def opened() -> AsyncIterator[Callable[[Bench], Store]]:
    """Opens clients that are closed when the test ends."""
    stores: list[Store] = []

    def open_one(bench: Bench) -> Store:
        stores.append(bench.open())
        return stores[-1]

    yield open_one
    for store in stores:
        await store.aclose()


@pytest.fixture
def store(bench: Bench, opened: Callable[[Bench], Store]) -> Store:
    return opened(bench)
