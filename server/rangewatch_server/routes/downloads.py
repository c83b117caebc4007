"""Files that are made while they are sent: a few at once, no longer than the client is there, whole or broken off."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import anyio
from fastapi.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from rangewatch_server.core.errors import ApiError, BrokenOff
from rangewatch_server.store.tiles import TileError

logger = logging.getLogger("rangewatch.server")

MAX_DOWNLOADS = 8  # at once: each holds a piece, some 20 MiB, for as long as its client takes to read it
SEND_BYTES = 256 << 10  # handed to the socket at once, which keeps it until the client has read it
STALLED_S = 120.0  # a client that takes none of those for so long has gone, or keeps others from the place
_places = threading.BoundedSemaphore(MAX_DOWNLOADS)


class Download(StreamingResponse):
    """A file that ends when its client has gone. Begins with its first piece read, so that an error of it has a status.

    What fails later breaks the connection off: a file that is cut short is never taken for a whole one.
    """

    def __init__(self, pieces: Iterator[bytes], name: str, media_type: str) -> None:
        headers = {"content-disposition": f'attachment; filename="{name}"', "cache-control": "no-store"}
        super().__init__(_begun(pieces), headers=headers, media_type=media_type)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends it. Raises `ApiError` when too many are sent already, and `BrokenOff` when it cannot be ended."""
        if not _places.acquire(blocking=False):
            raise ApiError(503, "too_many_exports", f"{MAX_DOWNLOADS} exports are under way; try again later", 10)

        async def within_limit(message: Message) -> None:
            with anyio.fail_after(STALLED_S):
                await send(message)

        try:
            await super().__call__(scope, receive, within_limit)
        except TimeoutError:
            self._break_off(f"its client took nothing for {STALLED_S:g} s")
        except (ApiError, TileError) as error:  # the first piece was read before the answer began
            self._break_off(str(error))
        finally:
            _places.release()

    def _break_off(self, why: str) -> None:
        logger.warning("a download was broken off: %s", why)
        raise BrokenOff(why)


def cut_up(data: bytes) -> Iterator[bytes]:
    """What is handed to the socket at once. Of no data a piece, too: there the server sees that a client has gone."""
    for low in range(0, max(len(data), 1), SEND_BYTES):
        yield data[low : low + SEND_BYTES]


def _begun(pieces: Iterator[bytes]) -> Iterator[bytes]:
    first = next(pieces, b"")

    def rest() -> Iterator[bytes]:
        yield first
        yield from pieces

    return rest()
