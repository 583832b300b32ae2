"""Makes redis-py clients for each mode, and runs scripts on them.

The client's own retries are off: it would run a script a second time after a lost reply, under our feet. The writer repeats the
very same append instead, which the script recognises by its hashes.
"""

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from everstep.journal.redis_errors import is_no_script
from everstep.journal.redis_url import Mode, RedisUrl

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster

CONNECT_TIMEOUT_S = 5.0
REPLY_TIMEOUT_S = 5.0
"""Silence after which a reply counts as lost. A server that syncs each write answers in milliseconds."""

Client: TypeAlias = "Redis | RedisCluster"
Reply: TypeAlias = Any  # whatever RESP holds: bytes, int, None, or lists of them
Execute: TypeAlias = Callable[..., Awaitable[Reply]]
"""Sends a command's words; raises for an error in the reply's place."""


def make_client(url: RedisUrl, ca_path: str | None) -> Client:
    """A client that connects at its first command. Replies stay bytes. Imports redis-py: 60 ms, see `redis_pipe`."""
    from redis.asyncio import Redis, RedisCluster, Sentinel
    from redis.asyncio.cluster import ClusterNode
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    common: dict[str, Any] = {  # Any: keyword arguments of the client
        "username": url.username,
        "password": url.password,
        "socket_timeout": REPLY_TIMEOUT_S,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "protocol": 2,  # the same reply shapes on every server version
    }
    if url.tls:
        common |= {"ssl": True, "ssl_ca_certs": ca_path, "ssl_cert_reqs": "required", "ssl_check_hostname": True}
    if url.mode is Mode.SOCKET:
        return Redis(unix_socket_path=url.socket_path, db=url.db, **common)
    if url.mode is Mode.CLUSTER:
        return RedisCluster(startup_nodes=[ClusterNode(host, port) for host, port in url.nodes], **common)
    if url.mode is Mode.SENTINEL:
        sentinels = Sentinel(  # type: ignore[no-untyped-call]  # redis-py leaves its constructor untyped
            list(url.nodes), sentinel_kwargs=_sentinel_arguments(url, common), **common
        )
        primary: Redis = sentinels.master_for(url.service, db=url.db)
        return primary
    host, port = url.nodes[0]
    return Redis(host=host, port=port, db=url.db, **common)


def _sentinel_arguments(url: RedisUrl, common: Mapping[str, object]) -> dict[str, Any]:  # Any: as above
    """Sentinels are asked without user and password: those are the primary's."""
    return {k: v for k, v in common.items() if k not in ("username", "password")}


class Script(NamedTuple):
    """One Lua file of `everstep/journal/lua`."""

    name: str
    text: str
    sha: str

    async def run(self, execute: Execute, keys: list[str], arguments: list[str | bytes | int]) -> Reply:
        """EVALSHA, and EVAL where the server does not know the script yet (it answers before running anything)."""
        try:
            return await execute("EVALSHA", self.sha, len(keys), *keys, *arguments)
        except Exception as e:
            if not is_no_script(e):
                raise
        return await execute("EVAL", self.text, len(keys), *keys, *arguments)


@cache
def script(name: str) -> Script:
    """The script of that name, read once."""
    text = Path(__file__).with_name("lua").joinpath(f"{name}.lua").read_text(encoding="utf-8")
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
