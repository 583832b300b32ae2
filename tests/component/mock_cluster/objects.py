"""The mock API server's store of objects: versions, uids, watch history, JSON patch, preconditions, owner references.

Enough of Kubernetes to make an operator go wrong where it would go wrong on a real one: every write raises one global resource
version, a patch with a failing `test` changes nothing, deletion honours preconditions, children go with their owner.
"""

import asyncio
import copy
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

Json = dict[str, Any]
Key = tuple[str, str, str]
"""(plural, namespace, name)."""


class ApiError(Exception):
    """Becomes a Status object."""

    def __init__(self, status: int, reason: str, message: str, *, fields: list[str] | None = None) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message
        self.fields = fields or []

    def body(self) -> Json:
        details: Json = {"causes": [{"field": f, "message": self.message} for f in self.fields]} if self.fields else {}
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": self.status,
            "reason": self.reason,
            "message": self.message,
            "details": details,
        }


def now_rfc3339() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Change:
    """One entry of the watch history."""

    version: int
    kind: str
    plural: str
    object: Json


@dataclass
class Objects:
    """Everything in the cluster."""

    items: dict[Key, Json] = field(default_factory=dict)
    history: list[Change] = field(default_factory=list)
    version: int = 100
    oldest: int = 100
    """Watches from an older version get 410."""
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    made: list[str] = field(default_factory=list)
    """Every name of a pod that was ever created, in order, with its uid."""

    def get(self, plural: str, namespace: str, name: str) -> Json:
        try:
            return self.items[plural, namespace, name]
        except KeyError:
            raise ApiError(404, "NotFound", f'{plural} "{name}" not found') from None

    def find(self, plural: str, namespace: str, selector: str) -> list[Json]:
        return [
            item
            for (p, ns, _), item in sorted(self.items.items())
            if p == plural and namespace in ("", ns) and matches(item, selector)
        ]

    async def create(self, plural: str, namespace: str, item: Json, *, dry_run: bool = False) -> Json:
        name = item["metadata"]["name"]
        if (plural, namespace, name) in self.items:
            raise ApiError(409, "AlreadyExists", f'{plural} "{name}" already exists')
        item = copy.deepcopy(item)
        meta = item["metadata"]
        meta.update(namespace=namespace, uid=str(uuid.uuid4()), creationTimestamp=now_rfc3339(), generation=1)
        if plural == "pods":
            item.setdefault("status", {"phase": "Pending"})
        elif plural in ("agentruns", "humanrequests"):
            item.pop("status", None)
        if dry_run:
            return item
        if plural == "pods":
            self.made.append(name)
        await self._store("ADDED", plural, item)
        return item

    async def replace(self, plural: str, item: Json) -> Json:
        """Store a changed object (status, labels, …)."""
        await self._store("MODIFIED", plural, item)
        return item

    async def delete(self, plural: str, namespace: str, name: str, preconditions: Json) -> None:
        item = self.get(plural, namespace, name)
        for what, wanted in preconditions.items():
            if item["metadata"].get(what) != wanted:
                raise ApiError(409, "Conflict", f"precondition {what} {wanted} does not hold")
        del self.items[plural, namespace, name]
        await self._store("DELETED", plural, copy.deepcopy(item))
        for child_plural, child in self._children(item["metadata"]["uid"]):
            await self.delete(child_plural, child["metadata"]["namespace"], child["metadata"]["name"], {})

    def forget_history(self) -> None:
        """As after a restart or compaction: watches from before get 410."""
        self.history.clear()
        self.oldest = self.version

    def _children(self, uid: str) -> list[tuple[str, Json]]:
        return [
            (plural, item)
            for (plural, _, _), item in list(self.items.items())
            if any(owner.get("uid") == uid for owner in item["metadata"].get("ownerReferences") or [])
        ]

    async def _store(self, kind: str, plural: str, item: Json) -> None:
        async with self.changed:
            self.version += 1
            item["metadata"]["resourceVersion"] = str(self.version)
            if kind != "DELETED":
                self.items[plural, item["metadata"]["namespace"], item["metadata"]["name"]] = item
            self.history.append(Change(self.version, kind, plural, copy.deepcopy(item)))
            self.changed.notify_all()


def matches(item: Json, selector: str) -> bool:
    """Equality and existence terms of a label selector."""
    labels = item["metadata"].get("labels") or {}
    for term in filter(None, selector.split(",")):
        name, equals, value = term.partition("=")
        if name not in labels or (equals and labels[name] != value):
            return False
    return True


_ESCAPED = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _strings(inner)


def check_bytes_of_tests(operations: list[Json], raw: str) -> None:
    """The real server compares the strings of a `test` as bytes, in its own JSON: characters as they are, <, > and & escaped.
    Raises ApiError 422."""
    for operation in operations:
        for text in _strings(operation.get("value")) if operation["op"] == "test" else ():
            if json.dumps(text, ensure_ascii=False).translate(_ESCAPED) not in raw:
                raise ApiError(
                    422, "Invalid", f"the server rejected our request due to an error in our request: {text!r}"
                )


def json_patch(document: Json, operations: list[Json]) -> Json:
    """RFC 6902: add, replace, remove, test. Raises ApiError 422 and leaves the document alone."""
    document = copy.deepcopy(document)
    for operation in operations:
        path = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        parent: Any = document
        try:
            for part in path[:-1]:
                parent = parent[int(part)] if isinstance(parent, list) else parent[part]
            _apply(parent, path[-1], operation)
        except (KeyError, IndexError, TypeError, ValueError) as e:
            raise ApiError(
                422, "Invalid", f"the server rejected our request due to an error in our request: {operation} ({e!r})"
            ) from e
    return document


def _apply(parent: Any, leaf: str, operation: Json) -> None:
    kind, value = operation["op"], operation.get("value")
    if isinstance(parent, list):
        index = len(parent) if leaf == "-" else int(leaf)
        if kind == "test":
            _test(parent[index], value)
        elif kind == "add":
            parent.insert(index, value)
        elif kind == "replace":
            parent[index] = value
        else:
            del parent[index]
        return
    if kind == "test":
        _test(parent.get(leaf), value)  # an absent value equals null, as on the real server
    elif kind == "add":
        parent[leaf] = value
    elif kind == "replace":
        parent[leaf]
        parent[leaf] = value
    else:
        del parent[leaf]


def _test(have: object, wanted: object) -> None:
    if json.dumps(have, sort_keys=True) != json.dumps(wanted, sort_keys=True):
        raise ValueError(f"test failed: {have!r}")


def merge_patch(document: Json, patch: Json) -> Json:
    """RFC 7386."""
    document = copy.deepcopy(document)
    for name, value in patch.items():
        if value is None:
            document.pop(name, None)
        elif isinstance(value, dict) and isinstance(document.get(name), dict):
            document[name] = merge_patch(document[name], value)
        else:
            document[name] = copy.deepcopy(value)
    return document
