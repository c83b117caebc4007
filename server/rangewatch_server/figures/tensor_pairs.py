"""Which tensor of one run is which of another: by name, kind and index, and never by guess. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch_server.store.names import Tensors

Array = NDArray[Any]

Name = tuple[str, str, int]


class Pairs(msgspec.Struct, frozen=True):
    """`here[i]` and `there[i]` are ordinals of the same tensor in two runs; the others are of one only."""

    here: Array
    there: Array
    only_here: list[int]
    only_there: list[int]


def pairs(here: Tensors, order: Array, there: Tensors, other_order: Array) -> Pairs:
    """Pairs in the order of `order`. Of a name that has several dtypes, those of one dtype belong together."""
    others = _by_name(there, other_order)
    found: dict[int, int] = {}
    for name, mine in _by_name(here, order).items():
        found |= _same(mine, others.get(name, {}))
    matched = [int(each) for each in order if int(each) in found]
    taken = set(found.values())
    return Pairs(
        np.array(matched, np.int64),
        np.array([found[each] for each in matched], np.int64),
        [int(each) for each in order if int(each) not in found],
        [int(each) for each in other_order if int(each) not in taken],
    )


def _by_name(tensors: Tensors, order: Array) -> dict[Name, dict[str, int]]:
    """(fqn, kind, index) -> dtype -> ordinal."""
    found: dict[Name, dict[str, int]] = defaultdict(dict)
    for ordinal in order.tolist():
        entry = tensors.entries[ordinal]
        found[entry.fqn, entry.kind, entry.index][entry.dtype] = ordinal
    return found


def _same(here: dict[str, int], there: dict[str, int]) -> dict[int, int]:
    """Two of one dtype; and of what is left one with one, as a run in bfloat16 is compared with one in float16."""
    found = {ordinal: there[dtype] for dtype, ordinal in here.items() if dtype in there}
    left = [ordinal for dtype, ordinal in here.items() if dtype not in there]
    others = [ordinal for dtype, ordinal in there.items() if dtype not in here]
    return found | (dict(zip(left, others, strict=True)) if len(left) == len(others) == 1 else {})
