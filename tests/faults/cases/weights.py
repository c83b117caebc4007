"""Weights that turn bad: written, loaded, or made so by their optimizer."""

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
    deep,
    images,
    rows,
    sequences,
    tokens,
)

AT = 29
NAN, INF = float("nan"), float("inf")


def bad(origin: str, tensor: str | None = None, step: int | None = AT, **more: object) -> dict[str, object]:
    return {"rule": "first_nonfinite", "origin": origin, "tensor": tensor, "step": step, "kind": "output"} | more


def written(weight: torch.Tensor, value: float) -> None:
    with torch.no_grad():
        weight.view(-1)[7] = value


def at(step: int, what: object) -> object:
    return lambda now: what() if now == step else None  # type: ignore[operator]


@fault(**bad("weight", "wo"))
def weight_set_to_nan(job: Job) -> None:
    model = MLP()
    job.train(model, rows(job.seed), cross_entropy, 45, before=at(AT, lambda: written(model.wo.weight, NAN)))


@fault(**bad("weight written", "blocks.1.ff_in"))
def weight_set_to_nan_under_adam(job: Job) -> None:
    model = Transformer()
    job.train(
        model, tokens(job.seed), cross_entropy, 45, optimizer=torch.optim.AdamW(model.parameters(), 1e-3),
        before=at(AT, lambda: written(model.blocks[1].ff_in.weight, NAN)),
    )  # fmt: skip


@fault(**bad("weight", "conv2", 0))
def weight_is_inf_when_it_is_loaded(job: Job) -> None:
    model = Convolution()
    written(model.conv2.weight, INF)
    job.train(model, images(job.seed), cross_entropy, 20)


@fault(**bad("weight", "state"))
def checkpoint_with_nan_is_loaded_in_the_middle(job: Job) -> None:
    model = Recurrent()
    loaded = {name: value.clone() for name, value in model.state_dict().items()}
    written(loaded["state.weight"], NAN)
    job.train(model, sequences(job.seed), cross_entropy, 45, before=at(AT, lambda: model.load_state_dict(loaded)))


@fault(**bad("weight", step=None))
def one_row_of_an_embedding_is_nan(job: Job) -> None:
    """It shows with the first batch that has this word."""
    model = Transformer()

    def spoil() -> None:
        with torch.no_grad():
            model.embed.weight[3] = NAN

    job.train(model, tokens(job.seed), cross_entropy, 45, before=at(AT, spoil))


@fault(**bad("weight", "bn2"))
def bf16_scale_of_a_batchnorm_is_nan(job: Job) -> None:
    model = Convolution()
    job.train(
        model, images(job.seed), cross_entropy, 45, dtype=torch.bfloat16,
        before=at(AT, lambda: written(model.bn2.weight, NAN)),
    )  # fmt: skip


class WithUnused(MLP):
    """One parameter has a gradient of exactly zero."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(8, 32, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.wo(self.act(self.up(x))) + 0.0 * self.unused(x)))


@fault(**bad("optimizer eps", "unused", 1))
def adam_without_eps(job: Job) -> None:
    model = WithUnused()
    job.train(model, rows(job.seed), cross_entropy, 20, optimizer=torch.optim.Adam(model.parameters(), 1e-3, eps=0.0))


@fault(**bad("optimizer eps", "0", 1))
def fp16_adam_whose_eps_is_lost(job: Job) -> None:
    model, data = deep(nn.ReLU, 1).half(), rows(job.seed)
    job.train(
        model, lambda step: (data(step)[0].half() * 1e-3, data(step)[1]), lambda out, y: cross_entropy(out.float(), y),
        20, optimizer=torch.optim.Adam(model.parameters(), 1e-3, eps=1e-8),
    )  # fmt: skip


@fault(**bad("optimizer state", "wo", AT + 1))
def adam_s_memory_is_spoiled(job: Job) -> None:
    model = MLP()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    job.train(
        model, rows(job.seed), cross_entropy, 45, optimizer=optimizer,
        before=at(AT, lambda: written(optimizer.state[model.wo.weight]["exp_avg"], NAN)),
    )  # fmt: skip


@fault(**bad("loss", None, None, kind="grad", also=("headroom_trend", "exploding_gradient", "loss_spike")))
def fp32_learning_rate_far_too_high(job: Job) -> None:
    model, data = deep(nn.Identity, 2), rows(job.seed)
    job.train(
        model, lambda step: (data(step)[0], torch.zeros(16, 4)), lambda out, y: (out - y).square().mean(), 60,
        optimizer=torch.optim.SGD(model.parameters(), 3.0),
    )  # fmt: skip


@fault(**bad("loss", None, None, kind="grad", also=("headroom_trend", "exploding_gradient", "loss_spike")))
def bf16_learning_rate_jumps(job: Job) -> None:
    model, data = deep(nn.Identity, 2), rows(job.seed)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)

    def jump() -> None:
        optimizer.param_groups[0]["lr"] = 20.0

    job.train(
        model, lambda step: (data(step)[0], torch.ones(16, 4)), lambda out, y: (out - y).square().mean(), 120,
        optimizer=optimizer, dtype=torch.bfloat16, before=at(50, jump),
    )  # fmt: skip


@fault("unchanged_weights", tensor="wo.weight", kind="weight")
def weight_that_the_optimizer_has_not(job: Job) -> None:
    model = MLP()
    others = [each for name, each in model.named_parameters() if name != "wo.weight"]
    job.train(
        model, rows(job.seed), cross_entropy, 200, optimizer=torch.optim.SGD(others, 1e-2), level="frames",
        weight_every=20, full_every=20,
    )  # fmt: skip


@fault("unchanged_weights", tensor="conv1.weight", kind="weight")
def learning_rate_of_a_group_is_zero(job: Job) -> None:
    model = Convolution()
    groups = [{"params": model.conv1.parameters(), "lr": 0.0}, {"params": model.conv2.parameters()}]
    job.train(
        model, images(job.seed), cross_entropy, 200, optimizer=torch.optim.SGD(groups, 1e-2), level="frames",
        weight_every=20, full_every=20,
    )  # fmt: skip


@fault("update_ratio", kind="update", words=("too large",), tensor="wo.weight")
def weight_decay_turns_a_weight_over_at_each_step(job: Job) -> None:
    model = MLP()
    others = [each for name, each in model.named_parameters() if name != "wo.weight"]
    groups = [{"params": [model.wo.weight], "lr": 0.1, "weight_decay": 19.0}, {"params": others}]
    job.train(
        model, rows(job.seed), cross_entropy, 200, optimizer=torch.optim.SGD(groups, 1e-2), level="frames",
        weight_every=20, full_every=20,
    )  # fmt: skip


ALL = (
    weight_set_to_nan, weight_set_to_nan_under_adam, weight_is_inf_when_it_is_loaded,
    checkpoint_with_nan_is_loaded_in_the_middle, one_row_of_an_embedding_is_nan, bf16_scale_of_a_batchnorm_is_nan,
    adam_without_eps, fp16_adam_whose_eps_is_lost, adam_s_memory_is_spoiled, fp32_learning_rate_far_too_high,
    bf16_learning_rate_jumps, weight_that_the_optimizer_has_not, learning_rate_of_a_group_is_zero,
    weight_decay_turns_a_weight_over_at_each_step,
)  # fmt: skip
