"""The routers of a run's experts, and the tokens that they gave to each, as agents counted them (`statistics.experts`).

Counts are sums: of several steps and ranks they are those of all together. Ranks that see the same tokens, as those of
one tensor-parallel group do, count each of them; what is said of a load is a share, which that leaves as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch.statistics import experts
from rangewatch.wire.events import Router, Routers
from rangewatch_server.numerics.pyramid import RANGES, Block
from rangewatch_server.store.names import Tensors

Array = NDArray[Any]

SUMS = tuple(each.name for each in experts.ALL[: experts.OF_ROUTER])


class RouterRows(msgspec.Struct, frozen=True):
    """A router with the ordinals of the tensors that have its counts, and its logits (None: not seen)."""

    router: Router
    tensor: int
    logits: int | None


class Loads(NamedTuple):
    """`tokens`: (experts, n) of each column; `routed` and `dropped`: (n,)."""

    tokens: Array
    routed: Array
    dropped: Array

    @property
    def ratio(self) -> Array:
        """(experts, n) over the mean of all experts; NaN where no token was given to any."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(self.tokens / self.tokens.mean(axis=0))

    @property
    def largest(self) -> Array:
        """(n,) the largest load over the mean: 1 + MaxVio."""
        return np.asarray(self.ratio.max(axis=0))


def routers_of(tensors: Tensors, details: Iterable[Routers]) -> list[RouterRows]:
    """Those that any of `details` has, in call order; the later of one name stands."""
    named = {each.fqn: each for known in details for each in known.routers if each.experts <= experts.MOST}
    wanted = {(each.fqn, each.index) for each in named.values()}
    wanted |= {(each.logits, each.logits_index) for each in named.values()}
    places = {
        (entry.fqn, entry.index): ordinal
        for ordinal, entry in enumerate(tensors.entries)
        if entry.kind == "output" and (entry.fqn, entry.index) in wanted
    }
    rows = [
        RouterRows(each, places[each.fqn, each.index], places.get((each.logits, each.logits_index)))
        for each in named.values()
        if (each.fqn, each.index) in places
    ]
    return sorted(rows, key=lambda each: (int(tensors.call_index[each.tensor]), each.tensor))


def is_counted(fill: dict[str, dict[str, float]]) -> bool:
    """Whether any rank of a run counts tokens of experts; `fill` of its names."""
    return experts.ROUTED in fill[RANGES]


def columns_of(routers: Sequence[RouterRows], fill: dict[str, dict[str, float]]) -> list[str]:
    """The statistics to read of these routers."""
    most = max((each.router.experts for each in routers), default=0)
    return [name for name in (*SUMS, *map(experts.column, range(most))) if name in fill[RANGES]]


def loads_of(router: RouterRows, block: Block, columns: dict[str, Array]) -> Loads:
    """Those of one router in a block that has its row; `columns`: the block's, or these merged to a grid."""
    row = int(np.searchsorted(block.rows, router.tensor))
    width = next(iter(columns.values())).shape[1] if columns else 0
    nothing = np.zeros(width)
    one = {name: np.asarray(values[row], np.float64) for name, values in columns.items()}
    tokens = np.stack([one.get(experts.column(at), nothing) for at in range(router.router.experts)])
    return Loads(tokens, one.get(experts.ROUTED, nothing), one.get(experts.DROPPED, nothing))
