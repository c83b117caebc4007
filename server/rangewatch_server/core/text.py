"""Ranks, sizes and durations as text, the same in every sentence of the server."""

from __future__ import annotations

import math
from collections.abc import Iterable

_SHOWN = 8


def ranks_text(ranks: Iterable[int]) -> str:
    """ "rank 3", "ranks 0, 1 and 3", "ranks 0-62 and 64", "ranks 0, 2, 4 and 12 more"; "no rank"."""
    numbers = sorted(ranks)
    if not numbers:
        return "no rank"
    spans = _spans(numbers)
    parts = [_shown(span) for span in spans[:_SHOWN]]
    if left := sum(map(len, spans[_SHOWN:])):
        parts.append(f"{left} more")
    return f"rank{'s' if len(numbers) > 1 else ''} {' and '.join(filter(None, (', '.join(parts[:-1]), parts[-1])))}"


def _spans(numbers: list[int]) -> list[list[int]]:
    """Those that follow one another together, where they are three or more."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    return [part for span in spans for part in ([span] if len(span) > 2 else [[each] for each in span])]


def _shown(span: list[int]) -> str:
    return f"{span[0]}-{span[-1]}" if len(span) > 1 else str(span[0])


def size_text(size: float, dtype: str = "") -> str:
    """ "4 MiB float32"; "unknown size"."""
    if math.isnan(size):
        return " ".join(filter(None, ("unknown size", dtype)))
    unit = 0
    while size >= 1024 and size % 256 == 0 and unit < 4:
        size, unit = size / 1024, unit + 1
    return " ".join(filter(None, (f"{size:.10g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}", dtype)))


def bytes_text(size: float) -> str:
    """ "640 KiB", "1.5 GiB": three digits that matter."""
    unit = 0
    while abs(size) >= 999.5 and unit < 5:
        size, unit = size / 1024, unit + 1
    return f"{size:.3g} {('B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB')[unit]}"


def duration_text(seconds: float) -> str:
    """ "30 ms", "1.2 s", "17 min", "2 h"."""
    if abs(seconds) < 1:
        return f"{seconds * 1e3:.3g} ms"
    if abs(seconds) < 999.5:
        return f"{seconds:.3g} s"
    minutes = seconds / 60
    return f"{minutes:.3g} min" if abs(minutes) < 119.5 else f"{minutes / 60:.4g} h"
