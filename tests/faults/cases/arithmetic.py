"""Arithmetic that is not finite where it is asked to be, in functions and not in modules: forward and backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.faults.families import compiled, diffusion, gan, moe, nanogpt, ppo, preference
from tests.faults.fault import Job, Plant, planted

AGAINST = ("learning rate", r"[Mm]ask", "tensors of the checkpoint")
SUM = {"against": AGAINST, "also": ("loss_nonfinite",)}
FORWARD = ("first_nonfinite", "loss_nonfinite")


@planted("forward_arithmetic", *FORWARD, step=110, **SUM)
def log_of_zero_in_the_weights_of_a_loss(job: Job) -> None:
    diffusion.train(
        job, plant=Plant(), weighting=lambda step, bar: (-torch.log(bar - bar if step == 110 else bar)).clamp(min=0.1)
    )


@planted("forward_arithmetic", *FORWARD, place=r"(middle|up|conv_out)?\b.*", step=150, **SUM)
def division_by_a_mean_of_zero(job: Job) -> None:
    def inside(step: int, name: str, value: Tensor) -> Tensor:
        scale = (value - value if step == 150 else value).abs().mean()
        return value / scale.detach() * value.abs().mean().detach() if step >= 150 else value

    diffusion.train(job, plant=Plant(inside=inside))


@planted("forward_arithmetic", *FORWARD, step=70, **SUM)
def advantages_of_a_group_that_was_paid_alike(job: Job) -> None:
    """0 / 0: the standard deviation of equal rewards, without an eps."""
    rewards = Plant(batch=lambda step, paid: torch.ones_like(paid) if step == 70 else paid)
    preference.train_grpo(job, plant=rewards, eps=0.0)


@planted(
    "forward_arithmetic",
    *FORWARD,
    step=range(60, 400),
    against=(r"[Mm]ask", "tensors of the checkpoint"),
    also=("loss_nonfinite",),
)
def exp_overflows_in_a_ratio_of_fp16(job: Job) -> None:
    """The policy goes far from its reference, and exp() of more than 11 is Inf in float16."""
    weights = Plant(loss=lambda step, loss: loss, rate=lambda step, lr: lr * (1 if step < 60 else 30))
    preference.train_dpo(job, plant=weights, form="ratio in fp16", beta=-2.0)


@planted(
    "forward_arithmetic",
    *FORWARD,
    step=range(0, 400),
    against=(r"[Mm]ask", "tensors of the checkpoint"),
    also=("loss_nonfinite",),
)
def log_of_a_sigmoid_that_is_zero(job: Job) -> None:
    """beta is so large that the sigmoid underflows: log(0)."""
    preference.train_dpo(job, 200, form="log of a sigmoid", beta=400.0)


@planted("forward_arithmetic", *FORWARD, place=r"layers\.1\b.*", step=130, **SUM)
def routing_weights_are_normalised_by_zero(job: Job) -> None:
    def inside(step: int, name: str, value: Tensor) -> Tensor:
        if step != 130 or name != "layers.1.moe.weights":
            return value
        kept = torch.ones(len(value), 1)
        kept[3] = 0.0  # a token that is dropped for want of capacity
        return value * kept

    moe.train(job, plant=Plant(inside=inside))


@planted("forward_arithmetic", *FORWARD, step=100, **SUM)
def entropy_of_a_probability_of_zero(job: Job) -> None:
    """p log p with p = 0, in the loss."""

    def loss(step: int, value: Tensor) -> Tensor:
        if step != 100:
            return value
        p = torch.tensor([0.0, 1.0])
        return value - 0.01 * (p * p.log()).sum()

    ppo.train(job, plant=Plant(loss=loss))


def at_zero(function: Any, place: str, at: int) -> Any:
    """`function` of something that is zero, added: its forward is finite and its backward is not."""

    def inside(step: int, name: str, value: Tensor) -> Tensor:
        return value + function((value - value.detach()).abs()) if name == place and step == at else value

    return inside


BACK = {"against": (*AGAINST, "targets", "batch of this step"), "also": ("loss_nonfinite",)}


@planted("backward_arithmetic", "first_nonfinite", place=r"(middle|down|up|conv_in)\b.*", step=120, **BACK)
def root_of_zero_in_the_backward(job: Job) -> None:
    diffusion.train(job, plant=Plant(inside=at_zero(torch.sqrt, "middle", 120)))


@planted("backward_arithmetic", "first_nonfinite", place=r"(h\.[01]|ln_f)\b.*", step=90, **BACK)
def power_below_one_of_zero_in_the_backward(job: Job) -> None:
    nanogpt.train(job, plant=Plant(inside=at_zero(lambda x: x**0.5 * 0.1, "h.1.mlp", 90)))


@planted("backward_arithmetic", "first_nonfinite", place=r"discriminator\b.*", step=100, **BACK)
def norm_of_zero_in_a_gradient_penalty(job: Job) -> None:
    """sqrt(0) by hand: the gradient of a penalty whose own gradient is zero."""

    def loss(step: int, value: Tensor) -> Tensor:
        return value + ((value - value.detach()) ** 2).sqrt() if step == 100 else value

    gan.train(job, plant=Plant(loss=loss), penalty=True, lr=3e-4)


@planted("backward_arithmetic", "first_nonfinite", place=r"(layer2|layer1|bn|stem)?\b.*", step=60, **BACK)
def own_autograd_function_divides_by_zero(job: Job) -> None:
    """Its backward has no eps, and one picture's features are all zero."""

    def inside(step: int, name: str, value: Tensor) -> Tensor:
        return value * (torch.arange(len(value)) > 0)[:, None] if step == 60 else value

    compiled.train(job, 200, plant=Plant(inside=inside), cosine=True, eps=0.0, compiled=False)


SCRIPTS = (
    log_of_zero_in_the_weights_of_a_loss, division_by_a_mean_of_zero, advantages_of_a_group_that_was_paid_alike,
    exp_overflows_in_a_ratio_of_fp16, log_of_a_sigmoid_that_is_zero, routing_weights_are_normalised_by_zero,
    entropy_of_a_probability_of_zero, root_of_zero_in_the_backward, power_below_one_of_zero_in_the_backward,
    norm_of_zero_in_a_gradient_penalty, own_autograd_function_divides_by_zero,
)  # fmt: skip
