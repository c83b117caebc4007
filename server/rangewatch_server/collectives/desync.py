"""Ranks that called different things at one sequence of one group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from rangewatch_server.collectives.records import Group, Names, Records
from rangewatch_server.collectives.wording import named, sized

if TYPE_CHECKING:
    from rangewatch_server.collectives.matching import Block

MAX_DESYNCS = 16
"""Told apart a block: after the first one everything that follows in the group may differ."""


class Side(msgspec.Struct, frozen=True):
    """What some ranks called."""

    op: str
    dtype: str
    bytes: float
    ranks: tuple[int, ...]


class Desync(msgspec.Struct, frozen=True):
    """One sequence at which ranks differ. `sides`: most ranks first. `odd_ranks`: all but the first side's; empty where
    no side has most ranks. `following`: later sequences of the group that differ too."""

    group: Group
    age: int
    sequence: int
    step: int
    sides: tuple[Side, ...]
    odd_ranks: tuple[int, ...]
    following: int
    sentence: str


def desyncs(block: Block, runs: Mapping[int, Records], names: Names) -> list[Desync]:
    """The first differing sequences of a block, whose `op`, `dtype` and `bytes` there become those of most ranks."""
    places = np.flatnonzero(block.is_desync)
    found = []
    for number, place in enumerate(places[:MAX_DESYNCS].tolist()):
        sides = _sides(int(block.sequence[place]), runs)
        (block.op[place], block.dtype[place], block.bytes[place]), _ = sides[0]
        found.append(_desync(block, place, sides, names, len(places) - 1 - number))
    return found


_Called = tuple[int, int, float]


def _sides(sequence: int, runs: Mapping[int, Records]) -> list[tuple[_Called, list[int]]]:
    ranks_by_call: defaultdict[_Called, list[int]] = defaultdict(list)
    for rank, run in runs.items():
        at = int(np.searchsorted(run.sequence, sequence))
        if at < len(run) and run.sequence[at] == sequence:
            ranks_by_call[int(run.op[at]), int(run.dtype[at]), float(run.bytes[at])].append(rank)
    return sorted(ranks_by_call.items(), key=lambda side: (-len(side[1]), side[1]))


def _desync(block: Block, place: int, called: list[tuple[_Called, list[int]]], names: Names, following: int) -> Desync:
    sides = tuple(
        Side(names.ops[op], names.dtypes[dtype] if dtype >= 0 else "", size, tuple(ranks))
        for (op, dtype, size), ranks in called
    )
    has_most = len(sides) > 1 and len(sides[0].ranks) > len(sides[1].ranks)
    odd = tuple(sorted(rank for side in sides[1:] for rank in side.ranks)) if has_most else ()
    sequence, step = int(block.sequence[place]), int(block.step[place])
    sentence = mismatch(sides, block.group, sequence)
    return Desync(block.group, block.age, sequence, step, sides, odd, following, sentence)


def mismatch(sides: tuple[Side, ...], group: Group, sequence: int, where: Mapping[int, str] | None = None) -> str:
    """Who called what, the odd ones first. `where`: rank -> line of code."""
    reported = []
    for side in reversed(sides):
        places = sorted({where[rank] for rank in side.ranks if rank in where}) if where else []
        at = f" at {', '.join(places[:2])}" if places else ""
        reported.append(f"{named(side.ranks)} called {side.op} of {sized(side.bytes, side.dtype)}{at}")
    return f"At collective {sequence} of group {group.title} {'; '.join(reported)}."
