"""Sequences that a batch's `settled` has passed and that never came, as ranges. Pure.

They were dropped by their agent, as it says; or somebody else has sent a `settled` of 2^62 in its name. So one that
comes after all is taken, and only what was stored is a duplicate.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec

Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Range = tuple[Number, Number]
"""First and last."""

MOST = 64
"""Ranges of one process: beyond, the narrowest count as stored, and are not taken any more."""


def decoded(text: str) -> list[Range]:
    """From its column. Raises `msgspec.MsgspecError` and `ValueError` for what `encoded` would not write."""
    ranges = msgspec.json.decode(text, type=list[Range])
    ends = [each for range_ in ranges for each in range_]
    if ends != sorted(ends) or len(ranges) > MOST:
        raise ValueError("skipped sequences out of order, or too many")
    return ranges


def encoded(ranges: Sequence[Range]) -> str:
    """As its column holds it."""
    return msgspec.json.encode(ranges).decode()


def holds(ranges: Sequence[Range], sequence: int) -> bool:
    """Whether the sequence is one of them."""
    return any(first <= sequence <= last for first, last in ranges)


def passed(ranges: Sequence[Range], start: int, stop: int, arrived: Iterable[int]) -> list[Range]:
    """With the sequences [start, stop) but those that have `arrived`."""
    inside = sorted(each for each in arrived if start <= each < stop)
    edges = zip([start, *(each + 1 for each in inside)], [*inside, stop], strict=True)
    found = [*ranges, *((low, high - 1) for low, high in edges if low < high)]
    return sorted(sorted(found, key=lambda each: each[1] - each[0])[-MOST:])


def without(ranges: Sequence[Range], sequence: int) -> list[Range]:
    """Without one that has come after all."""
    left: list[Range] = []
    for first, last in ranges:
        if first <= sequence <= last:
            left += [each for each in ((first, sequence - 1), (sequence + 1, last)) if each[0] <= each[1]]
        else:
            left.append((first, last))
    return left[-MOST:]


def stored_up_to(ranges: Sequence[Range], contiguous: int, sequence: int) -> int:
    """The last sequence that is stored or was given up, of those without one from `sequence` on that may yet come."""
    at = bisect_left(ranges, (sequence, sequence))
    return ranges[at][0] - 1 if at < len(ranges) else contiguous
