"""The operator's own Secrets, in its own namespace: made once if absent. Only here may it change a Secret, and RBAC names which.

The chart does not make them, since templating tools would renew them at each sync.
"""

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everstep.errors import ConfigError
from everstep_operator.cluster.api import JSON_PATCH, Json, KubeApi
from everstep_operator.errors import AlreadyExists, NotFound


class OwnSecrets:
    """See the module. Raises ClusterUnavailable (observe again) and ClusterRefused."""

    def __init__(self, api: KubeApi, namespace: str) -> None:
        self._api, self._namespace = api, namespace

    def where(self, name: str) -> str:
        """For messages."""
        return f"Secret {self._namespace}/{name}"

    async def get(self, name: str) -> Json | None:
        """None on 404."""
        try:
            return await self._api.read(self._path(name))
        except NotFound:
            return None

    async def made_once(self, name: str, build: Callable[[], Json]) -> Json:
        """The Secret; a new one from `build` if there is none. Two operators that start together end up with one: the second
        one's POST is refused and it reads the first one's. Raises ConfigError for one that is being deleted."""
        found = await self.get(name)
        if found is None:
            try:
                found = await self._api.write("POST", self._path(), build())
            except AlreadyExists:
                found = await self.get(name)
        if found is None:
            raise ConfigError(f"{self.where(name)} is being deleted; the operator needs what it holds")
        return found

    async def patch(self, name: str, version: str, operations: Sequence[Mapping[str, Any]]) -> Json:
        """Change exactly this version of it. TestFailed: somebody else changed it meanwhile."""
        test = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
        return await self._api.write("PATCH", self._path(name), [test, *operations], content_type=JSON_PATCH)

    def _path(self, name: str = "") -> str:
        return f"/api/v1/namespaces/{self._namespace}/secrets" + (f"/{name}" if name else "")


def own_entries(secret: Json, where: str) -> dict[str, bytes]:
    """What it holds. Raises ConfigError naming the entry that cannot be read."""
    found: dict[str, bytes] = {}
    for name, text in (secret.get("data") or {}).items():
        try:
            found[name] = base64.b64decode(text, validate=True)
        except (binascii.Error, TypeError) as e:
            raise ConfigError(f"{where}: {name} is not base64") from e
    return found


def own_secret(
    name: str, kind: str, note: str, data: Mapping[str, str], annotations: Mapping[str, str] | None = None
) -> Json:
    """The object as a dict; `kind` is its type below everstep.dev/, `data` base64 by key."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "annotations": {"everstep.dev/note": note, **(annotations or {})}},
        "type": f"everstep.dev/{kind}",
        "data": dict(data),
    }
