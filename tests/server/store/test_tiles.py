"""Stored tiles: all of one, or some columns and rows of it, come back as they were; damage is said, never shown."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rangewatch_server.store import tiles
from rangewatch_server.store.tiles import WIDTH, TileError

# As version 0.1.0 stored it: databases that are there stay readable, whatever later versions write.
GOLDEN = base64.b64decode(
    "UldUMcw2GnhiAAAAkpKUomk4p3NodWZmbGUDGBiDpGFtYXiSlKJmOKdzaHVmZmxlzMDNBgDMmqpjYWxsX2NvdW50kpSiZjilY29uc3TMwAgIqn"
    "plcm9fY291bnSSlKJ1MadzaHVmZmxlzMDMwBcCBQkAAAAAAAAAAAAAAAAAAAAAAAAAAAAotS/9YAAFhQQARAMAAM1mms1mM2Yzms0AAADMZpnM"
    "ZjNmM5nMAAAZDAYDAQYDAQD4CBgoOEhYaHiImPn7CT9AMCBAA6o0xzJQgAL/RFti9DPEHrtx4AUDFw74BaMNGJiLyE9/RQRDqUI4noAogFgL8R"
    "8geMTBAocLOFjg8AVSB557AkqCWA8QPOJggcMFHCxw+AKpA7tlEscCAAAAAAAA8D8otS/9IMB1AAA4AAECAwQFBgEANlHFCA=="
)
GOLDEN_ROWS = np.array([2, 5, 9])


def golden_columns() -> dict[str, np.ndarray]:
    cells = np.arange(3 * WIDTH).reshape(3, WIDTH)
    return {
        "amax": 2.0 ** (cells % 11) * 1.5 + 0.1 * (cells // WIDTH), "call_count": np.ones((3, WIDTH)),
        "zero_count": (cells % 7).astype(float),
    }  # fmt: skip


def column(kind: str, rows: int, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    shape = (rows, WIDTH)
    found: dict[str, Any] = {
        "constant": np.full(shape, 3.0),
        "inf": np.full(shape, np.inf),
        "u1": generator.integers(0, 255, shape).astype(float),
        "u2": generator.integers(0, 60_000, shape).astype(float),
        "u4": generator.integers(0, 4_000_000_000, shape).astype(float),
        "f4": generator.random(shape, np.float32).astype(float),
        "f8": generator.random(shape),
        "range": np.arange(rows * WIDTH).reshape(shape),
    }
    return found[kind]


KINDS = ("constant", "inf", "u1", "u2", "u4", "f4", "f8", "range")


@given(
    st.sets(st.integers(0, 40), min_size=1, max_size=12), st.sets(st.integers(0, 45), max_size=8),
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=4), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_some_rows_are_those_of_the_whole(stored: set[int], asked: set[int], kinds: list[str], seed: int) -> None:
    rows, wanted = (np.array(sorted(each), np.int64) for each in (stored, asked))
    columns = {f"{kind} {i}": column(kind, len(rows), seed + i) for i, kind in enumerate(kinds)}
    payload = tiles.encode(rows, columns)
    found, values = tiles.decode(payload, list(columns)[1:], wanted)
    is_asked = np.isin(rows, wanted)
    assert np.array_equal(found, rows[is_asked])
    assert list(values) == list(columns)[1:]
    for name, whole in tiles.decode(payload)[1].items():
        assert np.array_equal(whole, columns[name]), name
        if name in values:
            assert values[name].dtype == whole.dtype, name
            assert values[name].tobytes() == whole[is_asked].tobytes(), name
            assert not is_asked.any() or any(values[name].strides) == any(whole.strides), name  # constants stay so


@pytest.mark.parametrize("rows", [None, np.array([5])])
def test_tiles_of_the_first_version_are_read(rows: np.ndarray | None) -> None:
    found, columns = tiles.decode(GOLDEN, None, rows)
    at = slice(None) if rows is None else slice(1, 2)
    assert np.array_equal(found, GOLDEN_ROWS[at])
    assert columns.keys() == golden_columns().keys()
    for name, values in golden_columns().items():
        assert np.array_equal(columns[name], values[at]), name


@pytest.mark.parametrize("rows", [None, np.array([5])])
def test_any_changed_byte_is_damage(rows: np.ndarray | None) -> None:
    for at in range(0, len(GOLDEN), 7):
        changed = bytearray(GOLDEN)
        changed[at] ^= 0x10
        with pytest.raises(TileError):
            tiles.decode(bytes(changed), ["amax"], rows)


def test_a_tile_that_is_cut_short_is_damage() -> None:
    for length in (0, 5, 12, len(GOLDEN) // 2, len(GOLDEN) - 1):
        with pytest.raises(TileError):
            tiles.decode(GOLDEN[:length], None, GOLDEN_ROWS[:1])
