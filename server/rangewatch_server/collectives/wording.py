"""Ranks, sizes and times in words."""

from __future__ import annotations

import math
from collections.abc import Iterable

_SHOWN = 8


def named(ranks: Iterable[int]) -> str:
    """ "rank 3", "ranks 0, 1 and 3", "ranks 0-62 and 64"."""
    numbers = sorted(ranks)
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    parts = _spans(numbers)
    if len(parts) > _SHOWN:
        return f"{len(numbers)} ranks ({', '.join(parts[:_SHOWN])}, ...)"
    return f"ranks {' and '.join(filter(None, (', '.join(parts[:-1]), parts[-1])))}" if parts else "no rank"


def _spans(numbers: list[int]) -> list[str]:
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    parts = []
    for span in spans:
        parts += [f"{span[0]}-{span[-1]}"] if len(span) > 2 else [str(each) for each in span]
    return parts


def sized(size: float, dtype: str = "") -> str:
    """ "4 MiB float32"; "unknown size"."""
    if math.isnan(size):
        return " ".join(filter(None, ("unknown size", dtype)))
    unit = 0
    while size >= 1024 and size % 256 == 0 and unit < 4:
        size, unit = size / 1024, unit + 1
    return " ".join(filter(None, (f"{size:.10g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}", dtype)))


def lasting(seconds: float) -> str:
    """ "30 ms", "1.2 s", "17 min", "2 h"."""
    if abs(seconds) < 1:
        return f"{seconds * 1e3:.3g} ms"
    if abs(seconds) < 999.5:
        return f"{seconds:.3g} s"
    minutes = seconds / 60
    return f"{minutes:.3g} min" if abs(minutes) < 119.5 else f"{minutes / 60:.4g} h"
