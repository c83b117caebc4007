"""Batches by the hundred: those that differ in their values alone are decoded together.

The ranks of a run send the same tensors, steps and series in the same encodings, so that most of what `decode` does for
one is the same for a thousand. Here the first of each layout is decoded as ever, with all its checks; of the others
the same bytes are put below one another and read as one array a column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch.wire.columns import DTYPES, Column
from rangewatch.wire.errors import WireError
from rangewatch.wire.messages import BatchSections, RangesHeader, SeriesHeader, decode, opened
from rangewatch.wire.records import Batch

Array = NDArray[Any]

TOGETHER_BYTES = 16 << 20
"""Of what is made of the batches that are read together: of 600 tensors and 8 steps some 700."""

SERIES_BYTES = 48
"""Of one value of a series, of which six columns are made: a constant stands for many of them in 8 bytes."""


class Alike(NamedTuple):
    """Ranges and series of batches of one catalogue, with the same tensors, steps and series.

    `places`: which of the bodies; all arrays are in this order. `first`: the first of them, as `decode` gives it.
    `columns`: of its ranges, (batches, tensors, steps), or (batches, 1, 1) where each batch has one value everywhere.
    `series`: of each of its series, (batches, steps), or (batches, 1) likewise. dtypes are those that were sent.
    """

    places: list[int]
    first: Batch
    columns: dict[str, Array]
    series: list[Array]


class Portion(NamedTuple):
    """Of the bodies up to the place `stop`, from where the portion before ended, those that could be read."""

    stop: int
    alikes: list[Alike]


class _Opening(msgspec.Struct, frozen=True, tag_field="message", tag="opening"):
    """No batch. With one kind of message alone a header that does not say which it is would be taken for that one."""


_SECTIONS = msgspec.msgpack.Decoder(BatchSections | _Opening)
_RANGES = msgspec.msgpack.Decoder(RangesHeader | None)
_SERIES = msgspec.msgpack.Decoder(tuple[SeriesHeader, ...])
_Key = tuple[str, bytes, bytes]


class _Layout:
    """Where each column lies in the blocks. Raises `msgspec.DecodeError` for what is no layout."""

    def __init__(self, key: _Key) -> None:
        ranges, series = _RANGES.decode(key[1]), _SERIES.decode(key[2])
        self.nbytes = 0
        self.made_bytes = 0
        """Of what is made of a batch."""
        self.shared: list[tuple[int, int]] = []
        """Bytes [start, stop) that say which rows these are."""
        self.columns: dict[str, tuple[Column, int]] = {}
        self.series: list[tuple[Column, int]] = []
        if ranges is not None:
            self._share(ranges.steps)
            self._share(ranges.tensors)
            self.columns = {name: self._place(column) for name, column in ranges.columns.items()}
        for each in series:
            self._share(each.steps)
            self.series.append(self._place(each.values))
        self.made_bytes = self.nbytes + SERIES_BYTES * sum(column.count for column, _ in self.series)

    def _share(self, column: Column) -> None:
        self.shared.append((self.nbytes, self.nbytes + column.nbytes))
        self.nbytes += column.nbytes

    def _place(self, column: Column) -> tuple[Column, int]:
        at = self.nbytes
        if column.encoding == "range":
            self._share(column)
        else:
            self.nbytes += column.nbytes
        return column, at


class _Group:
    """Batches of one layout and the same rows, until they are read."""

    def __init__(self, layout: _Layout, first: Batch) -> None:
        self.layout, self.first = layout, first
        self.places: list[int] = []
        self.blocks: list[memoryview] = []

    def read(self) -> Alike:
        size, layout = len(self.blocks), self.layout
        whole = np.frombuffer(b"".join(self.blocks) or b"\0" * size, np.uint8).reshape(size, -1)
        ranges, columns = self.first.ranges, dict[str, Array]()
        if ranges is not None:
            for name, (column, at) in layout.columns.items():
                of_first = ranges.columns[name]
                shape = (1, 1) if column.encoding == "const" else of_first.shape
                columns[name] = _values(whole, column, at, of_first).reshape(size, *shape)
        of_series = zip(layout.series, self.first.series, strict=True)
        return Alike(
            self.places, self.first, columns, [_values(whole, *where, each.values) for where, each in of_series]
        )


def _values(whole: Array, column: Column, at: int, of_first: Array) -> Array:
    """(batches, values) of one column, or (batches, 1) of a constant; of a range those of the first, which all have."""
    dtype, count = DTYPES[column.dtype], column.count
    if column.encoding == "range":
        return np.broadcast_to(of_first.reshape(-1), (len(whole), count))
    if column.encoding == "const" or dtype.itemsize == 1:
        return np.ascontiguousarray(whole[:, at : at + column.nbytes]).view(dtype)
    result = np.empty((len(whole), count, dtype.itemsize), np.uint8)
    for index in range(dtype.itemsize):
        result[:, :, index] = whole[:, at + index * count : at + (index + 1) * count]
    return result.reshape(len(whole), -1).view(dtype)


def decode_alike(bodies: Sequence[bytes]) -> Iterator[Portion]:
    """The ranges and series of stored batches, some at a time, so that the memory they take is bounded: all bodies are
    in one portion or another, in their order. A body that `decode` refuses, or that is no batch, is in none of what
    comes: who asks `decode` for it is told why.
    """
    layouts: dict[_Key, _Layout] = {}
    groups: dict[tuple[_Key, bytes], _Group] = {}
    waiting = 0
    for place, body in enumerate(bodies):
        try:
            encoded, data = opened(body)
            sections = _SECTIONS.decode(encoded)
            if isinstance(sections, _Opening):
                continue
            key = sections.catalogue, bytes(sections.ranges), bytes(sections.series)
            layout, first = layouts.get(key), None
            if layout is None:
                first = decode(body, rows_only=True)  # with all its checks, of lengths too
                layout = layouts[key] = _Layout(key)
            if len(data) < layout.nbytes:
                continue
            shared = key, b"".join([data[start:stop] for start, stop in layout.shared])
            group = groups.get(shared)
            if group is None:
                first = decode(body, rows_only=True) if first is None else first
                assert isinstance(first, Batch)
                group = groups[shared] = _Group(layout, first)
        except (WireError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        group.places.append(place)
        group.blocks.append(data[: layout.nbytes])
        waiting += layout.made_bytes
        if waiting > TOGETHER_BYTES:
            yield Portion(place + 1, [each.read() for each in groups.values()])
            groups, waiting = {}, 0
    yield Portion(len(bodies), [each.read() for each in groups.values()])
