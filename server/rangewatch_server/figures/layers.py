"""Tensor by step: a statistic of every tensor or closed module, of one rank or the worst of several.

Which tensors `q` means: part of a name in any case, or a small expression over names, kinds, dtypes and modules.

No pattern of a stranger's is run as a regular expression: a glob is looked for piece by piece, in time that grows with
the length of the name alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from rangewatch.wire.records import KINDS, TensorEntry
from rangewatch_server.core.errors import ApiError
from rangewatch_server.figures import reading
from rangewatch_server.figures.base import Figure, Grid, Params, grid_of, label
from rangewatch_server.figures.heatmap import Cells, heatmap
from rangewatch_server.figures.heatmap_values import CELL as COLUMNS
from rangewatch_server.figures.heatmap_values import HEADROOM, Shown, named
from rangewatch_server.figures.module_tree import tree
from rangewatch_server.figures.rows import (
    Unit,
    by_name,
    flat,
    group_label,
    grouped,
    row,
    row_edges,
    units,
    worst_first,
)
from rangewatch_server.numerics.pyramid import Block
from rangewatch_server.store.names import Tensors

if TYPE_CHECKING:
    from rangewatch_server.query.reader import RunReader


Test = Callable[[TensorEntry], bool]

MAX_TEXT = 4_200  # a name has 4,096 characters at most, and its kind follows it
MAX_EXPRESSION = 500
MAX_TERMS = 32
KEYS = ("kind", "dtype", "type", "in")
_EXPRESSION = re.compile(rf"[*?|]|(?:^|\s)!|(?:^|[\s!])(?:{'|'.join(KEYS)}):", re.IGNORECASE)


def name_filter(q: str) -> Test:
    """The test that `q` is. Raises `ApiError` in one line that says what is wrong with it."""
    if len(q) > MAX_TEXT:
        raise _bad(f"it has {len(q)} characters; at most {MAX_TEXT}")
    if _EXPRESSION.search(q) is None:
        return _part(q.lower())
    if len(q) > MAX_EXPRESSION:
        raise _bad(f"an expression has at most {MAX_EXPRESSION} characters")
    alternatives = [each.split() for each in q.lower().split("|")]
    if not all(alternatives):
        raise _bad("there is nothing on one side of |")
    if sum(map(len, alternatives)) > MAX_TERMS:
        raise _bad(f"an expression has at most {MAX_TERMS} terms")
    tests = [[_term(term) for term in terms] for terms in alternatives]
    return lambda entry: any(all(test(entry) for test in terms) for terms in tests)


def _bad(text: str) -> ApiError:
    return ApiError(422, "bad_parameter", f"q: {text}")


def _term(term: str) -> Test:
    if term.startswith("!"):
        if term == "!":
            raise _bad("there is nothing after !")
        refused = _term(term[1:])
        return lambda entry: not refused(entry)
    key, colon, value = term.partition(":")
    if colon and key in KEYS:
        return _keyed(key, value)
    if "*" in term or "?" in term:
        matches = glob(term)
        return lambda entry: matches((entry.fqn or "(model)").lower())
    return _part(term)


def _part(text: str) -> Test:
    return lambda entry: text in label(entry).lower()


def _keyed(key: str, value: str) -> Test:
    if not value:
        raise _bad(f"there is nothing after {key}:")
    if key == "in":
        return lambda entry: is_within(entry.fqn.lower(), value)
    matches = glob(value)
    if key == "kind":
        if not any(matches(kind) for kind in KINDS):
            raise _bad(f"kind {value[:40]!r} is not one of {', '.join(KINDS)}")
        return lambda entry: matches(entry.kind)
    if key == "dtype":
        return lambda entry: matches(entry.dtype.lower())
    return lambda entry: matches(entry.module.lower())


def is_within(name: str, module: str) -> bool:
    """Whether a dotted name is a module's own or lies below it."""
    return name == module or name.startswith(f"{module}.")


def glob(pattern: str) -> Callable[[str], bool]:
    """Whether all of a text is as `pattern`: `*` any characters, `?` one. Pieces between stars have fixed lengths."""
    texts = pattern.split("*")
    pieces = [re.compile(".".join(map(re.escape, each.split("?"))), re.DOTALL) for each in texts]
    if len(pieces) == 1:
        return lambda text: pieces[0].fullmatch(text) is not None
    first, *middle, last = pieces
    tail = len(texts[-1])

    def matches(text: str) -> bool:
        found = first.match(text)
        for piece in middle:  # the first place is never worse than a later one
            found = found and piece.search(text, found.end())
        return found is not None and len(text) - tail >= found.end() and last.match(text, len(text) - tail) is not None

    return matches


__all__ = ["COLUMNS", "FIGURE", "arranged", "cells_of", "chosen", "group_label", "read", "row_edges"]

Array = NDArray[Any]


def chosen(tensors: Tensors, kinds: Sequence[str], q: str, module: str = "") -> Array:
    """Ordinals of the tensors of those kinds (all when empty) that `q` means and `module` has, in call order.

    Raises `ApiError` where `q` is an expression that cannot be read.
    """
    is_wanted = name_filter(q)
    ordinals = [
        ordinal
        for ordinal, entry in enumerate(tensors.entries)
        if (not kinds or entry.kind in kinds) and is_wanted(entry) and (not module or is_within(entry.fqn, module))
    ]
    found = np.array(ordinals, np.int64)
    return found[np.argsort(tensors.call_index[found], kind="stable")]


def build(run: RunReader, params: Params) -> dict[str, Any]:
    """The figure `layers` of docs/api.md."""
    tensors, shown = run.names().tensors, named(params.statistic)
    order = chosen(tensors, params.kinds, params.q)
    cut = grid_of(run, structs.replace(params, columns=reading.columns_for(shown, params.columns, len(order))))
    cells = read(run, params, cut, order, tensors, shown)
    notes = [reading.note(run, params.ranks, cut, len(order), shown)]
    if shown.is_full_set:
        cells, when = reading.held(cells, cut.per)
        notes.append(when)
    of, pooled = arranged(tensors, params, order, cells, 0)
    starts = row_edges(len(of), params.rows)
    groups = [row(tensors.entries, group, params.sort == "call") for group in grouped(of, starts)]
    found = heatmap(pooled.pooled(starts, 0), groups, cut, shown)
    found["meta"]["note"] = "; ".join(each for each in (found["meta"]["note"], *notes) if each)
    if params.tree:
        found["meta"]["modules"] = tree(tensors.entries, order, cells, shown, params.tree)
    return found


def read(run: RunReader, params: Params, cut: Grid, order: Array, tensors: Tensors, shown: Shown = HEADROOM) -> Cells:
    """Cells of the tensors `order`, in that order, pooled to the grid's columns."""
    cells = reading.read(run, params.ranks, cut, order, tensors, shown)
    reading.mark_stale(run, params.ranks, cut, cells.state)
    return cells


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
    first = worst_first(pooled if axis == 0 else Cells(pooled.bits.T, pooled.state.T))
    return [of[at] for at in first], pooled.taken(first, axis)


def cells_of(block: Block, tensors: Tensors) -> Cells:
    """Headroom and state of every cell of a block of ranges."""
    return reading.cells_of(block, tensors, HEADROOM)


FIGURE = Figure("layers", "Headroom by layer", "Each tensor's headroom in bits over steps, in call order.", build)
