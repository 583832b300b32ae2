"""One connection on which appends are sent in the very turn of the event loop they are asked for, and answered in the turn the
reply arrives. Appends of several runs share it: what is sent while others wait for their reply goes out together, and a server
that syncs each write then syncs once for all of them.

Only the exchange is ours, since redis-py's own takes six turns of the loop per command. To one
server without TLS the connection is ours, too (`connect`): an attempt then reads, claims and appends without redis-py, whose
import takes 60 ms of every restart. For TLS and Sentinel redis-py makes it (`open`). Where redis-py has other insides, or hiredis
is missing, there is no pipe and appends go the ordinary way.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from everstep.journal import redis_client
from everstep.journal.redis_client import Reply
from everstep.journal.redis_errors import NoScript, reply_error
from everstep.journal.redis_url import Mode, RedisUrl

if TYPE_CHECKING:
    from redis.asyncio import Redis

Answered: TypeAlias = Callable[[Reply], None]
"""Told a reply, or an exception in its place. Called from the event loop; must not raise."""


class Pipe(asyncio.Protocol):
    """An open connection. `send` until `closed`; then whoever needs one opens another."""

    def __init__(self, reader: Any) -> None:  # hiredis's
        self.closed = False
        self._connection: Any = None
        """redis-py's, where that made it."""
        self._reader = reader
        self._transport: asyncio.Transport
        self._loop = asyncio.get_running_loop()
        self._heard_s = 0.0
        """When anything came last."""
        self._waiting: deque[tuple[float, Answered]] = deque()
        self._unsent: list[bytes] = []
        self._watch: asyncio.TimerHandle | None = None

    @classmethod
    async def connect(cls, url: RedisUrl) -> "Pipe | None":
        """To one server, without redis-py and without TLS. None without hiredis. Raises OSError (TimeoutError too) where there is
        no connection, and Replied where the server refuses it."""
        try:
            import hiredis
        except ImportError:
            return None
        loop = asyncio.get_running_loop()

        def make() -> Pipe:
            return cls(hiredis.Reader(replyError=reply_error))

        async with asyncio.timeout(redis_client.CONNECT_TIMEOUT_S):
            if url.mode is Mode.SOCKET:
                _, pipe = await loop.create_unix_connection(make, url.socket_path)
            else:
                transport, pipe = await loop.create_connection(make, *url.nodes[0])
                transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # as redis-py
        try:
            if url.username or url.password is not None:
                await pipe.ask("AUTH", *filter(None, [url.username]), url.password or "")
            if url.db:
                await pipe.ask("SELECT", url.db)
        except BaseException:
            await pipe.aclose()
            raise
        return pipe

    @classmethod
    async def open(cls, client: "Redis") -> "Pipe | None":
        """By redis-py. None where it cannot be had for good. Raises what redis-py raises when it cannot connect."""
        try:
            import hiredis
        except ImportError:
            return None
        pool: Any = client.connection_pool  # redis-py leaves it untyped, and its connection's insides are looked at
        connection = pool.make_connection()
        await connection.connect()
        try:
            transport = connection._writer.transport
            pipe = cls(hiredis.Reader(replyError=reply_error))
            pipe._connection, pipe._transport = connection, transport
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

    async def ask(self, *words: Any) -> Reply:  # as `send`
        """Send a command and wait for its reply. Raises OSError, or Replied."""
        asked: asyncio.Future[Reply] = self._loop.create_future()

        def answered(given: Reply) -> None:
            if not asked.done():
                asked.set_result(given)

        self.send(words, answered)
        reply = await asked
        if isinstance(reply, Exception):
            if not isinstance(reply, NoScript):
                self.distrust()  # read-only, failed over, out of memory: find the way to the primary anew
            raise reply
        return reply

    def distrust(self) -> None:
        """Whoever sends next opens another. What is on its way still gets its reply here; then this one closes itself."""
        self.closed = True
        if not self.busy:
            self._fail(ConnectionError, "the connection was closed")

    @property
    def busy(self) -> bool:
        """Something is on its way."""
        return bool(self._waiting)

    async def aclose(self) -> None:
        """Close it now; a second time does nothing."""
        self._fail(ConnectionError, "the connection was closed")
        if self._connection is not None:
            await self._connection.disconnect(nowait=True)

    # --- asyncio's side -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        self._heard_s = self._loop.time()
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                if not self._waiting:
                    raise ValueError("a reply that nobody asked for")
                self._waiting.popleft()[1](reply)
            if self.closed:
                self.distrust()
        except Exception as e:  # also hiredis's own: what comes on this connection makes no sense any more
            self._fail(ConnectionError, f"the store's reply cannot be read: {e}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(ConnectionError, f"the connection was lost: {exc or 'closed by the server'}")

    # --- the inside ---------------------------------------------------------------------------------------------

    def _send_rest(self) -> None:
        unsent, self._unsent = self._unsent, []
        self._transport.write(b"".join(unsent))

    def _look(self) -> None:
        """One timer for all that waits; it is armed again while anything does."""
        self._watch = None
        if not self._waiting:
            return
        due = max(self._waiting[0][0], self._heard_s) + redis_client.REPLY_TIMEOUT_S  # a long page comes in many parts
        if self._loop.time() >= due:
            self._fail(TimeoutError, f"no reply within {redis_client.REPLY_TIMEOUT_S:g} s")
        else:
            self._watch = self._loop.call_at(due, self._look)

    def _fail(self, kind: type[OSError], why: str) -> None:
        """Everybody who waits learns it; whether their command was carried out is unknown."""
        self.closed = True
        if self._watch is not None:
            self._watch.cancel()
        self._transport.abort()
        waiting, self._waiting = self._waiting, deque()
        for _, answered in waiting:
            answered(kind(why))
