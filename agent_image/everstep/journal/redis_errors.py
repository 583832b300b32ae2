"""What Redis and its client raise, in our words: JournalUnavailable (repeat the same call) or BadStore (change a setting).

Errors come from redis-py where it is in use, else from the pipe, which does without it (see `redis_pipe`). Nothing is imported
to judge one: whoever meets an error may be a process that can open no file any more, and must still say what became of a write.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from everstep.errors import BadStore, JournalUnavailable

_PASSING = {
    "OOM": "the store's memory is full (maxmemory reached); make room or raise maxmemory",
    "MISCONF": "the store cannot save to its disk and refuses writes; look at its log and its volume",
    "NOREPLICAS": "too few replicas are connected and the store refuses writes",
    "READONLY": "the server became a read-only replica",
    "LOADING": "the store is loading its data after a restart",
    "MASTERDOWN": "the store has lost its primary",
    "CLUSTERDOWN": "the cluster is down",
    "TRYAGAIN": "the cluster is moving this slot",
    "BUSY": "the store is busy running a script",
}
"""First words of server errors that go away."""

_STRIPPED = {"OutOfMemoryError": "OOM", "BusyLoadingError": "LOADING", "ReadOnlyError": "READONLY"}
"""redis-py's errors whose text lost its first word."""

_LASTING = {
    "NOAUTH": "the store wants a password: put user and password in its URL",
    "WRONGPASS": "the store refused user or password",
    "NOPERM": "the store's ACL user lacks a right; it needs ~es:* and +@read +@write +@scripting +@connection +info",
    "DENIED": "the store runs in protected mode: give it a password or bind it to an inner address",
    "MOVED": "this server is part of a cluster: write redis+cluster://",
    "ASK": "this server is part of a cluster: write redis+cluster://",
    "WRONGTYPE": "a key of the journal holds another type: something else writes to Everstep's keys",
}
_LASTING_TEXTS = {
    "The user executing the script can't": _LASTING["NOPERM"],
    "ACL failure in script": _LASTING["NOPERM"],
    "DB index is out of range": "the database number in the store's URL does not exist there",
    "SELECT is not allowed in cluster mode": "this server is part of a cluster: write redis+cluster://",
    "Cluster mode is not enabled": "this server is no cluster: write redis:// instead of redis+cluster://",
    "cluster support disabled": "this server is no cluster: write redis:// instead of redis+cluster://",
    "unknown command": "the server lacks a command; Redis 7.0 or Valkey 8 is the least",
    "invalid password": "the store refused user or password",
    "AUTH <password> called without any password": "the store has no password set, but its URL gives one",
}


class Replied(Exception):
    """An error that a server replied on a pipe, in its own words."""


class NoScript(Replied):
    """It does not know a script yet."""


def reply_error(text: str) -> Exception:
    """The exception for an error that a server replied."""
    return NoScript(text) if text.startswith("NOSCRIPT") else Replied(text)


def is_no_script(error: Exception) -> bool:
    """The server does not know the script: send it whole."""
    rx = _redis_py()
    return isinstance(error, NoScript) or (rx is not None and isinstance(error, rx.NoScriptError))


def is_of_client(error: Exception) -> bool:
    """Whether `wrap` puts this in our words: what a call of the client may raise."""
    rx = _redis_py()
    return isinstance(error, OSError | Replied) or (
        rx is not None and isinstance(error, rx.RedisError | rx.RedisClusterException)
    )


def _redis_py() -> ModuleType | None:
    """Its exceptions, if it is in use; none of them is raised otherwise."""
    return sys.modules.get("redis.exceptions")


@contextmanager
def translated(shown: str) -> Iterator[None]:
    """Wrap calls to the client; `shown` names the store in messages."""
    try:
        yield
    except Exception as e:
        if not is_of_client(e):
            raise
        raise wrap(e, shown) from e


def wrap(error: BaseException, shown: str) -> BadStore | JournalUnavailable:
    """The error of this package for one of the client's."""
    rx = _redis_py()
    if rx and isinstance(error, rx.RedisClusterException) and isinstance(error.__cause__, rx.RedisError):
        return wrap(error.__cause__, shown)  # why the last of the nodes could not be reached
    text = str(error)
    word = text.partition(" ")[0].strip(":-")
    tls = _tls_cause(error)
    if tls is not None:
        return BadStore(f"{shown}: the server's certificate is not trusted: {tls}; give the CA that signed it")
    lasting = _lasting(error, word, text)
    if lasting is not None:
        return BadStore(f"{shown}: {lasting} ({text})")
    return JournalUnavailable(f"{shown}: {_passing(error, word, text)}")


def _lasting(error: BaseException, word: str, text: str) -> str | None:
    rx = _redis_py()
    for known, cure in _LASTING_TEXTS.items():
        if known in text:
            return cure
    if rx is None or isinstance(error, Replied):
        return _LASTING.get(word)
    if isinstance(error, rx.NoPermissionError):  # the client strips the first word of errors it knows
        return _LASTING["NOPERM"]
    if isinstance(error, rx.AuthenticationError | rx.AuthorizationError):
        return _LASTING["NOAUTH" if "NOAUTH" in text or "required" in text else "WRONGPASS"]
    if isinstance(error, rx.AskError):  # also MOVED; a cluster's client follows it and never shows it
        return "this server is part of a cluster: write redis+cluster://"
    return _LASTING.get(word)


def _passing(error: BaseException, word: str, text: str) -> str:
    rx = _redis_py()
    if isinstance(error, TimeoutError) or (rx and isinstance(error, rx.TimeoutError)):
        return f"no answer in time ({text})"
    for name, known in _STRIPPED.items():
        if rx and isinstance(error, getattr(rx, name)):
            word = known
    return f"{_PASSING[word]} ({text})" if word in _PASSING else text or type(error).__name__


def _tls_cause(error: BaseException | None) -> str | None:
    ssl = sys.modules.get("ssl")
    while ssl is not None and error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return str(error)
        error = error.__cause__ or error.__context__
    return None
