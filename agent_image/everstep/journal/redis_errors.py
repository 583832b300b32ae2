"""What Redis and its client raise, in our words: JournalUnavailable (repeat the same call) or BadStore (change a setting).

redis-py is imported by what first meets an error: an attempt that meets none does without it (see `redis_pipe`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from everstep.errors import BadStore, JournalUnavailable

if TYPE_CHECKING:
    import ssl

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

_LASTING = {
    "NOAUTH": "the store wants a password: put user and password in its URL",
    "WRONGPASS": "the store refused user or password",
    "NOPERM": "the store's ACL user lacks a right; it needs ~es:* and +@read +@write +@scripting +@connection +info",
    "DENIED": "the store runs in protected mode: give it a password or bind it to an inner address",
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


class NoScript(Exception):
    """The server does not know a script yet, said on a pipe: redis-py's NoScriptError without its import."""


def reply_error(text: str) -> Exception:
    """The exception for an error that a server replied, as redis-py sorts them."""
    if text.startswith("NOSCRIPT"):
        return NoScript(text)
    from redis.asyncio.connection import DefaultParser

    error: Exception = DefaultParser.parse_error(text)  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
    return error


def is_no_script(error: Exception) -> bool:
    """The server does not know the script: send it whole."""
    if isinstance(error, NoScript):
        return True
    from redis.exceptions import NoScriptError

    return isinstance(error, NoScriptError)


def is_of_client(error: Exception) -> bool:
    """Whether `wrap` puts this in our words: what a call of the client may raise."""
    if isinstance(error, OSError):
        return True
    from redis import exceptions as rx

    return isinstance(error, rx.RedisError | rx.RedisClusterException)


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
    from redis import exceptions as rx

    if isinstance(error, rx.RedisClusterException) and isinstance(error.__cause__, rx.RedisError):
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
    from redis import exceptions as rx

    for known, cure in _LASTING_TEXTS.items():
        if known in text:
            return cure
    if isinstance(error, rx.NoPermissionError):  # the client strips the first word of errors it knows
        return _LASTING["NOPERM"]
    if isinstance(error, rx.AuthenticationError | rx.AuthorizationError):
        return _LASTING["NOAUTH" if "NOAUTH" in text or "required" in text else "WRONGPASS"]
    if isinstance(error, rx.AskError):  # also MOVED; a cluster's client follows it and never shows it
        return "this server is part of a cluster: write redis+cluster://"
    return _LASTING.get(word)


def _passing(error: BaseException, word: str, text: str) -> str:
    from redis import exceptions as rx

    if word in _PASSING:
        return f"{_PASSING[word]} ({text})"
    if isinstance(error, rx.OutOfMemoryError):
        return f"{_PASSING['OOM']} ({text})"
    if isinstance(error, rx.BusyLoadingError):
        return f"{_PASSING['LOADING']} ({text})"
    if isinstance(error, rx.ReadOnlyError):
        return f"{_PASSING['READONLY']} ({text})"
    if isinstance(error, rx.TimeoutError | TimeoutError):
        return f"no answer in time ({text})"
    return text or type(error).__name__


def _tls_cause(error: BaseException | None) -> "ssl.SSLCertVerificationError | None":
    import ssl

    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return error
        error = error.__cause__ or error.__context__
    return None
