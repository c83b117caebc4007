"""What the rows of a backup mean: each is decoded, bounded, before it may go into the database.

Later the server trusts what is stored: a tile that claims a gigabyte, or a stream whose account of itself is no JSON,
would fail at every look. So this is as strict as ingest is.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from rangewatch import wire
from rangewatch.statistics import ALL, SERIES, is_count
from rangewatch.wire import MAX_DECOMPRESSED_BYTES, Column, WireError
from rangewatch.wire.records import Batch, Catalogue, RankInfo, Statistic, StreamHeader, TensorEntry
from rangewatch_server.ingest import skipped
from rangewatch_server.maintenance.copies.backup_file import BadBackup
from rangewatch_server.numerics.pyramid import (
    AMAX_STEP,
    NO_STEP,
    NONFINITE_STEP,
    PARTS,
    RANGES,
    SERIES_PART,
    SUMMARY,
    SUMMARY_STATISTICS,
)
from rangewatch_server.store import exit_state, run_metadata, samples, tiles
from rangewatch_server.store.batch_checks import (
    MAX_NAME_BYTES,
    MAX_RANK,
    MAX_STEP,
    NEEDED,
    check_header,
    check_opening,
    check_ranges,
    check_samples,
)
from rangewatch_server.store.names import MAX_SERIES, MAX_TENSORS, identity, tensor_identity
from rangewatch_server.store.run_metadata import About
from rangewatch_server.store.tiles import PREFIX, WIDTH

Array = NDArray[Any]
Row = dict[str, Any]

MAX_LEVEL = 16  # 8**16 columns of 64 steps: far past the last step there can be
MAX_TILE_ROWS = 8_000_000  # the summary of all ranks has one for each rank and kind
MAX_TILE_BYTES = 1 << 30  # of one tile, unpacked
AT_ONCE_BYTES = 64 << 20  # of a larger tile one column is unpacked at a time
STATES = (*exit_state.STATES, "merged")
RANK_STATES = ("pending", "accepted", "done", "refused", "expired", "withdrawn")
WRONG = "a tile's columns"
IN_EVERY_TILE = {
    RANGES: frozenset(NEEDED),
    SERIES_PART: frozenset(each.name for each in SERIES if each.merge != "last"),  # merged ranks have no last value
    SUMMARY: frozenset(each.name for each in SUMMARY_STATISTICS),
}
PLACES = frozenset((AMAX_STEP, NONFINITE_STEP))
_Header = tuple[tuple[Column, int], dict[str, tuple[Column, int]]]
_HEADER = msgspec.msgpack.Decoder(_Header)
_SOMEBODY = RankInfo("run", 0, 1, 0, "host", "incarnation", 0)


def _about(row: Row) -> About:
    """Raises `BadBackup`."""
    try:
        return run_metadata.of_columns(row["title"], row["tags"], row["note"], row["archived_ns"])
    except msgspec.MsgspecError:
        raise BadBackup(f"what is said of the run {str(row['name'])[:80]!r} cannot be read") from None


class RunRows:
    """Checks the rows of one run, in the order tensors, series, catalogues, streams, then the others. `about`: what
    people say of it.
    """

    def __init__(self, row: Row) -> None:
        self.name = name = str(row["name"])
        self.about = _about(row)
        self.tensors = 0
        self.series = 0
        self.catalogues: dict[str, Catalogue] = {}
        self.statistics: dict[str, Statistic] = {}
        if not 0 < len(name.encode()) <= MAX_NAME_BYTES:
            raise BadBackup("a run's name is empty or too long")

    def check(self, table: str, row: Row) -> None:
        """Raises `BadBackup`."""
        try:
            getattr(self, f"_{table}")(row)
        except (msgspec.MsgspecError, WireError, zstandard.ZstdError, ValueError, RecursionError) as error:
            raise BadBackup(f"run {self.name[:80]!r}: a row of {table} cannot be read: {error}") from None

    def _streams(self, row: Row) -> None:
        _need(-1 <= row["rank"] < MAX_RANK and row["state"] in STATES, "a stream's rank or state")
        _need(row["contiguous"] >= -1 and 0 <= row["frontier"] <= 2 * MAX_STEP, "a stream's frontier")
        skipped.decoded(row["skipped"])
        _need(row["frontier"] % WIDTH == 0 and 0 <= row["thin_level"] <= MAX_LEVEL, "a stream's frontier")
        steps = [row[name] for name in ("first_step", "last_step", "least_step", "bad_step")]
        _need(all(step is None or 0 <= step <= MAX_STEP for step in steps), "a stream's steps")
        _need((row["first_step"] is None) == (row["last_step"] is None), "a stream's steps")
        _need(row["first_step"] is None or row["first_step"] <= row["last_step"], "a stream's steps")
        _need(0 <= row["thin_step"] <= 2 * MAX_STEP and row["skipped_steps"] >= 0, "a stream's numbers")
        _need(row["started_ns"] >= 0 and row["last_seen_ns"] >= 0, "a stream's times")
        self._worst(row)
        if row["rank"] >= 0:
            info = msgspec.json.decode(row["info"], type=RankInfo)
            check_opening(StreamHeader(info, Catalogue(ALL, ())))

    def _worst(self, row: Row) -> None:
        """The tensors that it names, each with all that is said of it."""
        for names in (("least_tensor", "least_step", "least_bits"), ("bad_tensor", "bad_step", "bad_is_nan")):
            values = [row[name] for name in names]
            _need(all(each is None for each in values) or None not in values, "a stream's worst value")
            _need(values[0] is None or 0 <= values[0] < self.tensors, "a stream's worst tensor")
        _need(row["least_bits"] is None or abs(row["least_bits"]) < np.inf, "a stream's least headroom")

    def _tensors(self, row: Row) -> None:
        shape = msgspec.json.decode(row["shape"], type=tuple[int, ...])
        entry = TensorEntry(
            row["fqn"], row["kind"], row["tensor_index"], row["dtype"], shape, row["call_index"], row["module"]
        )
        check_opening(StreamHeader(_SOMEBODY, _with(entry)))
        _need(row["ordinal"] == self.tensors < MAX_TENSORS, "the numbers of tensors")
        _need(row["identity"] == tensor_identity(entry), "a tensor's identity")
        self.tensors += 1

    def _series(self, row: Row) -> None:
        _need(row["ordinal"] == self.series < MAX_SERIES, "the numbers of series")
        _need(row["identity"] == identity(row["name"]), "the identity of a series")
        self.series += 1

    def _catalogues(self, row: Row) -> None:
        body = zstandard.ZstdDecompressor().decompress(row["body"], max_output_size=MAX_DECOMPRESSED_BYTES)
        _need(len(body) <= MAX_DECOMPRESSED_BYTES, "a catalogue's size")
        catalogue = msgspec.msgpack.decode(body, type=Catalogue)
        check_opening(StreamHeader(_SOMEBODY, catalogue))
        _need(wire.catalogue_digest(catalogue) == row["digest"], "a catalogue's digest")
        ordinals = np.frombuffer(row["ordinals"], "<i8")
        _need(len(ordinals) == len(catalogue.tensors), "a catalogue's tensors")
        _need(not len(ordinals) or (ordinals.min() >= 0 and ordinals.max() < self.tensors), "a catalogue's tensors")
        self.catalogues[row["digest"]] = catalogue
        self.statistics |= {each.name: each for each in catalogue.statistics}

    def _batches(self, row: Row) -> None:
        batch = wire.decode(row["body"])
        _need(isinstance(batch, Batch), "a batch")
        assert isinstance(batch, Batch)
        check_header(batch)
        _need(batch.sequence == row["sequence"] and batch.catalogue in self.catalogues, "a batch's sequence")
        if batch.ranges is not None:
            known = self.catalogues[batch.catalogue]
            check_ranges(batch.ranges, known.statistics, len(known.tensors))

    def _tiles(self, row: Row) -> None:
        _need(row["part"] in PARTS and 0 <= row["level"] <= MAX_LEVEL and row["tile"] >= 0, "a tile's place")
        rows, sizes = check_tile(row["payload"])
        places = PLACES if row["part"] == RANGES and row["level"] else frozenset()
        _need(not len(rows) or IN_EVERY_TILE[row["part"]] | places <= set(sizes), WRONG)
        self._tile_values(row["part"], row["payload"], sizes)
        most = {RANGES: self.tensors, SERIES_PART: self.series}.get(row["part"], 2**62)
        _need(not len(rows) or (rows.min() >= 0 and rows.max() < most), "a tile's rows")
        _need(bool((np.diff(rows) > 0).all()), "a tile's rows")

    def _tile_values(self, part: str, payload: bytes, sizes: dict[str, int]) -> None:
        statistics = {RANGES: self.statistics, SERIES_PART: _SERIES, SUMMARY: _SUMMARY}[part]
        names = [name for name in sizes if name in statistics or name in PLACES]
        for group in [names] if sum(sizes.values()) <= AT_ONCE_BYTES else [[name] for name in names]:
            for name, values in tiles.decode(payload, group)[1].items():
                _check_values(statistics.get(name), values)

    def _samples(self, row: Row) -> None:
        _need(row["sequence"] >= 0 and row["number"] >= 0 and row["joined"] in (0, 1), "the place of samples")
        parts = samples.decode(row["payload"])
        for part in parts:
            check_samples(samples.samples_of(row["source"], row["sample_key"], part))
        described = samples.described(parts)
        _need(all(row[name] == value for name, value in described.items()), "what is said of samples")
        _need(described["last_ns"] - described["first_ns"] <= samples.SPAN_NS, "the times of samples")

    def _events(self, row: Row) -> None:
        _need(-1 <= row["step"] <= MAX_STEP and row["time_ns"] >= 0, "an event's step")
        _need(isinstance(msgspec.json.decode(row["data"]), dict), "an event's details")

    def _commands(self, row: Row) -> None:
        _need(isinstance(msgspec.json.decode(row["body"]), dict), "a command")
        msgspec.json.decode(row["ranks"], type=list[int] | None)

    def _command_ranks(self, row: Row) -> None:
        _need(row["state"] in RANK_STATES and 0 <= row["rank"] < MAX_RANK, "what a rank made of a command")


def check_tile(payload: bytes) -> tuple[Array, dict[str, int]]:
    """Its rows, and the bytes of each column unpacked. Raises `ValueError`.

    Its checksum is right, and reading it takes no more memory than a tile may.
    """
    data = memoryview(payload)
    _need(len(data) >= PREFIX.size, "a tile's length")
    _, _, header_bytes = PREFIX.unpack_from(data)
    rows, columns = _HEADER.decode(data[PREFIX.size : PREFIX.size + header_bytes])
    _need(0 <= rows[0].count <= MAX_TILE_ROWS and 0 <= rows[0].nbytes <= 8 * rows[0].count + 16, "a tile's rows")
    cells = rows[0].count * WIDTH
    _need(all(column.count == cells and 0 <= column.nbytes <= 8 * cells + 16 for column, _ in columns.values()), WRONG)
    unpacked = {name: 0 if column.encoding == "const" else 8 * cells for name, (column, _) in columns.items()}
    _need(sum(unpacked.values()) <= MAX_TILE_BYTES, WRONG)
    stored = PREFIX.size + header_bytes + rows[1] + sum(size for _, size in columns.values())
    _need(stored == len(data), "a tile's length")
    return tiles.decode(payload, ())[0], unpacked


_SERIES = {each.name: each for each in SERIES if is_count(each)}  # the others are what somebody logged: any number
_SUMMARY = {each.name: each for each in SUMMARY_STATISTICS}


def _check_values(statistic: Statistic | None, values: Array) -> None:
    """As ingest is with a batch's values, but sums may be larger. Without a statistic they are steps."""
    if not values.size or values.dtype.kind == "u":
        return
    if not any(values.strides):
        values = values[:1, :1]
    least, largest = float(values.min()), float(values.max())  # NaN comes through both
    if statistic is not None and statistic.unit == "bits":
        _need(least > -np.inf, "a tile's headroom")
        return
    _need(least >= 0, "a tile's values")
    if statistic is None:
        _need(largest <= NO_STEP, "a tile's steps")
    elif is_count(statistic) or statistic.merge == "max":
        _need(largest < np.inf, "a tile's values")


def _with(entry: TensorEntry) -> Catalogue:
    return Catalogue(ALL, (entry,))


def _need(is_so: bool, what: str) -> None:
    if not is_so:
        raise ValueError(f"{what} cannot be")
