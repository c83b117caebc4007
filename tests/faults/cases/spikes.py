"""Losses that spike and stay finite: a bad batch once, a learning rate raised for three steps, a layer moved far."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.faults.cases.batches import once
from tests.faults.cases.rates import at
from tests.faults.families import diffusion, nanogpt, sft
from tests.faults.fault import Job, Plant, planted
from tests.faults.models import WORDS

SPIKES = ("loss_spike", "exploding_gradient", "short_spike")
ALSO = ("exploding_gradient", "headroom_trend", "attention_logits", "loss_spike", "dead_activation")
NOT_DATA = (r"[Ll]ower the learning rate", r"[Mm]ask", "tensors of the checkpoint", "bfloat16", "GradScaler")
NOT_RATE = (r"[Ll]eave out the batch", r"[Mm]ask", "tensors of the checkpoint", "GradScaler")
NOT_WEIGHT = (r"[Ll]eave out the batch", r"[Mm]ask", "GradScaler", "bfloat16")


def of_words(count: int) -> Callable[[Any], Any]:
    def change(batch: Any) -> Any:
        x, y = batch
        return x, torch.randint(0, count, y.shape, generator=torch.Generator().manual_seed(7))

    return change


def other_labels(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    labels = batch["labels"]
    wrong = torch.randint(0, int(labels.max()), labels.shape, generator=torch.Generator().manual_seed(7))
    return batch | {"labels": torch.where(labels < 0, labels, wrong)}


def moved(place: str, step: int, by: float) -> Callable[[int, nn.Module], nn.Module]:
    """A weight is moved by so many times its own size, in a direction of no meaning."""

    def change(now: int, model: nn.Module) -> nn.Module:
        if now == step:
            weight = model.get_parameter(place)
            noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(3))
            with torch.no_grad():
                weight += by * weight.norm() * noise / noise.norm()
        return model

    return change


@planted("data", *SPIKES, step=range(200, 202), against=NOT_DATA, also=ALSO, least="info")
def gpt_batch_with_targets_of_no_meaning(job: Job) -> None:
    nanogpt.train(job, 300, plant=Plant(batch=once(200, of_words(WORDS))))


@planted("data", *SPIKES, step=range(200, 202), against=NOT_DATA, also=ALSO, least="info")
def tuned_on_a_batch_with_wrong_labels(job: Job) -> None:
    sft.train(job, 300, plant=Plant(batch=once(200, other_labels)))


@planted("learning_rate", *SPIKES, step=range(200, 205), against=NOT_RATE, also=ALSO)
def gpt_with_lr_100_times_for_three_steps(job: Job) -> None:
    nanogpt.train(job, 300, plant=Plant(rate=at(200, 0.3, 203)), decay=False)


@planted("learning_rate", *SPIKES, step=range(200, 205), against=NOT_RATE, also=ALSO)
def tuned_with_lr_300_times_for_three_steps(job: Job) -> None:
    sft.train(job, 300, plant=Plant(rate=at(200, 0.6, 203)))


@planted("weight", *SPIKES, place=r"h\.1\.mlp\b.*", step=range(200, 202), against=NOT_WEIGHT, also=ALSO)
def gpt_with_one_layer_moved_too_far(job: Job) -> None:
    nanogpt.train(job, 300, plant=Plant(weights=moved("h.1.mlp.c_proj.weight", 200, 200.0)))


@planted("weight", *SPIKES, place=r"lm_head\b.*", step=range(200, 202), against=NOT_WEIGHT, also=ALSO)
def tuned_with_its_last_layer_moved_too_far(job: Job) -> None:
    sft.train(job, 300, plant=Plant(weights=moved("lm_head.weight", 200, 8.0)))


FACTOR = {
    "against": (r"[Ll]ower the learning rate", r"[Mm]ask", "tensors of the checkpoint", "GradScaler"),
    "also": ALSO,
}


def multiplied(by: float, begin: int, end: int) -> Callable[[int, Tensor], Tensor]:
    return lambda step, loss: loss * by if begin <= step < end else loss


@planted("forward_arithmetic", *SPIKES, step=range(200, 202), least="info", **FACTOR)
def gpt_loss_is_multiplied_once(job: Job) -> None:
    nanogpt.train(job, 300, plant=Plant(loss=multiplied(1e3, 200, 201)))


@planted("forward_arithmetic", *SPIKES, step=range(200, 202), **FACTOR)
def tuned_with_a_sum_in_place_of_a_mean(job: Job) -> None:
    sft.train(job, 300, plant=Plant(loss=multiplied(128.0, 200, 300)))


@planted("forward_arithmetic", *SPIKES, step=range(200, 202), **FACTOR)
def diffusion_with_weights_that_nothing_bounds(job: Job) -> None:
    """The weight of a loss by its signal, without the clamp that it had."""
    diffusion.train(job, 300, plant=Plant(), weighting=lambda step, bar: bar * 0 + (2e3 if 200 <= step < 216 else 1.0))


SCRIPTS = (
    gpt_loss_is_multiplied_once, tuned_with_a_sum_in_place_of_a_mean, diffusion_with_weights_that_nothing_bounds,
    gpt_batch_with_targets_of_no_meaning, tuned_on_a_batch_with_wrong_labels, gpt_with_lr_100_times_for_three_steps,
    tuned_with_lr_300_times_for_three_steps, gpt_with_one_layer_moved_too_far, tuned_with_its_last_layer_moved_too_far,
)  # fmt: skip
