"""Folding: complete spans of steps leave the raw batches and become tiles, level by level.

The step axis is cut at multiples of 64 whatever arrives when. When a stream's steps pass the end of a span, the span's
rows become a level 0 tile; its columns, merged by 8, are one eighth of a level 1 tile, which is written when its own
last step has passed; and so on up. Every tile is written once, in order; rows for a span that is already folded (a
client that goes back) are merged into its tile, and the tiles above are made again from their children.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rangewatch.wire.records import Statistic
from rangewatch_server.numerics import pyramid
from rangewatch_server.numerics.headroom import headroom_bits
from rangewatch_server.numerics.pyramid import FANOUT, PARTS, RANGES, SERIES_PART, SUMMARY, Block
from rangewatch_server.store.names import TensorArrays
from rangewatch_server.store.rows import Raw, align, beside, dense, union
from rangewatch_server.store.tiles import WIDTH, TileError

Array = NDArray[Any]

logger = logging.getLogger("rangewatch.server")


class Tiles(Protocol):
    """Where tiles are kept, for one stream."""

    def get(self, part: str, level: int, tile: int) -> Block | None:
        """The stored tile, or None."""

    def put(self, part: str, tile: int, block: Block, replace: bool) -> None:
        """Store a tile; with `replace` it takes the place of one stored before."""

    def thin_level(self, tile: int) -> int:
        """Under which level retention has taken the tiles of a level 0 tile's steps; 0 for none."""


