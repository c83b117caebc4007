"""Free details are counted before they are built: few bytes never become many objects."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rangewatch import wire
from rangewatch.wire.details import MAX_DEPTH, MAX_VALUES, Details
from rangewatch.wire.records import Batch, Event, SeriesRows
from tests.fuzz import template

# Of every length that msgpack has another head for.
WORDS = st.sampled_from([0, 1, 31, 32, 255, 256, 65_535, 65_536]).map(lambda length: "x" * length)
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | WORDS | st.binary()
)
PLAIN = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=20) | st.dictionaries(WORDS, inner, max_size=20))


def values_in(value: Any) -> int:
    """Counted as msgpack has them: keys too."""
    if isinstance(value, dict):
        return 1 + sum(1 + values_in(each) for each in value.values())
    return 1 + sum(map(values_in, value)) if isinstance(value, list) else 1


@settings(max_examples=12)
@given(st.dictionaries(WORDS, PLAIN, max_size=20))
def test_all_values_are_counted(data: dict[str, Any]) -> None:
    details = Details()
    assert details.decode(msgspec.Raw(msgspec.msgpack.encode(data))) == data
    assert MAX_VALUES - details.values_left == values_in(data)


@pytest.mark.parametrize("count", [15, 16, 65_535, 65_536])
def test_long_lists_and_extensions_are_counted(count: int) -> None:
    data = {
        "a": [msgspec.msgpack.Ext(5, bytes(size)) for size in (1, 2, 3, 4, 8, 16, 255, 256, 65_536)] + [0] * (count - 9)
    }
    details = Details()
    assert details.decode(msgspec.Raw(msgspec.msgpack.encode(data))) == data
    assert MAX_VALUES - details.values_left == 3 + count


def test_all_details_of_a_message_count_together() -> None:
    half = {"a": [0] * (MAX_VALUES // 2 - 2)}
    assert wire.decode(wire.encode(Batch("r", 0, "i", 0, "c", events=(Event("k", 1, 0, "", half),))))
    with pytest.raises(wire.WireError, match="more than") as caught:
        wire.decode(wire.encode(Batch("r", 0, "i", 0, "c", events=(Event("k", 1, 0, "", half),) * 2)))
    assert caught.value.code == "too_large"


@pytest.mark.parametrize("too_deep", [False, True])
def test_depth_has_a_bound(too_deep: bool) -> None:
    body = template.packed(template.with_events(b"\x81\xa1a" + b"\x91" * (MAX_DEPTH - 1 + too_deep) + b"\x90"))
    if not too_deep:
        assert wire.decode(body)
        return
    with pytest.raises(wire.WireError, match="deeper"):
        wire.decode(body)


def test_ten_million_empty_lists_take_no_memory() -> None:
    body = template.packed(template.with_events(b"\x81\xa1a\xdd\x00\x98\x96\x80" + b"\x90" * 10_000_000))
    assert len(body) < 1_000
    tracemalloc.start()
    with pytest.raises(wire.WireError):
        wire.decode(body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20


def test_steps_that_wrap_are_not_ascending() -> None:
    steps = np.array([2**63 - 1, -(2**63)])
    with pytest.raises(wire.WireError, match="ascending"):
        wire.decode(wire.encode(Batch("r", 0, "i", 0, "c", None, (SeriesRows("x", steps, np.zeros(2)),))))


def test_what_is_quoted_of_a_message_is_one_line() -> None:
    with pytest.raises(wire.WireError) as caught:
        wire.decode(template.packed(template.bare(message="a\nERROR rangewatch.server: \x1b[31m")))
    assert str(caught.value).isprintable() and "ERROR" in str(caught.value)
