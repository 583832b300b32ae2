"""The two stores every scenario runs on: a SQLite file with a plain chain, and a real Redis with a keyed one.

Redis writes every record to its append-only file before it answers.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import servers

STORES = ("sqlite", "redis")


@pytest.fixture(params=STORES)
def store_kind(request: pytest.FixtureRequest) -> str:
    """sqlite or redis."""
    return str(request.param)


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A private server for the whole tier; every scenario has a journal of its own in it."""
    with servers.running("redis-7.0") as server:
        yield server.url


@pytest.fixture
def store_url(store_kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """URL of the store."""
    if store_kind == "redis":
        return str(request.getfixturevalue("redis_url"))
    return f"sqlite://{tmp_path / 'journal.db'}"


@pytest.fixture
def run_key(store_kind: str) -> bytes | None:
    """The chain's key: none on SQLite, as in local mode."""
    return hashlib.sha256(b"crash tier").digest() if store_kind == "redis" else None
