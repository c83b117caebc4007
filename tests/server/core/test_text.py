from __future__ import annotations

import math

import pytest

from rangewatch_server.core.text import duration_text, ranks_text, size_text


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([], "no rank"),
        ([3], "rank 3"),
        ([1, 0], "ranks 0 and 1"),
        ([0, 1, 3], "ranks 0, 1 and 3"),
        ([*range(63), 64], "ranks 0-62 and 64"),
        (range(1024), "ranks 0-1023"),
        (range(0, 40, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 12 more"),
    ],
)
def test_ranks(ranks: list[int], words: str) -> None:
    assert ranks_text(ranks) == words


def test_sizes_and_times() -> None:
    assert size_text(4 * 2**20, "float32") == "4 MiB float32"
    assert (
        size_text(8) == "8 B" and size_text(1000, "bfloat16") == "1000 B bfloat16" and size_text(1280.0) == "1.25 KiB"
    )
    assert size_text(math.nan) == "unknown size"
    assert duration_text(0.03) == "30 ms" and duration_text(0.0004) == "0.4 ms" and duration_text(9.04) == "9.04 s"
    assert duration_text(754) == "754 s"
    assert duration_text(1000) == "16.7 min" and duration_text(7200) == "2 h" and duration_text(90 * 3600) == "90 h"
