"""A TCP proxy on the loopback interface that loses what a network loses: replies, requests, connections."""

import asyncio
import enum
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


class Lose(enum.Enum):
    """What becomes of the next request."""

    NOTHING = enum.auto()
    REQUEST = enum.auto()
    """Cut before the server sees the end of it."""
    REPLY = enum.auto()
    """The server runs it; the connection is cut before the client sees the reply."""


class Proxy:
    """Stands between a client and a server's Unix socket. `lose` decides about the next chunk that the client sends."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.lose = Lose.NOTHING
        self.lost = 0
        """How often something was lost."""
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_unix_connection(str(self.target), limit=1 << 22)
        try:
            while chunk := await reader.read(1 << 22):
                lose, self.lose = self.lose, Lose.NOTHING
                if lose is Lose.REQUEST:
                    self.lost += 1
                    up_writer.write(chunk[: len(chunk) // 2])
                    await up_writer.drain()
                    return
                up_writer.write(chunk)
                await up_writer.drain()
                reply = await up_reader.read(1 << 22)
                if lose is Lose.REPLY:
                    self.lost += 1
                    return
                writer.write(reply)
                await writer.drain()
        except ConnectionError:
            return
        finally:
            up_writer.close()
            writer.close()


@asynccontextmanager
async def proxied(target: Path) -> AsyncIterator[Proxy]:
    """A proxy to a server's socket, gone with the block."""
    proxy = Proxy(target)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=1 << 22)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
