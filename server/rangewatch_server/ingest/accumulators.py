"""Rows of many ranks merged as they come, in memory: dense, in place, one array a statistic. Pure, no I/O.

A thousand ranks send the same steps at about the same time; what waits here is one rank's worth of memory a tile,
whatever their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rangewatch.statistics import UFUNCS
from rangewatch_server.ingest.fold import summarise
from rangewatch_server.numerics.pyramid import PARTS_OF_A_STEP, RANGES, SERIES_PART, SUMMARY, Block
from rangewatch_server.store.batch_checks import NEEDED
from rangewatch_server.store.names import TensorArrays
from rangewatch_server.store.rows import Raw
from rangewatch_server.store.tiles import WIDTH

Array = NDArray[Any]

# Half of what a tile weighs, and of many ranks it is asked for seldom: it is read from every rank.
UNMERGED = ("sum_sq",)
# What says that a row was recorded at all.
PRESENT = {RANGES: ("call_count",), SERIES_PART: ("count",), SUMMARY: ("observed", "nan_count", "inf_count")}


# Stored tiles number the rows so. Kinds that came later have rows of their own behind those of all ranks.
_FIRST_KINDS, _LATER_KINDS, _LATER_ROW = 7, 16, 1 << 40


def rank_row(rank: int | Array, kind_rows: Array) -> Array:
    """Rows of the summary of all ranks: one for each rank and kind, where a rank's own has one for each kind."""
    later = _LATER_ROW + rank * _LATER_KINDS + kind_rows - _FIRST_KINDS
    return np.where(kind_rows < _FIRST_KINDS, rank * _FIRST_KINDS + kind_rows, later)


def kind_of_row(rows: Array) -> Array:
    """The kinds, as places in `KINDS`, that rows of the summary of all ranks are of."""
    return np.where(rows < _LATER_ROW, rows % _FIRST_KINDS, _FIRST_KINDS + (rows - _LATER_ROW) % _LATER_KINDS)


def tiles_of(steps: Array) -> list[int]:
    """Numbers of the tiles that have some of these ascending steps."""
    first, last = int(steps[0]) // WIDTH, int(steps[-1]) // WIDTH
    return [first] if first == last else np.unique(steps // WIDTH).tolist()


class RowIndex:
    """Row numbers -> places in arrays that only ever grow at their end."""

    def __init__(self) -> None:
        self.known = np.zeros(0, np.int64)
        self._places = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self.known)

    def of(self, rows: Array) -> slice | Array:
        """Places of `rows` (ascending), new ones added; a slice where they are side by side, as they usually are."""
        at = np.searchsorted(self.known, rows)
        if not len(self.known) or bool((self.known[np.minimum(at, len(self.known) - 1)] != rows).any()):
            self._add(rows)
            at = np.searchsorted(self.known, rows)
        places = self._places[at]
        if len(places) and places[-1] - places[0] == len(places) - 1 and bool((places[1:] - places[:-1] == 1).all()):
            return slice(int(places[0]), int(places[-1]) + 1)
        return places

    def sorted_places(self) -> Array:
        """Places in the order of their row numbers, which are `known`."""
        return self._places

    def _add(self, rows: Array) -> None:
        new = np.setdiff1d(rows, self.known, assume_unique=True)
        places = np.arange(len(self.known), len(self.known) + len(new))
        known, all_places = np.concatenate([self.known, new]), np.concatenate([self._places, places])
        order = np.argsort(known)
        self.known, self._places = known[order], all_places[order]


