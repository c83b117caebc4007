"""Learning rates that are far too high, gradients that explode for a while, and clips that make NaN."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.faults.families import diffusion, gan, lora, moe, nanogpt, ppo, trainer
from tests.faults.fault import Job, Plant, planted

BROKEN = ("first_nonfinite", "exploding_gradient", "loss_spike", "headroom_trend", "update_ratio")
GRADUAL = ("exploding_gradient", "headroom_trend", "loss_spike", "dead_activation", "attention_logits")
NOT_RATE = (r"[Mm]ask", "tensors of the checkpoint", "GradScaler", "loss scaler", "batch of this step")


def at(start: int, rate: float, stop: int = 1 << 30) -> Any:
    return lambda step, lr: rate if start <= step < stop else lr


@planted("learning_rate", *BROKEN, step=range(50, 56), against=NOT_RATE, also=GRADUAL)
def gpt_with_lr_1e12_at_step_50(job: Job) -> None:
    nanogpt.train(job, 150, plant=Plant(rate=at(50, 1e12)))


@planted("learning_rate", *BROKEN, step=range(0, 60), against=NOT_RATE, also=GRADUAL)
def gpt_in_bf16_with_lr_30(job: Job) -> None:
    nanogpt.train(job, 200, dtype=torch.bfloat16, lr=30.0, warmup=0, decay=False)


@planted("learning_rate", *BROKEN, step=range(0, 60), against=NOT_RATE, also=GRADUAL)
def trainer_with_lr_300(job: Job) -> None:
    trainer.train(job, 200, lr=300.0)


@planted("learning_rate", *BROKEN, step=range(100, 140), against=NOT_RATE, also=GRADUAL)
def gan_with_lr_50_at_step_100(job: Job) -> None:
    gan.train(job, plant=Plant(rate=at(100, 50.0)))


@planted("learning_rate", *BROKEN, step=range(0, 60), against=NOT_RATE, also=GRADUAL)
def adapters_with_lr_1000(job: Job) -> None:
    lora.train(job, 200, lr=1e3)


@planted("learning_rate", *BROKEN, step=range(180, 240), against=NOT_RATE, also=GRADUAL)
def warm_up_that_divides_the_wrong_way(job: Job) -> None:
    """A restart of the warm-up, whose rate is multiplied and not divided."""
    diffusion.train(job, plant=Plant(rate=lambda step, lr: lr * max(1.0, (step - 179) * 1000.0)))


@planted(
    "learning_rate",
    *BROKEN,
    "vanishing_gradient",
    "saturated_activation",
    step=range(0, 80),
    against=NOT_RATE,
    also=(*GRADUAL, "vanishing_gradient"),
)
def policy_with_lr_5(job: Job) -> None:
    ppo.train(job, 300, lr=5.0)


@planted(
    "learning_rate",
    "loss_spike",
    "exploding_gradient",
    "headroom_trend",
    "update_ratio",
    step=range(40, 56),
    against=NOT_RATE,
    also=GRADUAL,
)
def loss_rises_a_thousandfold_within_50_steps(job: Job) -> None:
    """From 3 to thousands at step 50: the rate is ten from step 40 on."""
    nanogpt.train(job, 64, plant=Plant(rate=at(40, 10.0)), decay=False)


@planted("learning_rate", *BROKEN, step=range(20, 50), against=NOT_RATE, also=GRADUAL)
def gpt_diverges_at_step_30_of_60(job: Job) -> None:
    nanogpt.train(job, 60, plant=Plant(rate=at(30, 3e3)), grad_clip=0.0, decay=False)


EXPLODES = {
    "against": (r"[Mm]ask", "tensors of the checkpoint", "batch of this step"),
    "also": ("loss_spike", "update_ratio", "headroom_trend"),
}


def blown_up(place: str, first: int, factor: float) -> Any:
    """The same through the backward: the gradient that passes `place` is larger."""

    def inside(step: int, name: str, value: Tensor) -> Tensor:
        if name == place and step >= first:
            value = value * 1.0
            value.register_hook(lambda grad: grad * max(1.0, factor * 0.92 ** (step - first)))
        return value

    return inside


@planted("backward_arithmetic", "exploding_gradient", place=r"(h\.[01]|wte|wpe)\b.*", step=range(150, 160), **EXPLODES)
def gradients_explode_at_150_and_decay(job: Job) -> None:
    nanogpt.train(job, plant=Plant(inside=blown_up("h.1.mlp", 150, 1e4)))


@planted(
    "backward_arithmetic", "exploding_gradient", place=r"(layers\.[01]|embed)\b.*", step=range(150, 160), **EXPLODES
)
def gradients_of_an_expert_explode_at_150_and_decay(job: Job) -> None:
    moe.train(job, plant=Plant(inside=blown_up("layers.1.moe.experts.0", 150, 1e5)))


@planted(
    "backward_arithmetic", "exploding_gradient", place=r"(lstm|encoder|actor)\b.*", step=range(150, 160), **EXPLODES
)
def gradients_of_a_policy_explode_at_150_and_decay(job: Job) -> None:
    ppo.train(job, plant=Plant(inside=blown_up("logits", 150, 1e5)))


CLIPPED = {"against": ("learning rate", r"[Mm]ask", "tensors of the checkpoint"), "also": ("loss_nonfinite",)}


@planted("clip", "first_nonfinite", step=range(80, 82), **CLIPPED)
def clip_divides_by_a_norm_of_zero(job: Job) -> None:
    """No target is left in a batch whose loss is a sum: the gradients are zero, and so is their norm."""
    nanogpt.train(job, plant=Plant(loss=lambda step, loss: loss * 0.0 if step == 80 else loss), by_hand=True)


@planted("clip", "first_nonfinite", step=range(0, 2), place=r"layers\.\d.*lora_A", **CLIPPED)
def clip_of_each_adapter_divides_by_zero(job: Job) -> None:
    """B is zero at first, and so is the gradient of A."""
    lora.train(job, 120, by_hand=True)


@planted(
    "backward_arithmetic",
    "first_nonfinite",
    step=range(130, 132),
    place=r"|(lstm|encoder|actor)\b.*",
    against=("learning rate", r"[Mm]ask"),
    also=("loss_nonfinite",),
)
def clip_spreads_one_inf_gradient(job: Job) -> None:
    """Inf times 1 / Inf is NaN: `clip_grad_norm_` makes all of them so."""

    def inside(step: int, name: str, value: Tensor) -> Tensor:
        if step == 130:
            value = value * 1.0
            value.register_hook(lambda grad: grad * 1e39)
        return value

    ppo.train(job, plant=Plant(inside=inside))


SCRIPTS = (
    gpt_with_lr_1e12_at_step_50, gpt_in_bf16_with_lr_30, trainer_with_lr_300, gan_with_lr_50_at_step_100,
    adapters_with_lr_1000, warm_up_that_divides_the_wrong_way, policy_with_lr_5,
    loss_rises_a_thousandfold_within_50_steps, gpt_diverges_at_step_30_of_60, gradients_explode_at_150_and_decay,
    gradients_of_an_expert_explode_at_150_and_decay, gradients_of_a_policy_explode_at_150_and_decay,
    clip_divides_by_a_norm_of_zero, clip_of_each_adapter_divides_by_zero, clip_spreads_one_inf_gradient,
)  # fmt: skip
