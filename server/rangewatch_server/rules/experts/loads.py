"""What the rules on experts look at: the last steps of each router, all ranks added up."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from rangewatch.wire.events import Routers
from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.query.routers import RouterRows, columns_of, is_counted, loads_of, routers_of
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.recent import Array
from rangewatch_server.rules.rule import Remedy

WINDOW = 128
"""Steps up to the last that are read: to say since when it is so."""

LASTING = 32
"""Steps, up to the last, in which it must be so."""

FIRST_STEPS = 16
"""Of a run, which are left out: a router that was just initialised spreads tokens as chance has it."""

FEWEST_TOKENS = 100.0
"""That the mean expert must have got in `LASTING` steps, or chance alone may leave one without."""

MOST_RANKS = 64
"""Ranks that are added up where they are not stored so; of more, the lowest."""


class Recent(msgspec.Struct, frozen=True):
    """The last steps of one router in which tokens were routed: `steps` (n,), `tokens` (experts, n), `routed` (n,).

    `lasting`: (n,) bool, those of the last `LASTING` steps. `ranks`: how many were added up.
    """

    rows: RouterRows
    steps: Array
    tokens: Array
    routed: Array
    lasting: Array
    ranks: int

    @property
    def share(self) -> Array:
        """(experts, n) of the tokens of a step, how many went to each expert."""
        return np.asarray(self.tokens / np.maximum(self.routed, 1))

    @property
    def is_judged(self) -> bool:
        """Whether there were steps and tokens enough to say anything."""
        tokens = self.tokens[:, self.lasting]
        return bool(tokens.size) and float(tokens.sum() / len(tokens)) >= FEWEST_TOKENS


def recent_loads(evidence: Evidence) -> list[Recent]:
    """Of each router that can be judged, in call order; none where the steps so far are a run's first."""
    return list(evidence.once("experts", lambda: _recent_loads(evidence)))


def _recent_loads(evidence: Evidence) -> list[Recent]:
    names = evidence.run.names()
    stop, begin = evidence.whole_stop, evidence.start + FIRST_STEPS
    if not is_counted(names.fill) or stop - begin < LASTING:
        return []
    routers = routers_of(names.tensors, [each for _, each in evidence.details(Routers)])
    if not routers:
        return []
    start, ranks = max(begin, stop - WINDOW), evidence.ranks
    wanted = columns_of(routers, names.fill)
    rows = np.unique([each.tensor for each in routers])
    taken = list(ranks if len(ranks) <= MOST_RANKS else ranks[:MOST_RANKS])
    block = evidence.run.slice(RANGES, taken, 0, start, stop, wanted, rows)
    found = []
    for each in routers:
        loads = loads_of(each, block, block.columns)
        there = np.flatnonzero(loads.routed > 0)
        steps = start + there
        lasting = steps >= stop - LASTING
        found.append(Recent(each, steps, loads.tokens[:, there], loads.routed[there], lasting, len(taken)))
    return [each for each in found if each.is_judged]


def since(steps: Array, is_so: Array) -> int:
    """The first of the last steps, without a break, of which (n,) `is_so`."""
    broken = np.flatnonzero(~is_so)
    return int(steps[broken[-1] + 1] if len(broken) else steps[0])


def named(routers: Sequence[Recent], most: int = 4) -> str:
    """The first few by name, and how many more there are."""
    names = ", ".join(each.rows.router.fqn or "the model" for each in routers[:most])
    return names if len(routers) <= most else f"{names} and {len(routers) - most} more"


def over_ranks(of: Recent) -> str:
    """A sentence on whose tokens these are; "" of a run with one rank."""
    return f"Tokens of {of.ranks} ranks are added up." if of.ranks > 1 else ""


def balancing(because: str) -> tuple[Remedy, ...]:
    """What keeps the load even."""
    return (
        Remedy(
            "Add a loss that balances the load, or raise its factor: in Transformers output_router_logits=True and "
            "router_aux_loss_coef of the model's config (0.001 to 0.02 are usual).",
            "",
            because,
        ),
        Remedy(
            "Or balance without a loss: add a bias to the scores by which experts are chosen, and move it after each "
            "step against the load.",
            "def balanced(bias, tokens_by_expert, rate=1e-3):  # (experts,) each; the bias is no parameter\n"
            "    load = tokens_by_expert.float()\n"
            "    return bias + rate * torch.sign(load.mean() - load)",
            because,
        ),
    )
