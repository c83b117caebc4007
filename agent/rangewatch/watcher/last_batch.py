"""A dead rank's last batches, made of what it left in memory by the same rules as its own."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from rangewatch import wire
from rangewatch.allowed_inf import AllowedInf
from rangewatch.merged_steps import merge_steps
from rangewatch.records import Batch, Event, Opening, RankInfo
from rangewatch.spool.record import Encoded
from rangewatch.step_buffer import EMPTY_BLOCK, Block, add_skipped_steps, range_rows, series_rows
from rangewatch.watcher.recovery import Names


class Last(NamedTuple):
    """A batch and its catalogue's `Opening`, both encoded."""

    batch: Encoded
    opening: bytes


def last_batches(
    info: RankInfo,
    names: Names,
    blocks: Sequence[Block],
    events: tuple[Event, ...],
    sequence: int,
    allow_inf: tuple[str, ...] = (),
) -> list[Last]:
    """One batch a block, from `sequence` on; the last has the events. Empty where there is nothing to tell."""
    if not blocks and not events:
        return []
    catalogue = names.catalogue()
    digest, opening = wire.catalogue_digest(catalogue), wire.encode(Opening(info, catalogue))
    known: Any = SimpleNamespace(entries=names.tensors)
    allowed = AllowedInf(allow_inf, known)
    made = []
    every = list(blocks) or [EMPTY_BLOCK]
    for number, block in enumerate(every, sequence):
        allowed.take_out(block, len(names.tensors))  # the rank has said which long ago
        add_skipped_steps(block.series)
        rows, series = range_rows(merge_steps(block, info.ship_every)), series_rows(block.series)
        told = events if block is every[-1] else ()
        batch = Batch(info.run, info.rank, info.incarnation, number, digest, rows, series, told, number)
        whole = tuple(sorted(block.traced))
        made.append(Last(Encoded(wire.encode(batch), len(names.tensors), digest, number, whole), opening))
    return made
