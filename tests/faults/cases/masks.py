"""Masks of -inf: those that are meant with something else wrong behind them, and those that hide a whole row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.faults.families import moe, nanogpt, ppo, sft
from tests.faults.fault import Job, Plant, planted

MASK = r"[Mm]ask"
"""Advice to look at a mask that is as it should be."""


def times(place: str, since: int, factor: float) -> Any:
    """The gradient that passes `place` is multiplied by `factor` more at each step."""

    def inside(step: int, name: str, value: Tensor) -> Tensor:
        if name == place and step >= since:
            value = value * 1.0
            value.register_hook(lambda grad: grad * factor ** min(step - since + 1, 100))
        return value

    return inside


@planted(
    "backward_arithmetic",
    "first_nonfinite",
    "exploding_gradient",
    place=r"(h\.[01]|wte|wpe)\b.*",
    step=range(150, 240),
    against=(MASK,),
    also=("exploding_gradient", "headroom_trend"),
)
def alibi_mask_before_gradients_that_explode(job: Job) -> None:
    nanogpt.train(job, plant=Plant(inside=times("h.1.mlp", 150, 3.0)), mask="alibi", grad_clip=0.0)


@planted(
    "backward_arithmetic",
    "first_nonfinite",
    "exploding_gradient",
    place=r"(h\.[01]|wte|wpe)\b.*",
    step=range(150, 240),
    against=(MASK,),
    also=("exploding_gradient", "headroom_trend"),
)
def mask_module_before_gradients_that_explode(job: Job) -> None:
    nanogpt.train(job, plant=Plant(inside=times("h.1.mlp", 150, 3.0)), mask="module", grad_clip=0.0)


@planted(
    "learning_rate",
    "first_nonfinite",
    "loss_spike",
    step=range(200, 240),
    against=(MASK,),
    also=("exploding_gradient", "headroom_trend", "loss_spike"),
)
def masked_scores_and_a_learning_rate_that_is_raised(job: Job) -> None:
    nanogpt.train(job, plant=Plant(rate=lambda step, lr: lr if step < 200 else 1e10), mask="scores", grad_clip=0.0)


@planted(
    "backward_arithmetic",
    "first_nonfinite",
    "exploding_gradient",
    place=r"(layers\.[01]|embed)\b.*",
    step=range(120, 220),
    against=(MASK,),
    also=("exploding_gradient", "headroom_trend"),
)
def expert_behind_a_top_k_filter_explodes(job: Job) -> None:
    moe.train(job, plant=Plant(inside=times("layers.1.moe.experts.2", 120, 4.0)), clip=0.0)


@planted("mask", "first_nonfinite", place=r"layers\.0\b.*", step=90, against=("learning rate",))
def sample_that_is_padding_alone(job: Job) -> None:
    """Its rows are masked whole, and softmax makes NaN of them."""

    def batch(step: int, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        if step == 90:
            batch["attention_mask"][2] = 0
        return batch

    sft.train(job, plant=Plant(batch=batch), filled="-inf whole rows", make=RightPadded)


class RightPadded(sft.CausalLM):
    """It pads on the right, so that no row of a sample that holds anything is masked whole."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return super().forward(input_ids, attention_mask.flip(1))

    def causal_mask(self, attention_mask: Tensor, dtype: torch.dtype) -> Tensor:
        self.filled = "-inf whole rows"
        return super().causal_mask(attention_mask, dtype)


@planted("mask", "first_nonfinite", "loss_nonfinite", step=range(120, 124), against=("learning rate", "targets"))
def no_action_is_allowed(job: Job) -> None:
    def inside(step: int, name: str, value: Tensor) -> Tensor:
        if step != 121:
            return value
        hidden = torch.zeros(value.shape, dtype=torch.bool)
        hidden[3, 1] = True
        return value.masked_fill(hidden, float("-inf"))

    ppo.train(job, plant=Plant(inside=inside))


@planted("mask", "first_nonfinite", place=r"h\.0\b.*", step=140, against=("learning rate",))
def document_mask_hides_a_whole_row(job: Job) -> None:
    """Of packed sequences: one row has no document."""

    def inside(step: int, name: str, value: Tensor) -> Tensor:
        if step != 140 or name != "h.0.attn.scores":
            return value
        hidden = torch.zeros(value.shape, dtype=torch.bool)
        hidden[1, :, 5] = True
        return value.masked_fill(hidden, float("-inf"))

    nanogpt.train(job, plant=Plant(inside=inside))


SCRIPTS = (
    alibi_mask_before_gradients_that_explode, mask_module_before_gradients_that_explode,
    masked_scores_and_a_learning_rate_that_is_raised, expert_behind_a_top_k_filter_explodes,
    sample_that_is_padding_alone, no_action_is_allowed, document_mask_hides_a_whole_row,
)  # fmt: skip
