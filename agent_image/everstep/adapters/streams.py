"""The stream objects of openai and anthropic, fed from a step instead of a response.

Of the library's own class, so that its helpers (`.stream()`, `get_final_message()`) take them for theirs.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from everstep.run.streams import END, Channel


class Answered:
    """Stands for the HTTP response behind a stream: what a journal does not know is empty. Closing reads the rest."""

    status_code = 200
    headers: dict[str, str] = {}  # noqa: RUF012  # nobody writes to it
    stream = None

    def __init__(self, channel: Channel | None = None) -> None:
        self._channel = channel

    async def aclose(self) -> None:
        if self._channel is not None:
            await self._channel.drain()

    def close(self) -> None:
        return None


class _AsyncFed:
    _channel: Channel
    response: Answered

    def __aiter__(self) -> "_AsyncFed":
        return self

    async def __anext__(self) -> object:
        chunk = await self._channel.next()
        if chunk is END:
            raise StopAsyncIteration
        return chunk

    async def close(self) -> None:
        """Read the rest of the stream: its final message is journaled whole or not at all."""
        await self.response.aclose()

    async def __aenter__(self) -> "_AsyncFed":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _Fed:
    _iterator: Iterator[object]
    response: Answered

    def __iter__(self) -> "_Fed":
        return self

    def __next__(self) -> object:
        return next(self._iterator)

    def close(self) -> None:
        """Nothing is open."""

    def __enter__(self) -> "_Fed":
        return self

    def __exit__(self, *_: object) -> None:
        return None


def async_stream(kind: type, channel: Channel) -> Any:  # a stream of the library's class
    """An async stream of the library's class."""
    made: Any = object.__new__(
        type(kind.__name__, (_AsyncFed, kind), {"__module__": kind.__module__})
    )  # as what is returned
    made.__dict__.update(_channel=channel, response=Answered(channel), _iterator=made)
    return made


def sync_stream(kind: type, chunks: Sequence[object]) -> Any:  # a stream of the library's class
    """A stream of the library's class over chunks that are there."""
    made: Any = object.__new__(
        type(kind.__name__, (_Fed, kind), {"__module__": kind.__module__})
    )  # as what is returned
    made.__dict__.update(_iterator=iter(chunks), response=Answered())
    return made
