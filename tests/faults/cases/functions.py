"""Operations that are not finite where they are, and data that is bad when it comes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.faults.fault import Job, fault
from tests.faults.models import (
    MLP,
    Batch,
    Convolution,
    Transformer,
    cross_entropy,
    images,
    rows,
    tokens,
)

AT = 31
BAD = {"rule": "first_nonfinite", "kind": "output"}
DATA = {"rule": "first_nonfinite", "kind": "output", "origin": "data", "step": AT}
LOSS = {"rule": "first_nonfinite", "kind": "grad_output", "origin": "loss", "step": AT, "tensor": "head"}
TARGETS = LOSS | {"origin": "loss given"}
"""What the loss is given beside outputs is read from its graph."""


class Behind(nn.Module):
    """`made` of what `before` makes, when it is on: `made` is the module that is at fault."""

    is_on = False

    def __init__(self, made: nn.Module, before: object) -> None:
        super().__init__()
        self.made, self.before = made, before

    def forward(self, x: Tensor) -> Tensor:
        return self.made(self.before(x) if self.is_on else torch.sigmoid(x) * 0.5 + 0.1)  # type: ignore[operator]


class Log(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.log(x)


class Root(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sqrt(x)


class Power(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x**0.3


class Arccosine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.acos(x)


class Inverse(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 1.0 / x


class Share(nn.Module):
    """Of each in the sum of all."""

    def forward(self, x: Tensor) -> Tensor:
        return x / x.sum(-1, keepdim=True)


def planted(job: Job, module: nn.Module, before: object) -> None:
    middle = Behind(module, before)
    model = MLP(middle)
    job.train(model, rows(job.seed), cross_entropy, 45, before=lambda step: setattr(middle, "is_on", step >= AT))


@fault(**BAD, origin="forward zero", step=AT, tensor="middle.made")
def log_of_zero(job: Job) -> None:
    planted(job, Log(), torch.relu)


@fault(**BAD, origin="forward negative", step=AT, tensor="middle.made")
def log_of_negative_values(job: Job) -> None:
    planted(job, Log(), torch.tanh)


@fault(**BAD, origin="forward negative", step=AT, tensor="middle.made")
def root_of_negative_values(job: Job) -> None:
    planted(job, Root(), torch.tanh)


@fault(**BAD, origin="forward negative", step=AT, tensor="middle.made")
def broken_power_of_negative_values(job: Job) -> None:
    planted(job, Power(), torch.tanh)


@fault(**BAD, step=AT, tensor="middle.made", facts={"origin": "forward"})
def arccosine_beyond_one(job: Job) -> None:
    planted(job, Arccosine(), lambda x: x.sign() * 1.000001)


@fault(**BAD, origin="forward zero", step=AT, tensor="middle.made")
def division_by_zero(job: Job) -> None:
    planted(job, Inverse(), torch.relu)


@fault(**BAD, origin="forward zero", step=AT, tensor="middle.made")
def share_of_nothing(job: Job) -> None:
    planted(job, Share(), lambda x: x * 0.0)


def masked(job: Job, *, called: bool) -> None:
    model, now = Transformer(called=called), {"step": 0}

    def mask(logits: Tensor) -> Tensor:
        left_out = torch.ones(logits.shape, dtype=torch.bool).triu(1)
        if now["step"] >= AT:
            left_out[0, 3] = True
        return left_out

    model.blocks[0].attn.mask = mask
    job.train(model, tokens(job.seed), cross_entropy, 45, before=lambda step: now.update(step=step))


@fault(**BAD, origin="forward masked", step=AT, tensor="blocks.0.attn.softmax")
def attention_row_masked_whole(job: Job) -> None:
    masked(job, called=False)


@fault(**BAD, step=AT, tensor="blocks.0.attn.out", facts={"origin": "between", "where": "blocks.0.attn"})
def attention_row_masked_whole_between_modules(job: Job) -> None:
    masked(job, called=True)


def constant(model: MLP, step: int) -> None:
    """What comes to the normalisation is 1 everywhere."""
    if step >= AT:
        with torch.no_grad():
            model.wo.weight.zero_()
            model.wo.bias.fill_(1.0)


@fault(**BAD, step=AT, tensor="norm", facts={"origin": "forward"}, words=("eps",))
def layernorm_without_eps_of_constant_values(job: Job) -> None:
    model = MLP()
    model.norm.eps = 0.0
    job.train(model, rows(job.seed), cross_entropy, 45, before=lambda step: constant(model, step))


class HalfNorm(nn.Module):
    """A normalisation by hand in float16, in which its eps is zero."""

    eps = 1e-8

    def forward(self, x: Tensor) -> Tensor:
        x = x.half()
        x = x - x.mean(-1, keepdim=True)
        return x / torch.sqrt(x.square().mean(-1, keepdim=True) + self.eps)


@fault(**BAD, step=AT, tensor="middle", facts={"origin": "forward"}, words=("eps",))
def fp16_normalisation_whose_eps_is_lost(job: Job) -> None:
    model = MLP(HalfNorm())
    job.train(model, rows(job.seed), cross_entropy, 45, dtype=torch.float16, before=lambda step: constant(model, step))


def changed(data: object, change: object) -> object:
    def batch(step: int) -> Batch:
        x, y = data(step)  # type: ignore[operator]
        return change(x, y) if step == AT else (x, y)  # type: ignore[operator]

    return batch


def spoiled(values: Tensor, value: float) -> Tensor:
    values = values.clone()
    values.view(-1)[5] = value
    return values


@fault(**DATA, tensor="up")
def nan_in_one_row_of_a_batch(job: Job) -> None:
    job.train(MLP(), changed(rows(job.seed), lambda x, y: (spoiled(x, float("nan")), y)), cross_entropy, 45)


@fault(**DATA, tensor="conv1")
def inf_in_one_pixel_of_an_image(job: Job) -> None:
    job.train(Convolution(), changed(images(job.seed), lambda x, y: (spoiled(x, float("inf")), y)), cross_entropy, 45)


@fault(**DATA, tensor="conv1")
def bf16_nan_in_an_image(job: Job) -> None:
    batch = changed(images(job.seed), lambda x, y: (spoiled(x, float("nan")), y))
    job.train(Convolution(), batch, cross_entropy, 45, dtype=torch.bfloat16)


def regression(job: Job, value: float) -> None:
    data = rows(job.seed)
    batch = changed(lambda step: (data(step)[0], torch.randn(16, 4)), lambda x, y: (x, spoiled(y, value)))
    job.train(MLP(), batch, F.mse_loss, 45)


@fault(**TARGETS)
def nan_in_the_targets(job: Job) -> None:
    regression(job, float("nan"))


@fault(**TARGETS)
def inf_in_the_targets(job: Job) -> None:
    regression(job, float("inf"))


@fault(rule="loss_nonfinite", step=AT)
def no_target_is_left_in_a_batch(job: Job) -> None:
    job.train(MLP(), changed(rows(job.seed), lambda x, y: (x, torch.full_like(y, -100))), cross_entropy, 45)


@fault(rule="loss_nonfinite", step=AT)
def loss_is_nan_and_every_tensor_clean(job: Job) -> None:
    """What is logged is NaN, such as a mean over no values; what is trained with is not."""
    job.train(MLP(), rows(job.seed), cross_entropy, 45, logged=lambda step, loss: float("nan") if step == AT else loss)


ALL = (
    log_of_zero, log_of_negative_values, root_of_negative_values, broken_power_of_negative_values,
    arccosine_beyond_one, division_by_zero, share_of_nothing, attention_row_masked_whole,
    attention_row_masked_whole_between_modules, layernorm_without_eps_of_constant_values,
    fp16_normalisation_whose_eps_is_lost, nan_in_one_row_of_a_batch, inf_in_one_pixel_of_an_image,
    bf16_nan_in_an_image, nan_in_the_targets, inf_in_the_targets, no_target_is_left_in_a_batch,
    loss_is_nan_and_every_tensor_clean,
)  # fmt: skip
