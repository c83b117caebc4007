"""Slices as files: one row an observed cell, as CSV, Parquet or an Arrow stream, made a piece at a time.

This file alone imports pyarrow, and only the first export imports this file: 60 ms and 70 MiB of resident memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv, ipc, parquet

from rangewatch.wire.records import TensorEntry
from rangewatch_server.numerics.headroom import STATE_NAMES, State
from rangewatch_server.views.exports.rectangles import Part, Rectangle

Array = NDArray[Any]

FORMULA_STARTS = "=+-@\t\r\n'"  # what a spreadsheet calculates, and the quote that is put before it
_WORDS = pa.dictionary(pa.int32(), pa.string())
KEYS = (
    ("step", pa.int64()), ("step_count", pa.int64()), ("rank", pa.int32()), ("tensor", pa.int32()),
    ("fqn", _WORDS), ("kind", _WORDS), ("index", pa.int32()), ("dtype", _WORDS), ("state", _WORDS),
)  # fmt: skip


class Sink:
    """A file for pyarrow: what is written waits to be taken, and nothing is ever read back."""

    closed = False

    def __init__(self) -> None:
        self._waiting: list[bytes] = []

    def write(self, data: Any) -> int:
        """Keep bytes until `take`."""
        self._waiting.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Nothing is held back here."""

    def close(self) -> None:
        """pyarrow closes what it was given."""

    def take(self) -> bytes:
        """All that was written since the last time."""
        taken, self._waiting = b"".join(self._waiting), []
        return taken


class Table:
    """Parts of one rectangle as Arrow tables of one schema."""

    def __init__(self, rectangle: Rectangle, entries: list[TensorEntry], about: Mapping[str, str]) -> None:
        self.rectangle = rectangle
        self.ordinals = rectangle.order if "tensor" in rectangle.axes else rectangle.order[: rectangle.rows]
        self.is_one = "tensor" in rectangle.axes or len(rectangle.order) == 1
        mine = [entries[each] for each in self.ordinals]
        self._names = {
            "fqn": _distinct([entry.fqn for entry in mine]),
            "kind": _distinct([entry.kind for entry in mine]),
            "dtype": _distinct([entry.dtype for entry in mine]),
        }
        self._index = np.array([entry.index for entry in mine], np.int32)
        fields = [*KEYS, *((name, pa.float64()) for name in rectangle.statistics)]
        self.schema = pa.schema(fields, metadata=dict(about))

    def of(self, part: Part) -> Any:
        """The observed cells of a part, by step and then in call order."""
        seen = (part.state != State.NOT_OBSERVED).T
        column, row = np.nonzero(seen)
        starts, counts = self.rectangle.column_starts(part.cut)
        state = pa.DictionaryArray.from_arrays(part.state.T[seen].astype(np.int32), pa.array(STATE_NAMES))
        arrays = {
            "step": pa.array(starts[column]), "step_count": pa.array(counts[column]), "state": state,
            "rank": self._ranks(part, len(row)), **self._tensors(row),
        }  # fmt: skip
        arrays |= {name: _nullable(values.T[seen]) for name, values in part.columns.items()}
        return pa.Table.from_arrays([arrays[field.name].cast(field.type) for field in self.schema], schema=self.schema)

    def _ranks(self, part: Part, length: int) -> Any:
        ranks = self.rectangle.groups[part.group]
        return pa.array(np.full(length, ranks[0], np.int32)) if len(ranks) == 1 else pa.nulls(length, pa.int32())

    def _tensors(self, row: Array) -> dict[str, Any]:
        if not self.is_one:
            return {name: pa.nulls(len(row), type_) for name, type_ in KEYS[3:8]}
        numbers = {"tensor": pa.array(self.ordinals[row]), "index": pa.array(self._index[row])}
        return numbers | {
            name: pa.DictionaryArray.from_arrays(at[row], names) for name, (at, names) in self._names.items()
        }


def _distinct(values: list[str]) -> tuple[Array, Any]:
    """Each word's number, and the words once: pandas' categories must differ."""
    numbers = {word: number for number, word in enumerate(dict.fromkeys(values))}
    return np.array([numbers[word] for word in values], np.int32), pa.array(list(numbers), pa.string())


def _nullable(values: Array) -> Any:
    return pa.array(values, pa.float64(), mask=np.isnan(values))


class Encoder:
    """Tables in one format: `add` and `finish` answer the bytes that are ready."""

    def __init__(self, make: Callable[[Any, Any], Any], schema: Any, prepare: Callable[[Any], Any]) -> None:
        self._sink = Sink()
        self._file = pa.PythonFile(self._sink, "w")
        self._prepare = prepare
        self._writer = make(self._file, prepare(schema.empty_table()).schema)

    def add(self, table: Any) -> bytes:
        """One more table; b"" for none of its rows."""
        if table.num_rows:
            self._writer.write_table(self._prepare(table))
        return self._sink.take()

    def finish(self) -> bytes:
        """The end of the file."""
        self._writer.close()
        self._file.flush()
        return self._sink.take()


def encoder(format_name: str, schema: Any) -> Encoder:
    """An encoder for `csv`, `parquet` or `arrow`."""
    if format_name == "csv":
        return Encoder(csv.CSVWriter, schema, plain)
    if format_name == "arrow":
        return Encoder(ipc.new_stream, schema, lambda table: table.unify_dictionaries().combine_chunks())
    return Encoder(lambda file, its: parquet.ParquetWriter(file, its, compression="zstd"), schema, lambda table: table)


def plain(table: Any) -> Any:
    """Names as text that no spreadsheet takes for a formula: one that begins like it has a quote before it.

    A name that begins with a quote gets another, so that taking one away gives back every name.
    """
    return pa.table({name: _harmless(table[name]) for name in table.column_names})


def _harmless(values: Any) -> Any:
    if not pa.types.is_dictionary(values.type):
        return values
    text = values.cast(pa.string())
    risky = pc.is_in(pc.utf8_slice_codeunits(text, 0, 1), value_set=pa.array(list(FORMULA_STARTS)))
    return pc.if_else(risky, pc.binary_join_element_wise("'", text, ""), text)
