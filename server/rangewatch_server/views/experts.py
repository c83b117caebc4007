"""How each router of a mixture of experts has spread tokens, over some steps and ranks together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rangewatch.statistics import experts
from rangewatch.wire.events import Routers
from rangewatch_server.figures.base import grid
from rangewatch_server.figures.lines import to_grid
from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.query.reader import RunReader
from rangewatch_server.query.routers import RouterRows, columns_of, is_counted, loads_of, routers_of

COLUMNS = 8  # into which the steps are merged as they are read


def routers_of_run(run: RunReader, ranks: Sequence[int], start: int, stop: int) -> dict[str, Any]:
    """The answer of docs/api.md: routers in call order."""
    names = run.names()
    known: list[RouterRows] = []
    if is_counted(names.fill):
        details = (event.read(Routers) for event in run.newest_events([Routers.KIND]))
        known = routers_of(names.tensors, [each for each in details if each is not None])
    cut = grid(start, stop, COLUMNS)
    answer: dict[str, Any] = {
        "run": run.name, "start": max(run.first_step or 0, cut.first * cut.per),
        "stop": min((run.last_step or 0) + 1, (cut.first + cut.width) * cut.per), "routers": [],
    }  # fmt: skip
    if not known or cut.stop <= cut.start:
        return answer
    tensors = {each.tensor for each in known} | {each.logits for each in known if each.logits is not None}
    rows = np.array(sorted(tensors))
    block = run.stored(RANGES, ranks, cut.level, cut.start, cut.stop, ["amax", *columns_of(known, names.fill)], rows)
    columns = to_grid(block, cut, names.rules[RANGES])
    sums = {
        name: (values.max(axis=1) if name == "amax" else np.asarray(values, np.float64).sum(axis=1))[:, None]
        for name, values in columns.items()
    }
    return answer | {"routers": [_router(each, block, sums) for each in known]}


def _router(of: RouterRows, block: Any, sums: dict[str, Any]) -> dict[str, Any]:
    loads = loads_of(of, block, sums)
    tokens, given, dropped = loads.tokens[:, 0], float(loads.tokens.sum()), float(loads.dropped[0])
    entropy = amax = None
    if of.logits is not None:
        at = int(np.searchsorted(block.rows, of.logits))
        amax = float(sums["amax"][at, 0])
        count = float(sums[experts.ENTROPY_COUNT][at, 0]) if experts.ENTROPY_COUNT in sums else 0.0
        entropy = float(sums[experts.ENTROPY][at, 0]) / 1000 / count if count else None
    order = np.argsort(-tokens, kind="stable")
    return {
        "name": of.router.fqn, "tensor": of.tensor, "logits": of.logits, "experts": of.router.experts,
        "top_k": of.router.top_k, "routed": int(loads.routed[0]), "tokens": [int(each) for each in tokens],
        "largest": float(loads.largest[0]) if given else None, "largest_expert": int(order[0]) if given else None,
        "unused": int((tokens == 0).sum()) if given else 0,
        "dropped_fraction": dropped / (given + dropped) if of.router.sees_drops and given + dropped else None,
        "entropy_bits": entropy, "logit_amax": amax,
    }  # fmt: skip
