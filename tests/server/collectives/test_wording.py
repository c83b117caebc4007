from __future__ import annotations

import math

import pytest

from rangewatch_server.collectives.wording import lasting, named, sized


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([], "no rank"),
        ([3], "rank 3"),
        ([1, 0], "ranks 0 and 1"),
        ([0, 1, 3], "ranks 0, 1 and 3"),
        ([*range(63), 64], "ranks 0-62 and 64"),
        (range(1024), "ranks 0-1023"),
        (range(0, 40, 2), "20 ranks (0, 2, 4, 6, 8, 10, 12, 14, ...)"),
    ],
)
def test_ranks(ranks: list[int], words: str) -> None:
    assert named(ranks) == words


def test_sizes_and_times() -> None:
    assert sized(4 * 2**20, "float32") == "4 MiB float32"
    assert sized(8) == "8 B" and sized(1000, "bfloat16") == "1000 B bfloat16" and sized(1280.0) == "1.25 KiB"
    assert sized(math.nan) == "unknown size"
    assert lasting(0.03) == "30 ms" and lasting(0.0004) == "0.4 ms" and lasting(9.04) == "9.04 s"
    assert lasting(754) == "754 s"
    assert lasting(1000) == "16.7 min" and lasting(7200) == "2 h" and lasting(90 * 3600) == "90 h"
