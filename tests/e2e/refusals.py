"""Asking the API server for something it must refuse, and reading its words."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import pytest

from tests.e2e.harness import Kube
from tests.kind.errors import CommandFailed

Object = dict[str, Any]


def merged(target: Any, patch: Mapping[str, Any]) -> Any:
    """JSON merge patch: None removes."""
    found = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, Mapping):
            found[key] = merged(found.get(key), value)
        else:
            found[key] = deepcopy(value)
    return found


@contextmanager
def scratch_namespace(kube: Kube, name: str) -> Iterator[str]:
    """A namespace of one test module, gone at its end."""
    kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    try:
        yield name
    finally:
        kube("delete", "namespace", name, "--wait=false")


def create(kube: Kube, item: Mapping[str, Any], *flags: str) -> Object:
    """Create an object and return it as stored. With `--dry-run=server` everything is checked and nothing is kept."""
    found: Object = json.loads(kube("create", "-f", "-", "-o", "json", *flags, stdin=json.dumps(item)))
    return found


def patch(kube: Kube, item: Mapping[str, Any], change: Mapping[str, Any], *flags: str) -> Object:
    """Merge-patch an object and return it."""
    meta, kind = item["metadata"], item["kind"]
    words = [
        "-n",
        meta["namespace"],
        "patch",
        kind,
        meta["name"],
        "--type=merge",
        "-p",
        json.dumps(change),
        "-o",
        "json",
    ]
    found: Object = json.loads(kube(*words, *flags))
    return found


@contextmanager
def refused(*words: str) -> Iterator[None]:
    """The block must be refused by the API server, with each of these words in what it says."""
    with pytest.raises(CommandFailed) as caught:
        yield
    for word in words:
        assert word in caught.value.output, f"{word!r} is not in: {caught.value.output}"
