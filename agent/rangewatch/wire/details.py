"""Free details (of an event, of samples) in bounded memory: what they hold is counted before any object is made.

An empty list is one byte of msgpack and 64 of memory, and a few hundred bytes of zstd are millions of them: measured,
a body of 453 bytes took 714 MiB. Depth is bounded far below the interpreter's own limit, since who reads them later
may have less of the stack left than who took them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rangewatch.wire.errors import WireError

MAX_VALUES = 200_000  # of all details in one message, keys counted too: 20 MiB of objects
MAX_DEPTH = 32

_DECODER = msgspec.msgpack.Decoder(dict[str, Any])
# First byte -> bytes that follow it: of a scalar all of them, of a string those of its length. Lists and maps: 0.
_FOLLOWING = {
    0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8,
    0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17, 0xD9: 1, 0xDA: 2, 0xDB: 4,
}  # fmt: skip
_STRINGS = (0xC4, 0xC5, 0xC6, 0xD9, 0xDA, 0xDB)
_EXTENSIONS = (0xC7, 0xC8, 0xC9)  # a type follows the length
_CONTAINERS = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}  # bytes of the length, values an item


class Details:
    """Decodes the details of one message, in whose header they were found to be whole msgpack values."""

    def __init__(self) -> None:
        self.values_left = MAX_VALUES

    def decode(self, packed: msgspec.Raw) -> dict[str, Any]:
        """The map in `packed`. Raises `WireError`: `too_large`, or `bad_header` for what is no map or too deep."""
        self._count(memoryview(packed))
        try:
            return _DECODER.decode(packed)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise WireError("bad_header", f"details do not decode: {str(error)[:200]}") from None

    def _count(self, data: memoryview) -> None:
        """Take the values of `data` from those that are left."""
        at, waiting = 0, [1]  # values still to come at each depth
        while waiting:
            if not waiting[-1]:
                waiting.pop()
                continue
            waiting[-1] -= 1
            self.values_left -= 1
            if self.values_left < 0:
                raise WireError("too_large", f"details hold more than {MAX_VALUES} values")
            at, inside = _after(data, at)
            if inside:
                waiting.append(inside)
                if len(waiting) > MAX_DEPTH + 1:
                    raise WireError("bad_header", f"details are nested deeper than {MAX_DEPTH}")


def _after(data: memoryview, at: int) -> tuple[int, int]:
    """Where the value at `at` ends, and of a list or map where its head does, with how many values it holds."""
    first = data[at]
    at += 1
    if first < 0x80 or first >= 0xE0:  # a small number
        return at, 0
    if first < 0xA0:
        return at, (first & 0x0F) * (2 if first < 0x90 else 1)
    if first < 0xC0:
        return at + (first & 0x1F), 0
    if first in _CONTAINERS:
        size, each = _CONTAINERS[first]
        return at + size, int.from_bytes(data[at : at + size], "big") * each
    size = _FOLLOWING.get(first, 0)
    if first in _STRINGS or first in _EXTENSIONS:
        return at + size + int.from_bytes(data[at : at + size], "big") + (first in _EXTENSIONS), 0
    return at + size, 0
