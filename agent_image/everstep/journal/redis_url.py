"""Redis URLs, parsed to plain data; no client is made here. The grammar stands in `everstep.journal.open`."""

import enum
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from everstep.errors import BadStore

REDIS_PORT = 6379
SENTINEL_PORT = 26379


class Mode(enum.StrEnum):
    """How a Redis is reached."""

    SINGLE = "single"
    SOCKET = "socket"
    CLUSTER = "cluster"
    SENTINEL = "sentinel"


class RedisUrl(NamedTuple):
    """Where a journal's Redis is and how to log in. Never printed whole: it holds a password."""

    mode: Mode
    tls: bool
    nodes: tuple[tuple[str, int], ...]
    """Server, any cluster nodes, or the sentinels."""
    username: str | None
    password: str | None
    db: int
    service: str = ""
    """Name of the primary (sentinel)."""
    socket_path: str = ""

    @property
    def shown(self) -> str:
        """For messages: no user, no password."""
        if self.mode is Mode.SOCKET:
            return f"unix://{self.socket_path}"
        hosts = ",".join(f"{host}:{port}" for host, port in self.nodes)
        return f"{hosts}/{self.service}" if self.service else hosts


def parse_redis_url(url: str) -> RedisUrl:
    """Raises BadStore naming the part that is wrong, without the password."""
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    if scheme == "unix":
        return _socket(url)
    tls = scheme.startswith("rediss")
    kind = scheme.partition("+")[2]
    credentials, at, place = rest.rpartition("@")
    place, _, query = place.partition("?")
    hosts, _, path = place.partition("/")
    if query:
        raise BadStore(f"{scheme}://{hosts}: unknown options {', '.join(parse_qs(query)) or '?'}; write none")
    username, password = _credentials(credentials) if at else (None, None)
    nodes = tuple(_node(n, SENTINEL_PORT if kind == "sentinel" else REDIS_PORT) for n in hosts.split(","))
    service = ""
    if kind == "sentinel":
        service, _, path = path.partition("/")
        if not service:
            raise BadStore(f"{scheme}://{hosts}: name the service, e.g. {scheme}://{hosts}/mymaster")
    elif len(nodes) > 1 and kind != "cluster":
        raise BadStore(f"{scheme}://{hosts}: several hosts need {scheme}+cluster:// or {scheme}+sentinel://")
    db = _db(path)
    if kind == "cluster" and db != 0:
        raise BadStore(f"{scheme}://{hosts}/{db}: a cluster has database 0 only")
    mode = {"": Mode.SINGLE, "cluster": Mode.CLUSTER, "sentinel": Mode.SENTINEL}[kind]
    return RedisUrl(mode, tls, nodes, username, password, db, service)


def _socket(url: str) -> RedisUrl:
    parts = urlsplit(url)
    if not parts.path.startswith("/"):
        raise BadStore("unix://: write the absolute path of the socket, e.g. unix:///run/redis/redis.sock")
    db = _db(parse_qs(parts.query).get("db", [""])[0])
    username = unquote(parts.username) if parts.username else None
    password = unquote(parts.password) if parts.password else None
    return RedisUrl(Mode.SOCKET, False, (), username, password, db, socket_path=unquote(parts.path))


def _credentials(text: str) -> tuple[str | None, str | None]:
    user, colon, password = text.partition(":")
    if not colon:
        raise BadStore("the store's URL has a user but no password: write user:password@host, or :password@host")
    return unquote(user) or None, unquote(password) or None


def _node(text: str, default_port: int) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if text.startswith("["):  # IPv6
        host, _, rest = text[1:].partition("]")
        colon, port = rest[:1], rest[1:]
    if not colon:
        host, port = (host if text.startswith("[") else text), str(default_port)
    if not host:
        raise BadStore("the store's URL has no host, e.g. redis://redis.example.org:6379/0")
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise BadStore(f"{host}: port {port!r} is not a number between 1 and 65535")
    return host, int(port)


def _db(text: str) -> int:
    if not text:
        return 0
    if not text.isdigit():
        raise BadStore(f"database {text!r} is not a number; write e.g. /0 at the end of the store's URL")
    return int(text)
