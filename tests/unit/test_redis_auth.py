"""Passwords of the included Redis: made once, never overwritten, shown to nobody. What each user may do: tests/contract."""

import base64
import hashlib
import stat
from pathlib import Path
from typing import Any, cast

import pytest

from everstep.clock import SystemClock
from everstep.errors import ConfigError
from everstep_operator.cluster.api import KubeApi
from everstep_operator.errors import AlreadyExists, NotFound
from everstep_operator.redis_auth import (
    KEY_ACL,
    KEY_ADMIN_PASSWORD,
    KEY_AGENT_URL,
    KEY_URL,
    Place,
    ensure_secret,
    secret_data,
    write_urls,
)

PLACE = Place("everstep-redis.everstep-system.svc", 6379, "prod")


class FakeApi:
    """Secrets of one namespace. `late`: somebody else's Secret that appears between our GET and our POST."""

    def __init__(self, late: dict[str, str] | None = None) -> None:
        self.secrets: dict[str, dict[str, str]] = {}
        self.late = late
        self.writes = 0

    async def read(self, path: str) -> dict[str, Any]:
        name = path.rsplit("/", 1)[1]
        if name not in self.secrets:
            raise NotFound("not found", status=404, reason="NotFound")
        return {"data": {k: base64.b64encode(v.encode()).decode() for k, v in self.secrets[name].items()}}

    async def write(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        assert (method, path) == ("POST", "/api/v1/namespaces/ns/secrets")
        name = body["metadata"]["name"]
        if self.late is not None:
            self.secrets[name], self.late = self.late, None
        if name in self.secrets:
            raise AlreadyExists("exists", status=409, reason="AlreadyExists")
        self.writes += 1
        self.secrets[name] = body["stringData"]
        return await self.read(f"{path}/{name}")


def fresh() -> dict[str, str]:
    return secret_data(PLACE, SystemClock())


async def ensured(api: FakeApi, data: dict[str, str]) -> dict[str, str]:
    return await ensure_secret(cast(KubeApi, api), "ns", "auth", data)


def test_every_password_is_its_own() -> None:
    """Three users, three passwords of 32 bytes, new each time; the ACL file holds none of them."""
    data, other = fresh(), fresh()
    passwords = {data[key].split(":")[2].split("@")[0] for key in (KEY_URL, KEY_AGENT_URL)} | {data[KEY_ADMIN_PASSWORD]}
    assert len(passwords) == 3
    assert all(len(bytes.fromhex(password)) == 32 for password in passwords)
    assert not [password for password in passwords if password in str(other)]
    for password in passwords:
        assert password not in data[KEY_ACL]
        assert hashlib.sha256(password.encode()).hexdigest() in data[KEY_ACL]
    assert data[KEY_AGENT_URL].startswith("redis://agent:")
    assert data[KEY_URL].endswith("@everstep-redis.everstep-system.svc:6379/0")


async def test_made_once_and_never_overwritten() -> None:
    """The first call makes it, each later one reads it."""
    api, first = FakeApi(), fresh()
    assert await ensured(api, first) == first
    assert await ensured(api, fresh()) == first
    assert api.writes == 1


async def test_of_two_operators_that_start_together_one_wins() -> None:
    """The slower one takes what the faster one made."""
    theirs = fresh()
    api = FakeApi(late=theirs)
    assert await ensured(api, fresh()) == theirs
    assert api.writes == 0


async def test_a_secret_that_lacks_a_key_is_named() -> None:
    """It is neither completed nor replaced: Redis may run with what is there."""
    api = FakeApi()
    api.secrets["auth"] = {KEY_URL: "redis://h:6379"}
    with pytest.raises(ConfigError, match=r"Secret ns/auth lacks admin-password, agent-url, users\.acl"):
        await ensured(api, fresh())
    assert api.writes == 0


def test_urls_are_files_of_this_user_alone(tmp_path: Path) -> None:
    """Mode 0600 in a folder of mode 0700; a restart in the same pod writes them anew."""
    folder = tmp_path / "everstep"
    for data in (fresh(), fresh()):
        write_urls(data, folder)
        for key in (KEY_URL, KEY_AGENT_URL):
            assert (folder / key).read_text() == data[key]
            assert stat.S_IMODE((folder / key).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert sorted(path.name for path in folder.iterdir()) == sorted([KEY_URL, KEY_AGENT_URL])
