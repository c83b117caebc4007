"""Backward passes that break, gradients that vanish and explode, and activations that let none through."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.faults.fault import Job, fault
from tests.faults.models import (
    MLP,
    Convolution,
    Recurrent,
    Transformer,
    cross_entropy,
    deep,
    images,
    rows,
    scale,
    sequences,
    tokens,
)

AT = 33


class Times(nn.Module):
    """Gives what it gets, and multiplies the gradient by `factor`."""

    factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return TimesGradient.apply(x, self.factor)


class TimesGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        return gradient * ctx.factor, None


class ShiftedRoot(nn.Module):
    """Of what is not negative: its slope is infinite at zero."""

    shift = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return torch.sqrt(x * (x > 0) + self.shift)


class RootWhereItIs(nn.Module):
    """`where` takes the NaN out of the output, and not out of the gradient."""

    is_on = False

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, torch.sqrt(x), torch.zeros_like(x)) if self.is_on else torch.relu(x)


def backward(where: str, tensor: str, kind: str = "grad_output", step: int = AT) -> dict[str, Any]:
    return {
        "rule": "first_nonfinite", "tensor": tensor, "kind": kind, "step": step,
        "facts": {"origin": "backward", "where": where},
    }  # fmt: skip


@fault(**backward("middle", "wo"))
def slope_of_a_root_at_zero(job: Job) -> None:
    middle = ShiftedRoot()
    job.train(
        MLP(middle), rows(job.seed), cross_entropy, 45,
        before=lambda step: setattr(middle, "shift", 0.0 if step >= AT else 1.0),
    )  # fmt: skip


@fault(**backward("middle", "wo"))
def root_behind_a_where(job: Job) -> None:
    middle = RootWhereItIs()
    job.train(MLP(middle), rows(job.seed), cross_entropy, 45, before=lambda step: setattr(middle, "is_on", step >= AT))


@fault(**backward("middle", "wo"))
def backward_of_an_own_function_gives_nan(job: Job) -> None:
    middle = Times()
    job.train(
        MLP(middle), rows(job.seed), cross_entropy, 45, dtype=torch.bfloat16,
        before=lambda step: setattr(middle, "factor", float("nan") if step == AT else 1.0),
    )  # fmt: skip


@fault(**backward("wo", "wo.weight", "grad"))
def gradient_of_one_parameter_is_spoiled(job: Job) -> None:
    model = MLP()
    is_on = {"now": False}
    model.wo.weight.register_hook(lambda grad: grad * float("nan") if is_on["now"] else grad)
    job.train(model, rows(job.seed), cross_entropy, 45, before=lambda step: is_on.update(now=step >= AT))


@fault(rule="first_nonfinite", kind="reduced_grad", tensor="up.weight", step=AT, facts={"origin": "reduction"})
def clipping_by_hand_divides_by_zero(job: Job) -> None:
    model = MLP()

    def clip(step: int) -> None:
        if step >= AT:
            for each in model.parameters():
                each.grad *= 0.0 / (each.grad - each.grad).norm()

    job.train(model, rows(job.seed), cross_entropy, 45, after_backward=clip, level="frames")


@fault("exploding_gradient", also=("loss_spike", "headroom_trend"), kind="grad")
def recurrent_gradients_explode(job: Job) -> None:
    """No clipping, and a state that is fed back by more than 1."""
    model = Recurrent(nn.Identity)
    with torch.no_grad():
        model.state.weight.copy_(torch.eye(16) * 0.6)
    job.train(
        model, sequences(job.seed, length=16), cross_entropy, 128,
        optimizer=torch.optim.SGD(model.parameters(), 1e-7),
        before=lambda step: scale(model.state, 1.07) if step >= 110 else None,
    )  # fmt: skip


@fault("vanishing_gradient", kind="grad", tensor="0.weight")
def gradients_vanish_in_deep_sigmoids(job: Job) -> None:
    model = deep(nn.Sigmoid, 14)
    for each in list(model)[2:-1:2]:
        scale(each, 0.2)
    job.train(model, rows(job.seed), cross_entropy, 120)


@fault("vanishing_gradient", kind="grad", words=("blocks.0.attn.v.weight", "its own history"))
def attention_is_cut_off_from_the_loss(job: Job) -> None:
    """One block's output is multiplied by nearly nothing from some step on."""
    model = Transformer(depth=3)

    def cut(step: int) -> None:
        if step == 80:
            scale(model.blocks[0].attn.out, 1e-7)

    model.blocks[0].attn.out.requires_grad_(False)  # so that no update takes the cut back
    job.train(model, tokens(job.seed), cross_entropy, 114, before=cut)


@fault("dead_activation", tensor="act", kind="output", also=("vanishing_gradient",))
def relu_dies(job: Job) -> None:
    model = MLP()

    def kill(step: int) -> None:
        if step == AT:
            with torch.no_grad():
                model.up.bias.fill_(-100.0)

    job.train(model, rows(job.seed), cross_entropy, 90, before=kill)


@fault("dead_activation", tensor="act1", kind="output", also=("vanishing_gradient",))
def convolution_s_relu_dies(job: Job) -> None:
    model = Convolution()

    def kill(step: int) -> None:
        if step == AT:
            with torch.no_grad():
                model.bn1.bias.fill_(-100.0)

    job.train(model, images(job.seed), cross_entropy, 90, before=kill)


@fault("saturated_activation", tensor="act", kind="output", also=("vanishing_gradient",))
def tanh_saturates(job: Job) -> None:
    model = MLP(act=nn.Tanh)
    scale(model.up, 3e4)
    job.train(model, rows(job.seed), cross_entropy, 200, full_every=20)


@fault("saturated_activation", tensor="act", kind="output", also=("vanishing_gradient",))
def sigmoid_closes(job: Job) -> None:
    model = MLP(act=nn.Sigmoid)

    def close(step: int) -> None:
        if step == 40:
            with torch.no_grad():
                model.up.bias.fill_(-20.0)

    job.train(model, rows(job.seed), cross_entropy, 120, before=close)


@fault("attention_logits", tensor="blocks.0.attn.scores", kind="output", also=("vanishing_gradient",))
def attention_logits_grow(job: Job) -> None:
    model = Transformer()
    scale(model.blocks[0].attn.q, 10.0)

    def grow(step: int) -> None:
        if step >= 40:
            scale(model.blocks[0].attn.q, 1.02)
            scale(model.blocks[0].attn.k, 1.02)

    job.train(model, tokens(job.seed), cross_entropy, 220, before=grow)


ALL = (
    slope_of_a_root_at_zero, root_behind_a_where, backward_of_an_own_function_gives_nan,
    gradient_of_one_parameter_is_spoiled, clipping_by_hand_divides_by_zero, recurrent_gradients_explode,
    gradients_vanish_in_deep_sigmoids, attention_is_cut_off_from_the_loss, relu_dies, convolution_s_relu_dies,
    tanh_saturates, sigmoid_closes, attention_logits_grow,
)  # fmt: skip
