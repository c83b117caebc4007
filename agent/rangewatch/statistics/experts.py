"""How the routers of a mixture of experts spread tokens: sums, so that those of steps and of ranks add up.

A router gives each token to `top_k` of its experts. `expert_tokens_5` counts the tokens that went to its expert 5. The
sums are of the tensor that the router returns (the event `routers` says which), and the entropy is of the logits.

Each is a statistic of its own, see `sparse`. They are in a catalogue where the model has routers. Nothing here imports
torch: the server reads this too.
"""

from __future__ import annotations

from rangewatch.wire.records import Statistic

MOST = 512
"""Experts of a router; of more none is counted."""

ROUTED, DROPPED = "routed_count", "dropped_count"
ENTROPY, ENTROPY_COUNT = "router_entropy_millibits", "router_entropy_count"
PREFIX = "expert_tokens_"


def column(expert: int) -> str:
    """The statistic of an expert, such as `expert_tokens_5`."""
    return f"{PREFIX}{expert}"


ALL: tuple[Statistic, ...] = (
    Statistic(ROUTED, "tokens", "sum", 0.0, "Tokens that the router gave to experts, each once."),
    Statistic(
        ENTROPY_COUNT, "tokens", "sum", 0.0, "Tokens of the sample over which the entropy of the router was taken."
    ),
    Statistic(
        ENTROPY, "millibits", "sum", 0.0,
        "Sum over the tokens of that sample: entropy of the softmax of the router logits, in thousandths of a bit.",
    ),
    Statistic(
        DROPPED, "tokens", "sum", 0.0,
        "Places of tokens at experts that were refused, as an expert with a capacity does; 0 where none can be seen.",
    ),
    *(
        Statistic(column(expert), "tokens", "sum", 0.0, f"Tokens that went to expert {expert}.")
        for expert in range(MOST)
    ),
)  # fmt: skip
OF_ROUTER = 4
"""So many come before those of the experts. `DROPPED` is the last of these: what is counted together lies together."""
