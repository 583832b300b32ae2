"""The programs tests run: from PATH, else from the cache of tests.kind, else made by it (both come in one download)."""

import shutil
from pathlib import Path

import pytest

from tests.kind.cache import Cache
from tests.kind.clients import Clients
from tests.kind.errors import KindToolError
from tests.kind.progress import Reporter


def find_helm() -> Path:
    """helm 3 or 4."""
    return _find("helm")


def find_kubectl() -> Path:
    """kubectl."""
    return _find("kubectl")


def _find(program: str) -> Path:
    """Skips the test if the program can be neither found nor made, which CI counts as a failure."""
    if on_path := shutil.which(program):
        return Path(on_path)
    cache = Cache.default()
    cached = cache.bin / program
    if not cached.exists():
        try:
            with cache.lock("up", Reporter().say):
                Clients(cache, from_path=True).make()
        except KindToolError as e:
            pytest.skip(f"no {program} on PATH, and it cannot be fetched: {e}")
    return cached
