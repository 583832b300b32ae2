"""URLs of stores: what each means, and messages that name what is wrong and never show a password."""

import ssl

import pytest
from redis import exceptions as rx

from everstep.errors import BadStore, JournalUnavailable
from everstep.journal.memory import MemoryStore
from everstep.journal.open import open_store
from everstep.journal.redis_errors import reply_error, translated, wrap
from everstep.journal.redis_store import RedisStore
from everstep.journal.redis_url import Mode, RedisUrl, parse_redis_url
from everstep.journal.sqlite_store import SqliteStore

SINGLE, CLUSTER, SENTINEL, SOCKET = Mode.SINGLE, Mode.CLUSTER, Mode.SENTINEL, Mode.SOCKET


@pytest.mark.parametrize(
    ("url", "parsed"),
    [
        ("redis://h", RedisUrl(SINGLE, False, (("h", 6379),), None, None, 0)),
        ("redis://h:7000/3", RedisUrl(SINGLE, False, (("h", 7000),), None, None, 3)),
        ("REDISS://u:p%40%2F@h/", RedisUrl(SINGLE, True, (("h", 6379),), "u", "p@/", 0)),
        ("redis://:p@10.0.0.1", RedisUrl(SINGLE, False, (("10.0.0.1", 6379),), None, "p", 0)),
        ("redis://[::1]:7000", RedisUrl(SINGLE, False, (("::1", 7000),), None, None, 0)),
        ("redis://[fe80::2]/1", RedisUrl(SINGLE, False, (("fe80::2", 6379),), None, None, 1)),
        ("redis://u:a@b:c@h", RedisUrl(SINGLE, False, (("h", 6379),), "u", "a@b:c", 0)),
        ("redis+cluster://a:1,b:2", RedisUrl(CLUSTER, False, (("a", 1), ("b", 2)), None, None, 0)),
        ("rediss+cluster://u:p@a", RedisUrl(CLUSTER, True, (("a", 6379),), "u", "p", 0)),
        ("redis+sentinel://a,b:2/main", RedisUrl(SENTINEL, False, (("a", 26379), ("b", 2)), None, None, 0, "main")),
        ("rediss+sentinel://u:p@a/main/4", RedisUrl(SENTINEL, True, (("a", 26379),), "u", "p", 4, "main")),
        ("unix:///run/s?db=2", RedisUrl(SOCKET, False, (), None, None, 2, socket_path="/run/s")),
        ("unix://u:p@/run/s", RedisUrl(SOCKET, False, (), "u", "p", 0, socket_path="/run/s")),
    ],
)
def test_redis_urls(url: str, parsed: RedisUrl) -> None:
    assert parse_redis_url(url) == parsed
    assert isinstance(open_store(url, installation="i"), RedisStore)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "without a scheme"),
        ("h:6379", "without a scheme"),
        ("postgres://h/db", "postgres:// names no journal store; write one of sqlite://"),
        ("redis://", "no host"),
        ("redis://:6379", "no host"),
        ("redis://s3cret:s3cret@", "no host"),
        ("redis://s3cret@h", "user but no password"),
        ("redis://u:s3cret@h:port", "port 'port' is not a number between 1 and 65535"),
        ("redis://u:s3cret@h:70000", "port '70000'"),
        ("redis://u:s3cret@h/one", "database 'one' is not a number"),
        ("redis://u:s3cret@h?password=s3cret", "unknown options password"),
        ("redis://a,b", "several hosts need redis+cluster:// or redis+sentinel://"),
        ("redis+cluster://u:s3cret@h/1", "a cluster has database 0 only"),
        ("redis+sentinel://u:s3cret@a,b", "name the service"),
        ("unix://s", "absolute path"),
        ("sqlite://journal.db", "write sqlite:/// and an absolute path"),
        ("sqlite:///", "names no file"),
        ("sqlite:///srv/", "names no file"),
    ],
)
def test_wrong_urls(url: str, says: str) -> None:
    with pytest.raises(BadStore) as refused:
        open_store(url, installation="i")
    assert says in str(refused.value)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///home/jane/j.db", "/home/jane/j.db"),
        ("sqlite:////home/jane/j.db", "/home/jane/j.db"),
        ("sqlite:///home/with%20space/j.db", "/home/with space/j.db"),
    ],
)
def test_files(url: str, path: str) -> None:
    store = open_store(url, installation="i")
    assert isinstance(store, SqliteStore)
    assert str(store.path) == path


def test_memory() -> None:
    assert isinstance(open_store("memory://", installation="i"), MemoryStore)