class Accumulator:
    """One level 0 tile of one part: `columns[name]` is (places, WIDTH), the identity where nothing was recorded."""

    def __init__(self, index: RowIndex, fill: Mapping[str, float], rules: Mapping[str, str]) -> None:
        self.index, self.fill, self.rules = index, fill, rules
        self.columns: dict[str, Array] = {}

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(values.nbytes for values in self.columns.values())

    def merge(self, rows: Array, at: Array, columns: Mapping[str, Array]) -> None:
        """Lay `columns[name]` (rows, at) over what is there; `at` are ascending columns of the tile."""
        places = self.index.of(rows)
        side_by_side = len(at) and at[-1] - at[0] == len(at) - 1
        where: slice | Array = slice(int(at[0]), int(at[-1]) + 1) if side_by_side else at
        for name, values in columns.items():
            rule = self.rules.get(name)
            if rule in UFUNCS and name not in UNMERGED and self._has_values(name, values):
                self._merge(UFUNCS[rule], self._column(name), places, where, values)

    def _has_values(self, name: str, values: Array) -> bool:
        is_constant = not any(values.strides) and values.size > 0
        return name in self.columns or not is_constant or float(values.flat[0]) != self.fill[name]

    def _merge(self, ufunc: Any, target: Array, places: slice | Array, where: slice | Array, values: Array) -> None:
        if isinstance(places, slice) and isinstance(where, slice):
            part = target[places, where]
            ufunc(part, values, out=part)
            return
        rows = np.arange(places.start, places.stop) if isinstance(places, slice) else places
        cut = np.ix_(rows, np.arange(where.start, where.stop) if isinstance(where, slice) else where)
        target[cut] = ufunc(target[cut], values)

    def _column(self, name: str) -> Array:
        values = self.columns.get(name)
        if values is None:
            values = self.columns[name] = np.full((len(self.index), WIDTH), self.fill[name])
        elif len(values) < len(self.index):  # half as much again: a thousand ranks come one by one
            grown = np.full((max(len(self.index), len(values) * 3 // 2), WIDTH), self.fill[name])
            grown[: len(values)] = values
            values = self.columns[name] = grown
        return values

    def block(self, part: str, tile: int, wanted: Iterable[str] | None = None) -> Block:
        """What is there as a block of its own: the rows that were recorded, ascending."""
        places = self.index.sorted_places()
        present = np.zeros(len(places), bool)
        for name in PRESENT[part]:
            if name in self.columns:
                column = self.columns[name]
                inside = places < len(column)
                present[inside] |= (column[places[inside]] > 0).any(axis=1)
        names = [name for name in self.columns if wanted is None or name in wanted]
        rows, chosen = self.index.known[present], places[present]
        columns = {name: self._picked(name, chosen) for name in names}
        # The places of a block are found with these; of the other parts every tile has all, whatever they say.
        usual = NEEDED if part == RANGES else [name for name, rule in self.rules.items() if rule in UFUNCS]
        for name in usual:
            if part == RANGES or wanted is None or name in wanted:
                columns.setdefault(name, np.broadcast_to(self.fill[name], (len(rows), WIDTH)))
        return Block(0, tile * WIDTH, rows, columns)

    def _picked(self, name: str, places: Array) -> Array:
        column = self.columns[name]
        if not len(places) or int(places.max()) < len(column):
            return column[places]
        padded = np.full((len(places), WIDTH), self.fill[name])
        inside = places < len(column)
        padded[inside] = column[places[inside]]
        return padded


def laid_over(raws: Sequence[Raw], rules: Mapping[str, str]) -> Raw:
    """The worst of rows of the same tensors and steps, in as few operations as one of them takes; of the columns that
    are merged.
    """
    first, columns = raws[0], dict[str, Array]()
    for name in dict.fromkeys(name for raw in raws for name in raw.columns):
        rule = rules.get(name, "")
        if rule in UFUNCS and name not in UNMERGED:
            values = [raw.columns[name] for raw in raws if name in raw.columns]
            columns[name] = values[0] if len(values) == 1 else _worst(values, rule)
    return Raw(first.part, first.steps, first.rows, columns)


def _worst(values: Sequence[Array], rule: str) -> Array:
    dtype = np.float64 if rule == "sum" else None  # exact whatever narrow dtype it was sent in
    if any(any(each.strides) for each in values):
        return np.asarray(UFUNCS[rule].reduce(values, axis=0, dtype=dtype))
    first = values[0]
    if rule != "sum" and all(each is first for each in values):
        return first
    constants = [each.flat[0] for each in values] if first.size else [0.0]
    return np.broadcast_to(UFUNCS[rule].reduce(constants, dtype=dtype), first.shape)


class Accumulators:
    """All tiles of one run that wait; `fill` and `rules` are the columns' identities and merge rules by part."""

    def __init__(self, fill: dict[str, dict[str, float]], rules: dict[str, dict[str, str]]) -> None:
        self.fill, self.rules = fill, rules
        self.tiles: dict[tuple[str, int], Accumulator] = {}
        self._indexes = {part: RowIndex() for part in PRESENT}

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(each.nbytes for each in self.tiles.values())

    def learn(self, fill: Mapping[str, Mapping[str, float]], rules: Mapping[str, Mapping[str, str]]) -> None:
        """A catalogue with more statistics has come."""
        for part in PRESENT:
            self.fill[part].update(fill[part])
            self.rules[part].update(rules[part])

    def feed(self, rank: int, raws: Sequence[Raw], tensors: TensorArrays) -> None:
        """Merge rows of one rank, and what its summary says of them."""
        for raw in raws:
            for tile, at, columns in self.lay(raw):
                if raw.part == RANGES:
                    self._summarise(rank, tile, at, Block(0, tile * WIDTH, raw.rows, columns), tensors)

    def lay(self, raw: Raw) -> list[tuple[int, Array, dict[str, Array]]]:
        """Merge rows, without a summary: tile, columns of the tile and values of each part of them."""
        parts: list[tuple[int, Array, dict[str, Array]]] = []
        for tile in tiles_of(raw.steps):
            low, high = np.searchsorted(raw.steps, [tile * WIDTH, (tile + 1) * WIDTH])
            at = raw.steps[low:high] - tile * WIDTH
            columns = {name: values[:, low:high] for name, values in raw.columns.items()}
            self._tile(raw.part, tile).merge(raw.rows, at, columns)
            parts.append((tile, at, columns))
        return parts

    def _summarise(self, rank: int, tile: int, at: Array, block: Block, tensors: TensorArrays) -> None:
        summary = summarise(block, tensors)
        self._tile(SUMMARY, tile).merge(rank_row(rank, summary.rows), at, summary.columns)

    def _tile(self, part: str, tile: int) -> Accumulator:
        accumulator = self.tiles.get((part, tile))
        if accumulator is None:
            rules = self.rules[part]
            if part in PARTS_OF_A_STEP:
                rules = rules | PARTS_OF_A_STEP[part]
            accumulator = Accumulator(self._indexes[part], self.fill[part], rules)
            self.tiles[part, tile] = accumulator
        return accumulator

    def below(self, tile: int) -> list[int]:
        """Tiles before `tile` that have something."""
        return sorted({each for _, each in self.tiles if each < tile})

    def drop_below(self, tile: int) -> Tiles:
        """Let go of the tiles before `tile`, which are stored, and return them."""
        gone = {key: each for key, each in self.tiles.items() if key[1] < tile}
        self.tiles = {key: each for key, each in self.tiles.items() if key[1] >= tile}
        return gone


Tiles = dict[tuple[str, int], Accumulator]


def blocks(tiles: Tiles, part: str, start: int, stop: int, wanted: Iterable[str] | None = None) -> list[Block]:
    """Copies of what there is of `part` in the tiles that touch the steps [start, stop), in order."""
    touched = sorted(tile for of, tile in tiles if of == part and (tile + 1) * WIDTH > start and tile * WIDTH < stop)
    return [tiles[part, tile].block(part, tile, wanted) for tile in touched]
