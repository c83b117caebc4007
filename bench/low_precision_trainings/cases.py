"""What fails in low precision, each after a public report, with what is to be named. Written before any rule that sees
it, on 2026-11-25; `uses` is what the training really rounds, by kind of tensor.

NeMo Megatron-Bridge#638: an MXFP8 recipe that keeps gradients in E5M2 diverges, E4M3 does not. Here, as what is left of
gradients is too little: E5M2 and coarser ones, in layers one behind the other and in a transformer.
torchao#3356: LoRA on float8 rows without a floor below their scales is NaN where a row is all zero.
arXiv 2506.20752: affine weights of layer norms lie so close together that a block of them becomes one number, as a rule
the largest code; gradients are biased by it.
arXiv 2505.20524: outliers of a GLU's activations leave the rest of a tensor too few codes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from low_precision_trainings.models import Plain, Residual
from low_precision_trainings.quantize import Recipe
from low_precision_trainings.trainings import (
    Adapted,
    Hook,
    Learnt,
    Taught,
    Training,
    channel_grows,
    norms_at,
    rounds_since,
)

Make = Callable[[int, Recipe], Training]


class Case(NamedTuple):
    """`named`: what a finding's tensor, or what the what-if page names as not surviving, must match."""

    name: str
    report: str
    make: Make
    recipe: Recipe
    uses: Mapping[str, str]
    named: str
    kind: str
    seed: int = 0
    steps: int = 120


def _plain(seed: int, recipe: Recipe, lr: float, optimizer: str, layers: int) -> Training:
    return Taught(seed, recipe, lr, None, optimizer, Plain, layers)


def _residual(seed: int, recipe: Recipe, lr: float, optimizer: str, before: Hook) -> Training:
    return Taught(seed, recipe, lr, before, optimizer, Residual, 4)


def _learnt(seed: int, recipe: Recipe, before: Hook | None, is_glu: bool) -> Training:
    return Learnt(seed, recipe, 1e-3, before, is_glu=is_glu)


def _adapted(seed: int, recipe: Recipe, before: Hook | None, padded_from: int, is_prompt: bool) -> Training:
    return Adapted(seed, recipe, 3e-3, before, padded_from, is_prompt=is_prompt)


def _gradient(name: str, format: str, make: Make, seed: int = 0, steps: int = 120) -> Case:
    named = r"layers\.\d+|blocks\.\d+\.(qkv|proj|up|down|gate)"
    return Case(
        f"gradient/{name}/{format}/{seed}", "Megatron-Bridge#638", make, Recipe("", format), {"grad_output": format},
        named, "grad_output", seed, steps,
    )  # fmt: skip


def _norm(name: str, format: str, make: Make, seed: int = 0) -> Case:
    return Case(
        f"norm/{name}/{format}/{seed}", "2506.20752", make, Recipe(norm=format), {"weight": format},
        r"(norms\.\d+|blocks\.\d+\.norm_\d|norm)\.weight", "weight", seed,
    )  # fmt: skip


def _outlier(factor: float, format: str, seed: int = 0) -> Case:
    make = partial(_learnt, before=channel_grows(factor), is_glu=True)
    return Case(
        f"outlier/{factor}/{format}/{seed}", "2505.20524", make, Recipe(format, weight=""), {"input": format},
        r"blocks\.1\.down", "input", seed, 140,
    )  # fmt: skip


def _zero_row(name: str, recipe: Recipe, kind: str, before: Hook | None, padded_from: int, seed: int = 0) -> Case:
    make = partial(_adapted, before=before, padded_from=padded_from, is_prompt=kind == "grad_output")
    return Case(
        f"zero_row/{name}/{seed}", "torchao#3356", make, recipe,
        {kind: "e4m3_row/unfloored"}, r"layers\.\d+(\.base)?", kind, seed, 80,
    )  # fmt: skip


_INPUTS = Recipe("e4m3_row/unfloored")
_GRADIENTS = Recipe("", "e4m3_row/unfloored")

CASES: tuple[Case, ...] = (
    _gradient("plain24-sgd", "mxfp8_e5m2", partial(_plain, lr=0.3, optimizer="sgd", layers=24)),
    _gradient("plain24-adam", "mxfp8_e5m2", partial(_plain, lr=3e-3, optimizer="adam", layers=24)),
    _gradient("plain24-adam", "mxfp8_e5m2", partial(_plain, lr=3e-3, optimizer="adam", layers=24), 1),
    _gradient("plain16-adam", "mxfp8_e5m2", partial(_plain, lr=3e-3, optimizer="adam", layers=16), steps=200),
    _gradient("plain24-sgd", "mxfp6_e3m2", partial(_plain, lr=0.3, optimizer="sgd", layers=24)),
    _gradient("plain16-adam", "mxfp6_e3m2", partial(_plain, lr=3e-3, optimizer="adam", layers=16), steps=160),
    _gradient("glu", "mxfp4", partial(_learnt, before=None, is_glu=True), 3),
    _zero_row("rounds-late", _INPUTS, "input", rounds_since(40), 0),
    _zero_row("rounds-late", _INPUTS, "input", rounds_since(40), 0, 1),
    _zero_row("pads-late", _INPUTS, "input", None, 30),
    _zero_row("gradients-round-late", _GRADIENTS, "grad_output", rounds_since(40), 0),
    _zero_row("gradients-pad-late", _GRADIENTS, "grad_output", None, 30),
    _norm("residual-sgd", "mxfp8_e4m3", partial(_residual, lr=0.3, optimizer="sgd", before=norms_at(0.95))),
    _norm("residual-sgd", "mxfp8_e4m3", partial(_residual, lr=0.3, optimizer="sgd", before=norms_at(0.95)), 1),
    _norm("residual-sgd", "mxfp8_e5m2", partial(_residual, lr=0.3, optimizer="sgd", before=norms_at(0.95))),
    _norm("residual-sgd", "mxfp6_e3m2", partial(_residual, lr=0.3, optimizer="sgd", before=norms_at(0.95))),
    _norm("residual-adam-1.2", "mxfp8_e4m3", partial(_residual, lr=1e-3, optimizer="adam", before=norms_at(1.2))),
    _norm("residual-sgd-1.2", "mxfp8_e4m3", partial(_residual, lr=0.3, optimizer="sgd", before=norms_at(1.2))),
    _norm("transformer", "mxfp8_e4m3", partial(_learnt, before=norms_at(0.95), is_glu=False)),
    _norm("transformer", "mxfp4", partial(_learnt, before=norms_at(0.9), is_glu=False)),
    _outlier(1.3, "e4m3_tensor"),
    _outlier(1.5, "e5m2_tensor"),
    _outlier(1.3, "e4m3_delayed"),
    _outlier(1.15, "e4m3_tensor"),
)  # fmt: skip