def test_no_password_in_what_names_the_store() -> None:
    store = open_store("redis://u:s3cret@h:7000", installation="i")
    assert isinstance(store, RedisStore)
    assert store.shown == "h:7000"


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (rx.ConnectionError("Error 111 connecting"), JournalUnavailable, "Error 111"),
        (rx.TimeoutError("Timeout reading"), JournalUnavailable, "no answer in time"),
        (rx.BusyLoadingError("Redis is loading the dataset in memory"), JournalUnavailable, "loading its data"),
        (rx.ReadOnlyError("You can't write against a read only replica."), JournalUnavailable, "read-only replica"),
        (
            rx.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
            JournalUnavailable,
            "memory is full",
        ),
        (rx.ResponseError("MISCONF Redis is configured to save"), JournalUnavailable, "cannot save to its disk"),
        (rx.ResponseError("NOREPLICAS Not enough good replicas"), JournalUnavailable, "too few replicas"),
        (rx.MasterDownError("MASTERDOWN Link with MASTER is down"), JournalUnavailable, ""),
        (rx.ClusterDownError("CLUSTERDOWN The cluster is down"), JournalUnavailable, "cluster is down"),
        (rx.MaxConnectionsError("Too many connections"), JournalUnavailable, "Too many"),
        (rx.ResponseError("ERR something new"), JournalUnavailable, "something new"),
        (ConnectionResetError(104, "reset"), JournalUnavailable, "reset"),
        (TimeoutError("no reply within 5 s"), JournalUnavailable, "no answer in time"),
        (reply_error("OOM command not allowed when used memory > 'maxmemory'."), JournalUnavailable, "memory is full"),
        (reply_error("READONLY You can't write against a read only replica."), JournalUnavailable, "read-only replica"),
        (reply_error("LOADING Redis is loading the dataset in memory"), JournalUnavailable, "loading its data"),
        (reply_error("ERR max number of clients reached"), JournalUnavailable, "max number of clients"),
        (reply_error("ERR something new"), JournalUnavailable, "something new"),
        (reply_error("NOAUTH Authentication required."), BadStore, "put user and password in its URL"),
        (reply_error("WRONGPASS invalid username-password pair"), BadStore, "refused user or password"),
        (reply_error("NOPERM this user has no permissions to run the 'xadd' command"), BadStore, "lacks a right"),
        (reply_error("DENIED Redis is running in protected mode"), BadStore, "protected mode"),
        (reply_error("MOVED 1 127.0.0.1:7000"), BadStore, "redis+cluster://"),
        (rx.AuthenticationError("WRONGPASS invalid username-password pair"), BadStore, "refused user or password"),
        (rx.AuthenticationError("Authentication required."), BadStore, "put user and password in its URL"),
        (rx.NoPermissionError("this user has no permissions to run 'xadd'"), BadStore, "lacks a right"),
        (rx.ResponseError("WRONGTYPE Operation against a key"), BadStore, "something else writes"),
        (rx.ResponseError("DB index is out of range"), BadStore, "database number"),
        (rx.ResponseError("unknown command 'XADD'"), BadStore, "Redis 7.0 or Valkey 8"),
        (rx.MovedError("1 127.0.0.1:7000"), BadStore, "redis+cluster://"),
        (rx.RedisClusterException("Cluster mode is not enabled on this node"), BadStore, "write redis:// instead"),
    ],
)
def test_errors_of_the_client_in_our_words(error: Exception, kind: type[Exception], says: str) -> None:
    """E26, E28: what passes is unavailable, what stays needs a person; each names the store."""
    wrapped = wrap(error, "h:1")
    assert type(wrapped) is kind
    assert str(wrapped).startswith("h:1: ")
    assert says in str(wrapped)
    with pytest.raises(kind) as raised, translated("h:1"):
        raise error
    assert raised.value.__cause__ is error


def test_an_untrusted_certificate_is_no_outage() -> None:
    """Found in the chain of causes: the client reports it as a failed connection."""
    error = rx.ConnectionError("Error 1 connecting")
    error.__cause__ = ssl.SSLCertVerificationError("self-signed certificate")
    assert isinstance(wrap(error, "h:1"), BadStore)


def test_a_cluster_that_refuses_the_password_is_no_outage() -> None:
    """The cluster's client wraps why its last node could not be reached."""
    error = rx.RedisClusterException("Redis Cluster cannot be connected.")
    assert isinstance(wrap(error, "h:1"), JournalUnavailable)
    error.__cause__ = rx.AuthenticationError("WRONGPASS invalid")
    assert isinstance(wrap(error, "h:1"), BadStore)


def test_other_errors_pass() -> None:
    with pytest.raises(KeyError), translated("h:1"):
        raise KeyError("a bug stays a bug")
