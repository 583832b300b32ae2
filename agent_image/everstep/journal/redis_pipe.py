"""One connection on which appends are sent in the very turn of the event loop they are asked for, and answered in the turn the
reply arrives. Appends of several runs share it: what is sent while others wait for their reply goes out together, and a server
that syncs each write then syncs once for all of them.

redis-py makes the connection (address, TLS, log-in, Sentinel) and says what an error means; only the exchange is ours, since its
own takes six turns of the loop per command. Where redis-py has other insides, or hiredis is missing, there is no pipe and appends
go the ordinary way.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from redis import exceptions as rx
from redis.asyncio import Redis

from everstep.journal import redis_client
from everstep.journal.redis_client import Reply

Answered: TypeAlias = Callable[[Reply], None]
"""Told a reply, or an exception in its place. Called from the event loop; must not raise."""


class Pipe(asyncio.Protocol):
    """An open connection. `send` until `closed`; then whoever needs one opens another."""

    def __init__(self, connection: Any, reader: Any, transport: asyncio.Transport) -> None:  # redis-py's, hiredis's
        self.closed = False
        self._connection = connection
        self._reader = reader
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[float, Answered]] = deque()
        self._unsent: list[bytes] = []
        self._watch: asyncio.TimerHandle | None = None

    @classmethod
    async def open(cls, client: Redis) -> "Pipe | None":
        """None where it cannot be had for good. Raises what redis-py raises when it cannot connect."""
        try:
            import hiredis
        except ImportError:
            return None
        pool: Any = client.connection_pool  # redis-py leaves it untyped, and its connection's insides are looked at
        connection = pool.make_connection()
        await connection.connect()
        try:
            transport = connection._writer.transport
            pipe = cls(connection, hiredis.Reader(replyError=connection._parser.parse_error), transport)
            transport.set_protocol(pipe)
        except AttributeError:
            await connection.disconnect()
            return None
        return pipe

    def send(self, words: tuple[Any, ...], answered: Answered) -> None:  # str, bytes, int
        """Send a command; its reply goes to `answered`. Replies come in the order of the commands."""
        from hiredis import pack_command

        now = self._loop.time()
        if self._waiting:
            if not self._unsent:
                self._loop.call_soon(self._send_rest)
            self._unsent.append(pack_command(words))
        else:
            self._transport.write(pack_command(words))
        self._waiting.append((now, answered))
        if self._watch is None:
            self._watch = self._loop.call_at(now + redis_client.REPLY_TIMEOUT_S, self._look)

    def distrust(self) -> None:
        """Whoever sends next opens another; what is on its way still gets its reply here."""
        self.closed = True

    async def aclose(self) -> None:
        """Close it; a second time does nothing."""
        self._fail(rx.ConnectionError("the connection was closed"))
        await self._connection.disconnect(nowait=True)

    # --- asyncio's side -----------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                if not self._waiting:
                    raise rx.InvalidResponse("a reply that nobody asked for")
                self._waiting.popleft()[1](reply)
        except Exception as e:  # also hiredis's own: what comes on this connection makes no sense any more
            self._fail(rx.ConnectionError(f"the store's reply cannot be read: {e}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(rx.ConnectionError(f"the connection was lost: {exc or 'closed by the server'}"))

    # --- the inside ---------------------------------------------------------------------------------------------

    def _send_rest(self) -> None:
        unsent, self._unsent = self._unsent, []
        self._transport.write(b"".join(unsent))

    def _look(self) -> None:
        """One timer for all that waits; it is armed again while anything does."""
        self._watch = None
        if not self._waiting:
            return
        due = self._waiting[0][0] + redis_client.REPLY_TIMEOUT_S
        if self._loop.time() >= due:
            self._fail(rx.TimeoutError(f"no reply within {redis_client.REPLY_TIMEOUT_S:g} s"))
        else:
            self._watch = self._loop.call_at(due, self._look)

    def _fail(self, error: Exception) -> None:
        """Everybody who waits learns it; whether their command was carried out is unknown."""
        self.closed = True
        if self._watch is not None:
            self._watch.cancel()
        self._transport.abort()
        waiting, self._waiting = self._waiting, deque()
        for _, answered in waiting:
            answered(error)
