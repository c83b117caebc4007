"""Batches that are bad when they come: NaN, Inf, and huge values that are finite; in an evaluation, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.faults.families import compiled, diffusion, gan, nanogpt, ppo
from tests.faults.fault import Job, Plant, planted

BROKEN = ("outlier_batch", "first_nonfinite", "loss_nonfinite", "loss_spike", "exploding_gradient")
NOT_DATA = ("learning rate", r"[Mm]ask", "tensors of the checkpoint", "bfloat16", "GradScaler")
DATA = {"against": NOT_DATA, "also": ("loss_nonfinite", "loss_spike", "exploding_gradient", "dead_activation")}


def once(at: int, change: Callable[[Any], Any]) -> Any:
    return lambda step, batch: change(batch) if step == at else batch


def pixel(value: float) -> Callable[[Any], Any]:
    def change(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, y = batch
        x = x.clone()
        x[2, 1, 3, 4] = value
        return x, y

    return change


def scaled(factor: float) -> Callable[[Any], Any]:
    return lambda batch: (batch[0] * factor, batch[1])


@planted("data", *BROKEN, step=range(120, 122), **DATA)
def picture_with_a_pixel_of_3e38(job: Job) -> None:
    diffusion.train(job, plant=Plant(batch=once(120, pixel(3e38))))


@planted("data", *BROKEN, step=range(150, 152), **DATA)
def batch_of_1e8_poisons_batchnorm(job: Job) -> None:
    """Its running statistics, which the evaluation uses."""
    compiled.train(job, plant=Plant(batch=once(150, scaled(1e8))), evaluated="eval", compiled=False)


@planted("data", *BROKEN, step=range(150, 152), **DATA)
def compiled_batch_of_1e8_poisons_batchnorm(job: Job) -> None:
    compiled.train(job, plant=Plant(batch=once(150, scaled(1e8))), evaluated="eval")


@planted("data", *BROKEN, step=range(200, 202), **DATA)
def real_pictures_of_1e8_in_a_gan(job: Job) -> None:
    gan.train(job, plant=Plant(batch=once(200, scaled(1e8))), evaluated=True)


@planted("data", *BROKEN, step=range(160, 164), **DATA)
def observation_of_1e30(job: Job) -> None:
    def change(buffer: dict[str, Tensor]) -> dict[str, Tensor]:
        buffer["reward"][3, 2] = 1e30
        return buffer

    ppo.train(job, plant=Plant(batch=once(160, change)))


@planted("data", "first_nonfinite", place=r"(conv_in)?", step=120, **DATA)
def nan_in_a_picture_of_a_diffusion(job: Job) -> None:
    diffusion.train(job, plant=Plant(batch=once(120, pixel(float("nan")))))


@planted("data", "first_nonfinite", place=r"(stem)?", step=130, **DATA)
def inf_in_a_picture_of_a_compiled_model(job: Job) -> None:
    compiled.train(job, plant=Plant(batch=once(130, pixel(float("inf")))))


@planted("data", "first_nonfinite", place=r"(discriminator(\.conv1)?)?", step=110, **DATA)
def nan_in_a_picture_of_a_gan(job: Job) -> None:
    gan.train(job, plant=Plant(batch=once(110, pixel(float("nan")))))


@planted("data", "first_nonfinite", "loss_nonfinite", step=range(140, 144), **DATA)
def nan_in_a_reward(job: Job) -> None:
    def change(buffer: dict[str, Tensor]) -> dict[str, Tensor]:
        buffer["reward"][2, 5] = float("nan")
        return buffer

    ppo.train(job, plant=Plant(batch=once(140, change)))


@planted(
    "eval",
    least="info",
    against=("learning rate", "batch of this step", "targets of this step", "tensors of the checkpoint"),
)
def nan_in_a_batch_of_an_evaluation(job: Job) -> None:
    """The training goes on as if nothing was: it is to be said of the evaluation, if at all."""
    diffusion.train(
        job,
        plant=Plant(held_out=lambda step, batch: pixel(float("nan"))(batch) if step == 199 else batch),
        sample_every=50,
    )


@planted(
    "eval",
    least="info",
    against=("learning rate", "batch of this step", "targets of this step", "tensors of the checkpoint"),
)
def nan_weights_of_an_evaluation_s_copy(job: Job) -> None:
    """`no_grad` in train mode: what is logged is NaN, and the training is well."""

    def held_out(step: int, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return (batch[0], torch.full_like(batch[1], -1)) if step == 200 else batch

    nanogpt.train(job, plant=Plant(held_out=held_out), eval_every=50, evaluated="no_grad in train mode")


@planted(
    "eval",
    "evaluation_mode",
    "first_nonfinite",
    "loss_nonfinite",
    step=range(159, 162),
    against=("learning rate", "tensors of the checkpoint"),
    also=("first_nonfinite", "loss_nonfinite"),
)
def evaluation_in_train_mode_poisons_batchnorm(job: Job) -> None:
    """NaN in its batch, and nobody has called `eval()`: the running statistics are NaN from then on."""
    held_out = Plant(held_out=lambda step, batch: pixel(float("nan"))(batch) if step == 159 else batch)
    compiled.train(job, plant=held_out, evaluated="train mode", compiled=False)


SCRIPTS = (
    picture_with_a_pixel_of_3e38, batch_of_1e8_poisons_batchnorm, compiled_batch_of_1e8_poisons_batchnorm,
    real_pictures_of_1e8_in_a_gan, observation_of_1e30, nan_in_a_picture_of_a_diffusion,
    inf_in_a_picture_of_a_compiled_model, nan_in_a_picture_of_a_gan, nan_in_a_reward, nan_in_a_batch_of_an_evaluation,
    nan_weights_of_an_evaluation_s_copy, evaluation_in_train_mode_poisons_batchnorm,
)  # fmt: skip