class Folder:
    """Folds one stream. Keeps, for each level, the merged columns that wait for their parent tile to be complete."""

    tiles: Tiles

    def __init__(self, tensors: TensorArrays, statistics: tuple[Statistic, ...], *, summarises: bool = True) -> None:
        self.tensors = tensors
        self.summarises = summarises
        """Whether the summary is made of the ranges; else it comes as rows of its own."""
        self.fill = {part: pyramid.identities(part, statistics) for part in PARTS}
        self.rules = {part: pyramid.merge_rules(part, statistics) for part in PARTS}
        self._waiting: dict[tuple[str, int], dict[int, Block]] = {}

    def forget(self) -> None:
        """Let go of the columns that wait for their parent: they are read from the tiles below it then."""
        self._waiting.clear()

    def fold(self, tiles: Tiles, raws: Sequence[Raw], old_frontier: int, frontier: int) -> None:
        """Make tiles of the raw rows below `frontier` (a multiple of 64, not below `old_frontier`)."""
        self.tiles = tiles
        for part in (RANGES, SERIES_PART) if self.summarises else PARTS:
            mine = [raw for raw in raws if raw.part == part and len(raw.steps)]
            touched = sorted({int(tile) for raw in mine for tile in np.unique(raw.steps // WIDTH)})
            folded = [tile for tile in touched if (tile + 1) * WIDTH <= frontier]
            late = [tile for tile in folded if tile * WIDTH < old_frontier]
            thin = {tile: level for tile in late if (level := self.tiles.thin_level(tile))}
            has_summary = part == RANGES and self.summarises
            for tile in folded:
                block = dense(mine, self.fill[part], self.rules[part], tile * WIDTH, (tile + 1) * WIDTH)
                if tile in thin:  # the tiles above cannot be made again, so late rows are added to them
                    self._add(part, tile, block, thin[tile], old_frontier)
                    if has_summary:
                        self._add(SUMMARY, tile, summarise(block, self.tensors), thin[tile], old_frontier)
                    continue
                if tile in late and (stored := self._stored(part, 0, tile)):
                    block = self._both(part, stored, block)
                self.tiles.put(part, tile, block, tile in late)
                self._keep_coarser(part, tile, block, tile in late)
                if has_summary:
                    summary = summarise(block, self.tensors)
                    self.tiles.put(SUMMARY, tile, summary, tile in late)
                    self._keep_coarser(SUMMARY, tile, summary, tile in late)
            made = [tile for tile in folded if tile not in thin]
            self._parents(part, made, old_frontier, frontier)
            if has_summary:
                self._parents(SUMMARY, made, old_frontier, frontier)

    def _add(self, part: str, tile: int, block: Block, thin_level: int, frontier: int) -> None:
        """Merge rows of one level 0 tile into the stored tiles of every level; one that has gone is not begun anew."""
        level, span = 0, WIDTH
        while (tile + 1) * span <= frontier:
            stored = self._stored(part, level, tile)
            if stored is not None or level >= thin_level:
                self.tiles.put(part, tile, self._both(part, stored, block) if stored else block, True)
            level, span, child, tile = level + 1, span * FANOUT, tile, tile // FANOUT
            self._waiting.get((part, level), {}).pop(child, None)  # it is read again
            block = self._joined(part, [self._coarser(part, block)], level, tile * WIDTH)

    def _both(self, part: str, old: Block, new: Block) -> Block:
        rows = union([old.rows, new.rows])
        blocks = [align(old, rows, self.fill[part]), align(new, rows, self.fill[part])]
        return pyramid.merge_blocks(blocks, self.rules[part] | pyramid.PARTS_OF_A_STEP.get(part, {}))

    def _parents(self, part: str, built: Iterable[int], old_frontier: int, frontier: int) -> None:
        level, span = 1, WIDTH * FANOUT
        candidates = {tile // FANOUT for tile in built} | {old_frontier // span}
        # Up while the old frontier's own span may have been completed by a jump ahead.
        while candidates and span <= frontier:
            complete = sorted(tile for tile in candidates if (tile + 1) * span <= frontier)
            written = [tile for tile in complete if self._parent(part, level, tile, (tile + 1) * span <= old_frontier)]
            level, span = level + 1, span * FANOUT
            candidates = {tile // FANOUT for tile in written} | {old_frontier // span}

    def _parent(self, part: str, level: int, tile: int, late: bool) -> bool:
        ready = self._waiting.pop((part, level), {})
        children = range(tile * FANOUT, (tile + 1) * FANOUT)
        blocks = {child: None if late else ready.pop(child, None) for child in children}
        loaded = [each or self._read_coarser(part, level - 1, child) for child, each in blocks.items()]
        remaining = {child: each for child, each in ready.items() if child >= children.stop}
        if remaining:
            self._waiting[part, level] = remaining
        present = [each for each in loaded if each is not None]
        if present:
            block = self._joined(part, present, level, tile * WIDTH)
            self.tiles.put(part, tile, block, late)
            self._keep_coarser(part, tile, block, late)
        return bool(present)

    def _joined(self, part: str, blocks: list[Block], level: int, first: int) -> Block:
        rows = union([block.rows for block in blocks])
        aligned = [align(block, rows, self.fill[part]) for block in blocks]
        names = dict.fromkeys(name for block in aligned for name in block.columns)
        if len(aligned) == FANOUT:
            columns = {name: beside([self._column(part, block, name) for block in aligned]) for name in names}
            return Block(level, first, rows, columns)
        columns = {name: np.full((len(rows), WIDTH), self.fill[part][name]) for name in names}
        for block in aligned:
            at = block.first - first
            for name, values in block.columns.items():
                columns[name][:, at : at + block.width] = values
        return Block(level, first, rows, columns)

    def _column(self, part: str, block: Block, name: str) -> Array:
        """A block lacks the bins of histograms that nothing lay in."""
        values = block.columns.get(name)
        return np.broadcast_to(self.fill[part][name], (len(block.rows), block.width)) if values is None else values

    def _stored(self, part: str, level: int, tile: int) -> Block | None:
        """A stored tile. One that is damaged is made again of the level below; at level 0 it is as if not there."""
        try:
            return self.tiles.get(part, level, tile)
        except TileError as error:
            logger.error("%s tile %d of level %d is made again of what is known: %s", part, tile, level, error)
        children = range(tile * FANOUT, (tile + 1) * FANOUT) if level else range(0)
        present = [each for child in children if (each := self._read_coarser(part, level - 1, child)) is not None]
        if not present:
            return None
        block = self._joined(part, present, level, tile * WIDTH)
        self.tiles.put(part, tile, block, True)
        return block

    def _read_coarser(self, part: str, level: int, tile: int) -> Block | None:
        stored = self._stored(part, level, tile)
        return self._coarser(part, stored) if stored else None

    def _keep_coarser(self, part: str, tile: int, block: Block, late: bool) -> None:
        """For the parent, until it is complete; of late rows it is read from the tiles again."""
        if late:
            self._waiting.get((part, block.level + 1), {}).pop(tile, None)
        else:
            self._waiting.setdefault((part, block.level + 1), {})[tile] = self._coarser(part, block)

    def _coarser(self, part: str, block: Block) -> Block:
        return pyramid.coarser(placed(part, block), self.rules[part], self.fill[part])


def placed(part: str, block: Block) -> Block:
    """A level 0 block of ranges with the columns that say where; others as they are."""
    if part != RANGES or block.level:
        return block
    steps = np.arange(block.first, block.first + block.width)
    return Block(0, block.first, block.rows, pyramid.with_places(block.columns, steps))


def summarise(block: Block, tensors: TensorArrays) -> Block:
    """Least headroom and non-finite counts of all tensors of each kind, per column of a block of ranges."""
    amax, seen = block.columns["amax"], block.columns["call_count"] > 0
    bits = headroom_bits(amax, tensors.log2_max[block.rows])
    seen = seen & ~np.isnan(bits)  # a dtype without known limits has no headroom to sum up
    kinds = tensors.kind_rows[block.rows]
    rows = np.unique(kinds)
    groups = [kinds == row for row in rows]
    columns = {
        "observed": _by_kind(seen.astype(np.float64), groups, np.maximum),
        "bits": _by_kind(np.where(np.isnan(bits), np.inf, bits), groups, np.minimum),
        "nan_count": _by_kind(block.columns["nan_count"], groups, np.add),
        "inf_count": _by_kind(block.columns["inf_count"], groups, np.add),
    }
    return Block(block.level, block.first, rows, columns)


def _by_kind(values: Array, groups: list[Array], ufunc: Any) -> Array:
    dtype = np.float64 if ufunc is np.add else None
    if not any(values.strides) and values.size and values.flat[0] == 0 and ufunc is np.add:
        return np.zeros((len(groups), values.shape[1]))
    return np.stack([ufunc.reduce(values[group], axis=0, dtype=dtype) for group in groups])
