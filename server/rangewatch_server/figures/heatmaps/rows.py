"""Rows: a tensor, a closed module, or neighbours where there are more rows than room; in the order asked for."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch.wire.records import KINDS, TensorEntry
from rangewatch_server.figures.base import Params, label
from rangewatch_server.figures.heatmaps.heatmap import Cells
from rangewatch_server.numerics.headroom import SEVERITY, State
from rangewatch_server.store.names import Tensors

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
    members: dict[str | int, list[int]] = {}
    for ordinal in order.tolist():
        fqn = entries[ordinal].fqn
        if fqn not in outermost:
            outermost[fqn] = next((path for path in modules_of(fqn) if path in wanted), None)
        module = outermost[fqn]
        members.setdefault(ordinal if module is None else module, []).append(ordinal)
    return [Unit(np.array(each, np.int64), key if isinstance(key, str) else None) for key, each in members.items()]


BANDS_FROM = 160
"""Tensors from which on blocks of a model begin closed: more rows than a screen names."""
MOST_BANDS = 200


def bands(order: Array, entries: Sequence[TensorEntry]) -> tuple[str, ...]:
    """The outermost modules that are numbered, as `blocks.3`, of a model with many tensors; none of a small one."""
    if len(order) < BANDS_FROM:
        return ()
    of = (modules_of(fqn) for fqn in dict.fromkeys(entries[ordinal].fqn for ordinal in order.tolist()))
    numbered = (next((path for path in paths if path.rpartition(".")[2].isdecimal()), None) for paths in of)
    found = tuple(dict.fromkeys(path for path in numbered if path is not None))
    return found if 1 < len(found) <= MOST_BANDS else ()


def modules_of(fqn: str) -> list[str]:
    """`a`, `a.b` and `a.b.c` of `a.b.c`, outermost first; what lies deeper than `MOST_LEVELS` is one level."""
    return list(itertools.accumulate(fqn.split(".", MOST_LEVELS - 1), lambda path, part: f"{path}.{part}"))


def flat(of: Sequence[Unit]) -> tuple[Array, Array]:
    """All tensors of the units one after the other, and where each unit starts."""
    sizes = [len(unit.tensors) for unit in of]
    tensors = np.concatenate([unit.tensors for unit in of]) if of else np.zeros(0, np.int64)
    return tensors, np.cumsum([0, *sizes[:-1]]) if of else np.zeros(0, np.int64)


def arranged(tensors: Tensors, params: Params, order: Array, cells: Cells, axis: int) -> tuple[list[Unit], Cells]:
    """The tensors as closed modules and single ones in the order asked for, and the cells so.

    `cells` has the tensors of `order` along `axis`.
    """
    sorted_order = by_name(order, tensors.entries) if params.sort == "name" else order
    of = units(sorted_order, tensors.entries, params.closed)
    members, starts = flat(of)
    if not of or (params.sort == "call" and not params.closed):
        return of, cells
    place = np.empty(len(tensors.entries), np.int64)
    place[order] = np.arange(len(order))
    pooled = cells.taken(place[members], axis).pooled(starts, axis)
    if params.sort != "worst":
        return of, pooled
    first = worst_first(pooled if axis == 0 else pooled.transposed)
    return [of[at] for at in first], pooled.taken(first, axis)


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
    return np.where(cells.has_value, cells.bits, np.nan)


def row(entries: Sequence[TensorEntry], of: Sequence[Unit], is_call_order: bool = True) -> dict[str, Any]:
    """What a row of these neighbouring units is called, and which tensors it stands for.

    `tensors` are all between two in call order, unless it has `module`, or `listed` where they are not many.
    """
    tensors = of[0].tensors if len(of) == 1 else np.concatenate([unit.tensors for unit in of])
    first, last, single = int(tensors[0]), int(tensors[-1]), len(tensors) == 1
    row_meta: dict[str, Any] = {
        "label": label(entries[first]) if single else _name(entries, of, tensors),
        "count": len(tensors), "tensor": first if single else None, "tensors": [first, last],
    }  # fmt: skip
    if len(of) == 1 and of[0].module is not None:
        row_meta["module"] = of[0].module
    elif not single and (not is_call_order or any(unit.module is not None for unit in of)):
        row_meta["listed"] = tensors.tolist() if len(tensors) <= MOST_LISTED else []
    return row_meta


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


def grouped(of: Sequence[Unit], edges: Array) -> list[Sequence[Unit]]:
    """The units of each group of neighbours."""
    ends = [*edges.tolist(), len(of)]
    return [of[start:end] for start, end in itertools.pairwise(ends)]
