"""Values that grow until their dtype does not hold them, slowly and at once."""

from __future__ import annotations

import torch
from torch import nn

from tests.faults.fault import Job, fault
from tests.faults.models import (
    MLP,
    Convolution,
    Recurrent,
    Transformer,
    cross_entropy,
    images,
    rows,
    scale,
    sequences,
    tokens,
)

HALF, BF16 = torch.float16, torch.bfloat16
GROWN = {
    "rule": "first_nonfinite",
    "origin": "forward range",
    "kind": "output",
    "warned": True,
    "also": ("gradient_underflow", "exploding_gradient"),
}
AT_ONCE = {"rule": "first_nonfinite", "origin": "forward range", "kind": "output"}


def scaler() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=1000)


@fault(**GROWN)
def fp16_output_grows_exponentially(job: Job) -> None:
    model = MLP()
    job.train(
        model, rows(job.seed), cross_entropy, 95, dtype=HALF, scaler=scaler(),
        before=lambda step: scale(model.wo, 2**0.4) if step >= 40 else None,
    )  # fmt: skip


@fault(**GROWN)
def fp16_output_grows_linearly(job: Job) -> None:
    model = MLP()

    def grow(step: int) -> None:
        if step > 40:
            scale(model.wo, (step - 39) / (step - 40))

    scale(model.wo, 700.0)
    job.train(model, rows(job.seed), cross_entropy, 200, dtype=HALF, before=grow)


@fault(**GROWN)
def fp16_output_grows_from_the_first_step(job: Job) -> None:
    model = MLP()
    scale(model.wo, 50.0)
    job.train(model, rows(job.seed), cross_entropy, 60, dtype=HALF, before=lambda step: scale(model.wo, 2**0.3))


@fault(**GROWN)
def fp16_output_grows_slowly(job: Job) -> None:
    model = MLP()
    scale(model.wo, 300.0)
    job.train(
        model, rows(job.seed), cross_entropy, 330, dtype=HALF,
        before=lambda step: scale(model.wo, 2**0.04) if step >= 60 else None,
    )  # fmt: skip


@fault(**GROWN)
def fp16_residual_stream_of_a_transformer_grows(job: Job) -> None:
    model = Transformer()
    job.train(
        model, tokens(job.seed), cross_entropy, 110, dtype=HALF, scaler=scaler(),
        before=lambda step: scale(model.blocks[1].ff_out, 2**0.35) if step >= 40 else None,
    )  # fmt: skip


@fault(**GROWN | {"also": (*GROWN.get("also", ()), "attention_logits")})
def fp16_attention_scores_grow(job: Job) -> None:
    model = Transformer()

    def grow(step: int) -> None:
        if step >= 40:
            scale(model.blocks[0].attn.q, 2**0.2)
            scale(model.blocks[0].attn.k, 2**0.2)

    job.train(model, tokens(job.seed), cross_entropy, 110, dtype=HALF, before=grow)


@fault(**GROWN)
def fp16_convolution_before_a_batchnorm_grows(job: Job) -> None:
    model = Convolution()
    job.train(
        model, images(job.seed), cross_entropy, 110, dtype=HALF, scaler=scaler(),
        before=lambda step: scale(model.conv2, 2**0.3) if step >= 40 else None,
    )  # fmt: skip


@fault(**GROWN | {"also": (*GROWN["also"], "loss_spike")})
def fp16_recurrent_state_grows(job: Job) -> None:
    model = Recurrent(nn.ReLU)
    with torch.no_grad():
        model.state.weight.copy_(torch.eye(16))
    job.train(
        model, sequences(job.seed), cross_entropy, 130, dtype=HALF, optimizer=torch.optim.SGD(model.parameters(), 1e-6),
        before=lambda step: scale(model.state, 1.03) if step >= 40 else None,
    )  # fmt: skip


class Exponential(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        largest = x.detach().clamp(min=0).amax(-1, keepdim=True)
        return torch.exp(largest.to(HALF)) + x


@fault(**GROWN)
def fp16_exponential_of_a_growing_value(job: Job) -> None:
    model = MLP(Exponential())
    job.train(
        model, rows(job.seed), cross_entropy, 130, dtype=HALF,
        before=lambda step: scale(model.wo, 1.04) if step >= 40 else None,
    )  # fmt: skip


@fault(**AT_ONCE)
def fp16_one_large_batch(job: Job) -> None:
    data = rows(job.seed)

    def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = data(step)
        return (x * 3e4 if step == 37 else x), y

    job.train(MLP(), batch, cross_entropy, 50, dtype=HALF, scaler=scaler())


@fault(**AT_ONCE)
def fp16_weights_suddenly_large(job: Job) -> None:
    model = Convolution()
    job.train(
        model, images(job.seed), cross_entropy, 60, dtype=HALF,
        before=lambda step: scale(model.conv2, 1e5) if step == 33 else None,
    )  # fmt: skip


class HandMadeSoftmax(nn.Module):
    """Without the largest value taken off first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grown = torch.exp(x)
        return grown / grown.sum(-1, keepdim=True)


@fault(rule="first_nonfinite", origin="forward", kind="output")
def fp16_softmax_without_its_largest_value_taken_off(job: Job) -> None:
    model = MLP(HandMadeSoftmax())
    job.train(
        model, rows(job.seed), cross_entropy, 60, dtype=HALF,
        before=lambda step: scale(model.wo, 300.0) if step == 45 else None,
    )  # fmt: skip


@fault(**GROWN)
def bf16_activations_explode(job: Job) -> None:
    model = MLP()
    job.train(
        model, rows(job.seed), cross_entropy, 130, dtype=BF16, optimizer=torch.optim.SGD(model.parameters(), 1e-8),
        before=lambda step: scale(model.wo, 4.0) if step >= 40 else None,
    )  # fmt: skip


@fault(**GROWN)
def fp32_activations_explode(job: Job) -> None:
    model = MLP()
    job.train(
        model, rows(job.seed), cross_entropy, 100, optimizer=torch.optim.SGD(model.parameters(), 1e-8),
        before=lambda step: scale(model.wo, 8.0) if step >= 40 else None,
    )  # fmt: skip


ALL = (
    fp16_output_grows_exponentially, fp16_output_grows_linearly, fp16_output_grows_from_the_first_step,
    fp16_output_grows_slowly, fp16_residual_stream_of_a_transformer_grows, fp16_attention_scores_grow,
    fp16_convolution_before_a_batchnorm_grows, fp16_recurrent_state_grows, fp16_exponential_of_a_growing_value,
    fp16_one_large_batch, fp16_weights_suddenly_large, fp16_softmax_without_its_largest_value_taken_off,
    bf16_activations_explode, fp32_activations_explode,
)  # fmt: skip
