"""Fewer rows of a chunk lose no spike, hide nothing that is known, and invent nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rangewatch_server.query.samples import Chunk, downsample

NAN = np.nan
RULES = {"low": "min", "end": "last", "total": "sum", "bits": "or"}


def chunk(times: list[int], **columns: list[float]) -> Chunk:
    found = {name: np.array(values, np.float64) for name, values in columns.items()}
    return Chunk(3, "GPU-a", np.array(times, np.int64), found, {"a": 1}, "b")


def test_each_rule() -> None:
    values = [1.0, NAN, 6.0, NAN, NAN, 3.0, 9.0]
    names = ("high", "low", "end", "total", "bits", "step")
    found = downsample(chunk([0, 1, 2, 3, 4, 5, 9], **dict.fromkeys(names, values)), 5, RULES)
    assert (found.rank, found.key, found.about, found.incarnation) == (3, "GPU-a", {"a": 1}, "b")
    assert found.times_ns.tolist() == [0, 2, 4, 9]  # nothing between 6 and 7
    expected = {name: [1.0, 6.0, 3.0, 9.0] for name in names}
    assert {name: each.tolist() for name, each in found.columns.items()} == expected
    one = downsample(chunk([0, 1, 2, 3], **{name: [1.0, 6.0, NAN, 2.0] for name in names}), 1, RULES)
    assert {name: each.tolist() for name, each in one.columns.items()} == {
        "high": [6.0], "low": [1.0], "end": [2.0], "total": [9.0], "bits": [7.0], "step": [2.0],
    }  # fmt: skip


def test_what_nobody_knows_stays_unknown() -> None:
    found = downsample(chunk([0, 1, 2, 3], **dict.fromkeys(("high", *RULES), [NAN] * 4)), 2, RULES)
    assert found.times_ns.tolist() == [0, 2]
    assert all(np.isnan(values).all() for values in found.columns.values())


def test_of_nothing_nothing_is_left() -> None:
    found = downsample(chunk([], high=[], step=[]), 10, {})
    assert len(found.times_ns) == 0 and {name: len(values) for name, values in found.columns.items()} == {
        "high": 0, "step": 0,
    }  # fmt: skip


def test_chunks_of_the_same_time_have_the_same_parts() -> None:
    one = downsample(chunk([10, 40, 41, 90], n=[1, 2, 3, 4]), 10, {}, 0, 100)
    other = downsample(chunk([12, 47, 99, 100], n=[5, 6, 7, 8]), 10, {}, 0, 100)
    assert (one.times_ns // 10).tolist() == [1, 4, 9] and one.columns["n"].tolist() == [1, 3, 4]
    assert (other.times_ns // 10).tolist() == [1, 4, 9] and other.columns["n"].tolist() == [5, 6, 7]  # 100 is outside


def test_an_unknown_rule_is_an_error() -> None:
    with pytest.raises(KeyError):
        downsample(chunk([0], n=[1.0]), 1, {"n": "mean"})


@given(st.lists(st.tuples(st.integers(0, 10**18), st.floats(0, 1e6) | st.just(NAN)), max_size=60), st.integers(1, 20))
def test_no_spike_is_lost_and_no_more_columns_come(rows: list[tuple[int, float]], columns: int) -> None:
    rows.sort(key=lambda row: row[0])
    whole = chunk([time for time, _ in rows], high=[value for _, value in rows], low=[value for _, value in rows])
    found = downsample(whole, columns, {"low": "min"})
    assert len(found.times_ns) <= columns and set(found.times_ns.tolist()) <= {time for time, _ in rows}
    known = [value for _, value in rows if value == value]
    assert sorted(known)[-1:] == sorted(found.columns["high"][~np.isnan(found.columns["high"])].tolist())[-1:]
    assert sorted(known)[:1] == sorted(found.columns["low"][~np.isnan(found.columns["low"])].tolist())[:1]
