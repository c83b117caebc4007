"""Which tensors a row stands for: one, a module that was closed, or neighbours where there are more rows than room."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch.wire.records import KINDS, TensorEntry
from rangewatch_server.figures.base import label
from rangewatch_server.figures.heatmap import Cells
from rangewatch_server.numerics.headroom import SEVERITY, State

Array = NDArray[Any]

MOST_LISTED = 64
"""Tensors that a row names one by one where they are no range in call order."""

MOST_LEVELS = 32
"""Of modules in modules: a name may have thousands of dots."""

_DIGITS = re.compile(r"(\d+)", re.ASCII)


class Unit(msgspec.Struct, frozen=True):
    """Tensors by ordinal, in the order shown; `module` is the closed module they are all of, or None."""

    tensors: Array
    module: str | None = None


def by_name(order: Array, entries: Sequence[TensorEntry]) -> Array:
    """The same tensors sorted by name, numbers in it by value, then by kind and place in a container."""

    def key(ordinal: int) -> tuple[Any, ...]:
        entry = entries[ordinal]
        return natural(entry.fqn), KINDS.index(entry.kind), entry.index, ordinal

    return np.array(sorted(order.tolist(), key=key), np.int64)


def natural(name: str) -> list[tuple[int, int, str]]:
    """A name as parts to sort by: `blocks.2` comes before `blocks.10`."""
    parts = _DIGITS.split(name)
    return [(1, int(part), "") if at % 2 else (0, 0, part) for at, part in enumerate(parts) if part]


def units(order: Array, entries: Sequence[TensorEntry], closed: Collection[str]) -> list[Unit]:
    """Each tensor of `order`, or its outermost closed module at the place of the first of its tensors."""
    if not closed:
        return [Unit(tensor) for tensor in order[:, None]]
    wanted, outermost = frozenset(closed), dict[str, str | None]()
    found: dict[str | int, list[int]] = {}
    for ordinal in order.tolist():
        fqn = entries[ordinal].fqn
        if fqn not in outermost:
            outermost[fqn] = next((path for path in modules_of(fqn) if path in wanted), None)
        module = outermost[fqn]
        found.setdefault(ordinal if module is None else module, []).append(ordinal)
    return [Unit(np.array(each, np.int64), key if isinstance(key, str) else None) for key, each in found.items()]


def modules_of(fqn: str) -> list[str]:
    """`a`, `a.b` and `a.b.c` of `a.b.c`, outermost first; what lies deeper than `MOST_LEVELS` is one level."""
    return list(itertools.accumulate(fqn.split(".", MOST_LEVELS - 1), lambda path, part: f"{path}.{part}"))


def flat(of: Sequence[Unit]) -> tuple[Array, Array]:
    """All tensors of the units one after the other, and where each unit starts."""
    sizes = [len(unit.tensors) for unit in of]
    tensors = np.concatenate([unit.tensors for unit in of]) if of else np.zeros(0, np.int64)
    return tensors, np.cumsum([0, *sizes[:-1]]) if of else np.zeros(0, np.int64)


def worst_first(cells: Cells) -> Array:
    """Row numbers: those that held NaN or Inf, in order of the first column they did in, then by the worst score."""
    if not cells.bits.size:
        return np.arange(len(cells.bits))
    bad = SEVERITY[cells.state] >= SEVERITY[State.INF]
    began = np.where(bad.any(axis=1), bad.argmax(axis=1), bad.shape[1])
    score = np.fmin.reduce(scores(cells), axis=1)
    return np.lexsort((np.arange(len(score)), np.where(np.isnan(score), np.inf, score), began))


def scores(cells: Cells) -> Array:
    """Scores of the cells that have one, NaN elsewhere: an all-zero tensor's +Inf is none."""
    return np.where((cells.state == State.VALUE) | (cells.state == State.SATURATED), cells.bits, np.nan)


def row(entries: Sequence[TensorEntry], of: Sequence[Unit], is_call_order: bool = True) -> dict[str, Any]:
    """What a row of these neighbouring units is called, and which tensors it stands for.

    `tensors` are all between two in call order, unless it has `module`, or `listed` where they are not many.
    """
    tensors = of[0].tensors if len(of) == 1 else np.concatenate([unit.tensors for unit in of])
    first, last, single = int(tensors[0]), int(tensors[-1]), len(tensors) == 1
    found: dict[str, Any] = {
        "label": label(entries[first]) if single else _name(entries, of, tensors),
        "count": len(tensors), "tensor": first if single else None, "tensors": [first, last],
    }  # fmt: skip
    if len(of) == 1 and of[0].module is not None:
        found["module"] = of[0].module
    elif not single and (not is_call_order or any(unit.module is not None for unit in of)):
        found["listed"] = tensors.tolist() if len(tensors) <= MOST_LISTED else []
    return found


def _name(entries: Sequence[TensorEntry], of: Sequence[Unit], tensors: Array) -> str:
    if len(of) == 1 and of[0].module is not None:
        return f"{of[0].module}.*"
    return group_label([entries[each].fqn for each in tensors])


def group_label(names: list[str]) -> str:
    """What a row that stands for several neighbours is called: the module they share, or the first and the last."""
    if len(set(names)) == 1:
        return names[0] or "(model)"
    columns = zip(*(name.split(".") for name in names), strict=False)
    shared = [parts[0] for parts in itertools.takewhile(lambda parts: len(set(parts)) == 1, columns)]
    return ".".join([*shared, "*"]) if shared else f"{names[0] or '(model)'} to {names[-1] or '(model)'}"


def row_edges(count: int, rows: int) -> Array:
    """Where each of at most `rows` groups of neighbours begins; empty for nothing."""
    per = max(1, -(-count // max(rows, 1)))
    return np.arange(0, count, per)


def rank_row(group: Array) -> dict[str, Any]:
    """What a row that stands for these neighbouring ranks is called."""
    single, first = len(group) == 1, int(group[0])
    name = f"rank {first}" if single else f"ranks {first}-{group[-1]}"
    return {"label": name, "count": len(group), "tensor": None, "tensors": None, "rank": first if single else None}


def grouped(of: Sequence[Unit], edges: Array) -> list[Sequence[Unit]]:
    """The units of each group of neighbours."""
    ends = [*edges.tolist(), len(of)]
    return [of[start:end] for start, end in itertools.pairwise(ends)]
