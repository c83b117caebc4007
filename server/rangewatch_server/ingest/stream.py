"""What ingest remembers of one stream between commits: sequences, the steps not yet in tiles, the worst so far.

The tiles of one stream inside a transaction of the writer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, and_, bindparam, delete, insert, select

from rangewatch.wire.records import Batch
from rangewatch_server.ingest import skipped
from rangewatch_server.ingest.fold import Folder
from rangewatch_server.numerics import first_nonfinite
from rangewatch_server.numerics.headroom import headroom_bits
from rangewatch_server.numerics.pyramid import RANGES, Block
from rangewatch_server.store import tables, tiles
from rangewatch_server.store.batch_checks import MAX_STEP
from rangewatch_server.store.exit_state import state_after
from rangewatch_server.store.names import TensorArrays
from rangewatch_server.store.rows import Raw, clip
from rangewatch_server.store.tiles import WIDTH

Array = NDArray[Any]

SUMMARY_FIELDS = (
    "last_seen_ns", "state", "contiguous", "skipped", "frontier", "rewrites", "version", "first_step", "last_step",
    "least_bits", "least_step", "least_tensor", "bad_step", "bad_tensor", "bad_is_nan", "skipped_steps",
    "loss_scale_first", "loss_scale_last",
)  # fmt: skip


Read = Callable[[bytes], list[Raw]]
"""A batch's body -> its rows."""


class Pending(msgspec.Struct):
    """A batch whose steps are not all in tiles."""

    body: bytes
    raws: list[Raw] | None
    """Its rows; None: they are read from the body again when they are needed."""
    batch: Batch | None
    """Until it is counted: when no sequence before it is missing any more."""
    is_stored: bool = False
    """Whether the body is in the database."""
    low: int = 0
    """Rows of the steps below are in tiles."""
    first: int = 0
    last: int = -1
    """Its steps; none where `last` is below `first`."""

    def __post_init__(self) -> None:
        steps = [raw.steps for raw in self.raws or () if len(raw.steps)]
        if steps:
            self.first, self.last = min(int(each[0]) for each in steps), max(int(each[-1]) for each in steps)

    def cut(self, frontier: int) -> None:
        """Its rows below the frontier are in tiles."""
        self.low = frontier
        if self.raws is not None:
            self.raws = [_from(raw, frontier) for raw in self.raws if raw.steps[-1] >= frontier]


