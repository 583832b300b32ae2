"""From a store's URL to a store. What each URL needs is imported only when it is opened.

sqlite:///absolute/path                          one file on this machine (local mode)
redis://[user:password@]host[:6379][/db]         one Redis or Valkey server
rediss://…                                       the same over TLS
redis+cluster://…  rediss+cluster://…            Cluster mode; the host is any of its nodes
redis+sentinel://[user:password@]h1[:26379],h2…/service[/db]    the primary that the sentinels name; rediss+sentinel:// for TLS
unix:///path/to/redis.sock[?db=n]                a server's own socket
memory://                                        gone with the process; for tests
"""

from urllib.parse import unquote, urlsplit

from everstep.errors import BadStore
from everstep.journal.store import Store

REDIS_SCHEMES = (
    "redis",
    "rediss",
    "unix",
    "redis+cluster",
    "rediss+cluster",
    "redis+sentinel",
    "rediss+sentinel",
)


def open_store(url: str, *, installation: str, ca_path: str | None = None) -> Store:
    """The store behind `url`; nothing is connected yet. `installation` prefixes the keys of a shared Redis. `ca_path` is a PEM
    bundle that TLS servers are checked against (absent = the system's).

    Raises BadStore naming what is wrong with the URL; its password is never in the message."""
    scheme = url.split("://", 1)[0].lower() if "://" in url else ""
    if scheme == "sqlite":
        from everstep.journal.sqlite_store import SqliteStore

        return SqliteStore(_sqlite_path(url))
    if scheme == "memory":
        from everstep.journal.memory import MemoryStore

        return MemoryStore()
    if scheme in REDIS_SCHEMES:
        from everstep.journal.redis_store import RedisStore

        return RedisStore.from_url(url, installation=installation, ca_path=ca_path)
    known = ", ".join(f"{s}://" for s in ("sqlite", *REDIS_SCHEMES))
    shown = f"the scheme {scheme}://" if scheme else "a URL without a scheme"
    raise BadStore(f"{shown} names no journal store; write one of {known}")


def _sqlite_path(url: str) -> str:
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc:
        raise BadStore(
            f"{url!r}: write sqlite:/// and an absolute path, e.g. sqlite:////srv/journal.db is /srv/journal.db"
        )
    if path.startswith("//"):
        path = path[1:]
    if path in ("", "/") or path.endswith("/"):
        raise BadStore(f"{url!r} names no file; write e.g. sqlite:///home/jane/.everstep/journal.db")
    return path
