"""What is compared: a reference, the other one's layout, precision and mode, and what is planted in that one.

Written before `rangewatch diff` was tried on any of them. `place` is the module that is to be named first and `step`
the first step; a rate that differs from a step on shows a step later, since `weight` is what a forward uses (when these
were written it was taken for what the update leaves: the first look said otherwise, and so does docs/options.md).
"""

from __future__ import annotations

from typing import NamedTuple

TOLERANCE = {"fp32": 1e-4, "bf16": None}
"""Of two layouts; None: what the command does by itself. At first 0.03 in bfloat16, and one equal pair of 50 parted by
4 % in a bias near 0: then the command learned what two layouts may differ by, as two precisions may."""

COMPILED_TOLERANCE = {"fp32": 1e-4, "bf16": 1 / 16}
"""Kernels of one layout and precision that round otherwise: the command cannot know that they do."""


class Kind(NamedTuple):
    """How two runs of a pair differ though they are equal: "LAYOUT PRECISION MODE" of each."""

    reference: str
    other: str
    tolerance: float | None


KINDS = {
    "same": Kind("one fp32 eager", "one fp32 eager", None),
    "compiled": Kind("one fp32 eager", "one fp32 compiled", COMPILED_TOLERANCE["fp32"]),
    "compiled-bf16": Kind("one bf16 eager", "one bf16 compiled", COMPILED_TOLERANCE["bf16"]),
    "precision": Kind("one fp32 eager", "one bf16 eager", None),
    **{
        f"{layout}-{precision}": Kind(f"one {precision} eager", f"{layout} {precision} eager", TOLERANCE[precision])
        for layout in ("fsdp2", "tp2", "pp2")
        for precision in ("fp32", "bf16")
    },
}


class Planted(NamedTuple):
    """What the other run has otherwise: `how` is one of `plants.py`, by so much, from `step` on."""

    kind: str
    how: str
    factor: float
    place: str
    step: int
    seed: int = 1

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.how}-{self.place}-{self.step}"

    @property
    def shows_at(self) -> int:
        """The first step at which anything that is recorded differs."""
        return self.step + (self.how == "rate")


PLANTED = (
    Planted("same", "output", 1.0001, "blocks.1.up", 4),
    Planted("same", "eps", 1e-3, "blocks.2.norm", 0),
    Planted("same", "rounded", 0, "blocks.0.down", 7),
    Planted("same", "data", 0, "blocks.0.norm", 5),
    Planted("same", "grad", 1.01, "blocks.2.down", 3),
    Planted("compiled", "output", 1.01, "blocks.1.up", 3),
    Planted("compiled", "output", 1.01, "head", 5),
    Planted("compiled", "output", 1.01, "blocks.3.norm", 0, 2),
    Planted("compiled", "init", 1.05, "blocks.2.down", 0),
    Planted("compiled", "eps", 0.05, "blocks.1.norm", 0),
    Planted("compiled", "rate", 3.0, "blocks.1.down", 2),
    Planted("compiled", "grad", 1.5, "blocks.2.up", 4),
    Planted("compiled", "data", 0, "blocks.0.norm", 6),
    Planted("compiled-bf16", "output", 1.25, "blocks.1.up", 3),
    Planted("compiled-bf16", "output", 1.25, "head", 5),
    Planted("compiled-bf16", "output", 0.7, "blocks.2.norm", 0, 2),
    Planted("compiled-bf16", "init", 1.5, "blocks.3.up", 0),
    Planted("compiled-bf16", "rate", 100.0, "blocks.2.down", 1),
    Planted("compiled-bf16", "grad", 2.0, "blocks.1.down", 4),
    Planted("precision", "output", 1.25, "blocks.1.up", 3),
    Planted("precision", "output", 1.25, "head", 6),
    Planted("precision", "output", 0.7, "blocks.0.norm", 2, 2),
    Planted("precision", "init", 1.5, "blocks.2.up", 0),
    Planted("precision", "rate", 100.0, "blocks.3.down", 1),
    Planted("precision", "data", 0, "blocks.0.norm", 5),
    Planted("fsdp2-fp32", "output", 1.01, "blocks.2.norm", 6),
    Planted("fsdp2-fp32", "init", 1.05, "blocks.3.down", 0),
    Planted("fsdp2-fp32", "rate", 3.0, "blocks.1.up", 2),
    Planted("fsdp2-fp32", "data", 0, "blocks.0.norm", 4),
    Planted("fsdp2-bf16", "output", 1.25, "blocks.1.down", 3),
    Planted("fsdp2-bf16", "init", 1.5, "head", 0),
    Planted("tp2-fp32", "output", 1.01, "blocks.1.up", 3, 2),
    Planted("tp2-fp32", "init", 1.05, "blocks.2.up", 0),
    Planted("tp2-fp32", "rate", 3.0, "blocks.3.down", 2),
    Planted("tp2-fp32", "eps", 0.05, "blocks.1.norm", 0),
    Planted("tp2-bf16", "output", 1.25, "blocks.2.down", 5),
    Planted("pp2-fp32", "output", 1.01, "blocks.2.up", 4),
    Planted("pp2-fp32", "init", 1.05, "blocks.1.down", 0),
    Planted("pp2-fp32", "rate", 3.0, "blocks.3.up", 2),
    Planted("pp2-bf16", "output", 1.25, "head", 3),
)

EQUAL_SEEDS = (1, 2, 3, 4, 5)
EQUAL = tuple((kind, seed) for kind in KINDS for seed in EQUAL_SEEDS)

PERMUTED = (
    Planted("same", "swap", 0, "blocks.1.up", 4),
    Planted("same", "units", 0, "blocks.2.up", 0),
    Planted("same", "transpose", 0, "blocks.3.down", 6),
    Planted("compiled", "swap", 0, "blocks.0.up", 3),
    Planted("compiled", "units", 0, "blocks.1.up", 5),
    Planted("compiled-bf16", "units", 0, "blocks.2.up", 2),
    Planted("precision", "swap", 0, "blocks.1.down", 3),
    Planted("precision", "units", 0, "blocks.2.up", 2),
    Planted("fsdp2-fp32", "swap", 0, "blocks.0.down", 2),
    Planted("fsdp2-fp32", "units", 0, "blocks.3.up", 5),
    Planted("fsdp2-bf16", "units", 0, "blocks.1.up", 3),
    Planted("tp2-fp32", "swap", 0, "blocks.2.up", 4),
    Planted("tp2-fp32", "units", 0, "blocks.1.up", 0),
    Planted("tp2-fp32", "transpose", 0, "blocks.0.up", 6),
    Planted("tp2-bf16", "swap", 0, "blocks.3.up", 1),
    Planted("pp2-fp32", "units", 0, "blocks.2.up", 2),
)
"""What leaves a weight's largest magnitude and mean square as they are, with "units" the function too: for sketches.
Written before they were tried: 15 of 16 were right then, since nobody had said how a pipeline's plain tensors lie."""