class StreamState(msgspec.Struct):
    """One row of `streams`, and what is not yet folded: `pending` by sequence, some perhaps beyond a gap."""

    id: int
    run_id: int
    rank: int
    incarnation: str = ""
    ordinal: int = 0
    last_seen_ns: int = 0
    state: str = "open"
    contiguous: int = -1
    skipped: list[skipped.Range] = []
    """Sequences up to `contiguous` that never came."""
    frontier: int = 0
    rewrites: int = 0
    version: int = 0
    first_step: int | None = None
    last_step: int | None = None
    least_bits: float | None = None
    least_step: int | None = None
    least_tensor: int | None = None
    bad_step: int | None = None
    bad_tensor: int | None = None
    bad_is_nan: int | None = None
    skipped_steps: int = 0
    loss_scale_first: float | None = None
    loss_scale_last: float | None = None
    pending: dict[int, Pending] = {}
    folder: Folder | None = None

    def has(self, sequence: int) -> bool:
        """Whether the batch of that sequence is stored already."""
        if sequence in self.pending:
            return True
        return sequence <= self.contiguous and not skipped.holds(self.skipped, sequence)

    def stored_up_to(self, sequence: int = 0) -> int:
        """What an agent is answered that is at `sequence`: up to where nothing from there on may yet come."""
        return skipped.stored_up_to(self.skipped, self.contiguous, sequence)

    def add(self, batch: Batch, raws: list[Raw], body: bytes, tensors: TensorArrays, now_ns: int) -> list[Raw]:
        """Take a batch not seen before; the caller has checked it. Returns the rows that count from now on."""
        self.pending[batch.sequence] = Pending(body, raws, batch)
        if batch.sequence <= self.contiguous:
            self.skipped = skipped.without(self.skipped, batch.sequence)
        if batch.settled > self.contiguous + 1:
            self.skipped = skipped.passed(self.skipped, self.contiguous + 1, batch.settled, self.pending)
            self.contiguous = batch.settled - 1
        while self.contiguous + 1 in self.pending:
            self.contiguous += 1
        self.last_seen_ns = now_ns
        ready = [self.pending[each] for each in sorted(self.pending) if each <= self.contiguous]
        new = [each for each in ready if each.batch is not None]
        for pending in new:
            self._count(pending, tensors)
        return [raw for pending in new for raw in pending.raws or ()]

    def restore(self, sequence: int, body: bytes, raws: list[Raw], batch: Batch) -> None:
        """Take a batch that was read back: what of it lies before the frontier is in tiles already."""
        waits = batch if sequence > self.contiguous else None
        pending = self.pending[sequence] = Pending(body, raws, waits, is_stored=True)
        # What lies wholly below the frontier came late and has yet to be folded: a batch that is in tiles is deleted.
        if waits is None and pending.last >= self.frontier:
            pending.cut(self.frontier)

    def _count(self, pending: Pending, tensors: TensorArrays) -> None:
        """What a batch says of the run as a whole; once, and not while sequences before it are missing."""
        batch, pending.batch = pending.batch, None
        assert batch is not None, "counted once"
        for raw in pending.raws or ():
            self._extend(raw)
            if raw.part == RANGES:
                self._worst(raw, tensors)
        self._loss_scale(batch)
        for event in batch.events:
            self.state = state_after(self.state, event)

    def _counted(self) -> list[Pending]:
        """Batches without a gap before them, in sequence."""
        return [self.pending[sequence] for sequence in sorted(self.pending) if sequence <= self.contiguous]

    def waiting_rows(self, read: Read) -> list[Raw]:
        """Rows of the batches without a gap before them that are not in tiles, in sequence."""
        rows: list[Raw] = []
        for sequence, each in sorted(self.pending.items()):
            if sequence > self.contiguous:
                break
            if each.raws is not None:
                rows += each.raws
            else:
                rows += [
                    _from(raw, each.low) for raw in read(each.body) if len(raw.steps) and raw.steps[-1] >= each.low
                ]
        return rows

    def folded_to(self, frontier: int) -> list[int]:
        """Move the frontier; sequences now wholly in tiles are dropped, and returned if they were stored."""
        self.frontier = frontier
        for each in self._counted():
            each.cut(frontier)
        done = [number for number, each in self.pending.items() if number <= self.contiguous and each.last < each.low]
        return [each for each in done if self.pending.pop(each).is_stored]

    def foldable(self) -> int:
        """The frontier that contiguous batches allow: the last multiple of 64 steps they have all passed."""
        last = max((each.last for each in self._counted()), default=-1)
        # A rank that has ended sends no more: its last steps need not wait for the rest of their span.
        stop = last if self.state == "open" else last + WIDTH
        return max(self.frontier, stop // WIDTH * WIDTH if last >= 0 else 0)

    def is_late(self) -> bool:
        """Whether there are rows for tiles that are made already."""
        return any(each.low <= each.first < self.frontier and each.first <= each.last for each in self._counted())

    def is_foldable(self) -> bool:
        """Whether there is something to fold, or batches that are wholly in tiles."""
        spent = (each.last < each.low for each in self._counted())
        return self.foldable() > self.frontier or self.is_late() or any(spent)

    def let_go(self) -> None:
        """Keep no more than what came: rows are read from the bodies again, and merged columns from their tiles."""
        for each in self.pending.values():
            if each.batch is None:
                each.raws = None
        if self.folder is not None:
            self.folder.forget()

    def values(self) -> dict[str, Any]:
        """The columns of `streams` that change, and `b_id`."""
        values = {name: getattr(self, name) for name in SUMMARY_FIELDS}
        return {"b_id": self.id} | values | {"skipped": skipped.encoded(self.skipped)}

    def unstored(self) -> list[dict[str, Any]]:
        """Rows of `batches` for the pending bodies that are not in the database; they count as stored from here on."""
        new = [(sequence, each) for sequence, each in self.pending.items() if not each.is_stored]
        rows = [
            {"run_id": self.run_id, "stream_id": self.id, "sequence": sequence, "body": each.body}
            for sequence, each in new
        ]
        for _, each in new:
            each.is_stored = True
        return rows

    def _extend(self, raw: Raw) -> None:
        first, last = int(raw.steps[0]), int(raw.steps[-1])
        self.first_step = first if self.first_step is None else min(self.first_step, first)
        self.last_step = last if self.last_step is None else max(self.last_step, last)

    def _worst(self, raw: Raw, tensors: TensorArrays) -> None:
        amax = raw.columns["amax"].max(axis=1, keepdims=True)
        bits = headroom_bits(amax, tensors.log2_max[raw.rows])[:, 0]
        row = int(np.argmin(np.where(np.isnan(bits), np.inf, bits)))
        if bits[row] < (np.inf if self.least_bits is None else self.least_bits):
            self.least_bits, self.least_tensor = float(bits[row]), int(raw.rows[row])
            self.least_step = int(raw.steps[int(raw.columns["amax"][row].argmax())])
        self._first_bad(raw, tensors)

    def _first_bad(self, raw: Raw, tensors: TensorArrays) -> None:
        nans, infs = raw.columns["nan_count"], raw.columns["inf_count"]
        if not (nans.any() or infs.any()):
            return
        bad = (nans > 0) | (infs > 0)
        column = int(bad.any(axis=0).argmax())
        step = int(raw.steps[column])
        if self.bad_step is None or step < self.bad_step:
            values = {name: raw.columns[name][:, column] for name in first_nonfinite.COLUMNS if name in raw.columns}
            row = first_nonfinite.first_bad(values, tensors.call_index[raw.rows], tensors.kind_rows[raw.rows])
            assert row is not None, "the column holds a bad one"
            self.bad_step, self.bad_tensor = step, int(raw.rows[row])
            self.bad_is_nan = int(nans[row, column] > 0)

    def _loss_scale(self, batch: Batch) -> None:
        for rows in batch.series:
            if rows.name == "skipped_step":
                self.skipped_steps += int(np.count_nonzero(rows.values > 0))
            elif rows.name == "loss_scale" and len(rows.values):
                finite = rows.values[np.isfinite(rows.values)]
                if len(finite):
                    self.loss_scale_last = float(finite[-1])
                    first = self.loss_scale_first
                    self.loss_scale_first = float(finite[0]) if first is None else first


def _from(raw: Raw, frontier: int) -> Raw:
    return raw if raw.steps[0] >= frontier else clip(raw, frontier, MAX_STEP + 1)


# Built once: making a statement costs as much as running it.
_tile = tables.tiles.c
_TILE_KEY = ("run_id", "stream_id", "part", "level", "tile")
_THIS_TILE = and_(*(_tile[name] == bindparam(f"b_{name}") for name in _TILE_KEY))
INSERT_TILE = insert(tables.tiles).values({name: bindparam(f"b_{name}") for name in _TILE_KEY})
SELECT_TILE = select(_tile.payload).where(_THIS_TILE)
SELECT_THINNED = select(tables.streams.c.thin_step, tables.streams.c.thin_level).where(
    tables.streams.c.id == bindparam("b_id")
)
DELETE_TILE = delete(tables.tiles).where(_THIS_TILE)


class StreamTiles:
    """Tiles of one stream, through the transaction's connection; new ones wait in `rows` to be inserted together."""

    def __init__(self, connection: Connection, run_id: int, stream_id: int, rows: list[dict[str, Any]]) -> None:
        self.connection = connection
        self.run_id = run_id
        self.stream_id = stream_id
        self.rows = rows
        self._thinned: tuple[int, int] | None = None

    def get(self, part: str, level: int, tile: int) -> Block | None:
        """A stored tile, or one that waits; None when there is none."""
        self.flush()
        payload = self.connection.execute(SELECT_TILE, self._key(part, level, tile)).scalar()
        if payload is None:
            return None
        rows, columns = tiles.decode(payload)
        return Block(level, tile * tiles.WIDTH, rows, columns)

    def put(self, part: str, tile: int, block: Block, replace: bool) -> None:
        """Store a tile; `replace`: it may be there already."""
        key = self._key(part, block.level, tile)
        if replace:
            self.flush()
            self.connection.execute(DELETE_TILE, key)
        self.rows.append({**key, "payload": tiles.encode(block.rows, block.columns)})

    def thin_level(self, tile: int) -> int:
        """Under which level retention has taken the tiles of a level 0 tile's steps; 0 for none."""
        if self._thinned is None:
            row = self.connection.execute(SELECT_THINNED, {"b_id": self.stream_id}).first()
            self._thinned = (0, 0) if row is None else (row.thin_step, row.thin_level)
        step, level = self._thinned
        return level if tile * tiles.WIDTH < step else 0

    def flush(self) -> None:
        """Insert what waits."""
        if self.rows:
            self.connection.execute(INSERT_TILE, self.rows)
            self.rows.clear()

    def _key(self, part: str, level: int, tile: int) -> dict[str, Any]:
        place = {"b_part": part, "b_level": level, "b_tile": tile}
        return {"b_run_id": self.run_id, "b_stream_id": self.stream_id, **place}
