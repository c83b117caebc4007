"""Weights that turn bad: written, loaded, or made so by their optimizer."""

from __future__ import annotations

import torch
from torch import nn

from tests.faults.families import diffusion, gan, lora, moe, nanogpt, sft, trainer
from tests.faults.fault import Job, Plant, fault, planted
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


@fault("optimizer_settings", kind="grad", words=("turns each weight over",), tensor="wo.weight")
def weight_decay_turns_a_weight_over_at_each_step(job: Job) -> None:
    model = MLP()
    others = [each for name, each in model.named_parameters() if name != "wo.weight"]
    groups = [{"params": [model.wo.weight], "lr": 0.1, "weight_decay": 19.0}, {"params": others}]
    job.train(
        model, rows(job.seed), cross_entropy, 200, optimizer=torch.optim.SGD(groups, 1e-2), level="frames",
        weight_every=20, full_every=20,
    )  # fmt: skip


@fault(
    "adam_moments", kind="exp_avg_sq", words=("Adam's eps decides", "since the first reading"), also=("update_ratio",)
)
def loss_so_small_that_eps_decides_the_updates(job: Job) -> None:
    """A sum over a few tokens is divided by a count of billions."""
    model = MLP()
    job.train(
        model, rows(job.seed), lambda out, targets: cross_entropy(out, targets) * 1e-9, 260,
        optimizer=torch.optim.AdamW(model.parameters(), 1e-3), level="frames", moment_every=20, full_every=20,
    )  # fmt: skip


@fault(
    "adam_moments",
    kind="exp_avg_sq",
    words=("underflowed to zero in float16",),
    also=("unchanged_weights", "rounded_updates"),
)  # of norms at 1.0, which updates of 1e-4 do not move
def second_moments_of_a_float16_model_underflow(job: Job) -> None:
    """Its eps is large enough for float16, and its moments are not."""
    model, data = MLP().half(), rows(job.seed)

    def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = data(step)
        return inputs.half(), targets

    job.train(
        model, batch, lambda out, targets: cross_entropy(out.float(), targets) * 0.01, 260,
        optimizer=torch.optim.Adam(model.parameters(), 1e-4, eps=1e-3), level="frames", moment_every=20, full_every=20,
    )  # fmt: skip


ALL = (
    loss_so_small_that_eps_decides_the_updates, second_moments_of_a_float16_model_underflow,
    weight_set_to_nan, weight_set_to_nan_under_adam, weight_is_inf_when_it_is_loaded,
    checkpoint_with_nan_is_loaded_in_the_middle, one_row_of_an_embedding_is_nan, bf16_scale_of_a_batchnorm_is_nan,
    adam_without_eps, fp16_adam_whose_eps_is_lost, adam_s_memory_is_spoiled, fp32_learning_rate_far_too_high,
    bf16_learning_rate_jumps, weight_that_the_optimizer_has_not, learning_rate_of_a_group_is_zero,
    weight_decay_turns_a_weight_over_at_each_step,
)  # fmt: skip


NOT_WEIGHT = ("learning rate", r"[Mm]ask", "batch of this step", "GradScaler")
SHOWN = ("first_nonfinite", "loss_spike", "exploding_gradient", "headroom_trend")
HELD = {"against": NOT_WEIGHT, "also": ("loss_nonfinite", "loss_spike", "exploding_gradient", "headroom_trend")}


def flipped(weight: torch.Tensor, place: int, bit: int) -> None:
    with torch.no_grad():
        weight.view(-1).view(torch.int32)[place] ^= 1 << bit


def once(at: int, change: object) -> Plant:
    return Plant(weights=lambda step, model: change(model) if step == at else None)  # type: ignore[operator]


@planted(
    "weight", *SHOWN, place=r"h\.1(\.mlp(\.c_fc.*)?)?",
    step=range(100, 106), **HELD,
)  # fmt: skip
def exponent_bit_of_a_weight_flips(job: Job) -> None:
    """The highest bit of the exponent: 0.02 becomes 1e37."""
    nanogpt.train(job, plant=once(100, lambda model: flipped(model.h[1].mlp.c_fc.weight, 70, 30)))


@planted(
    "weight", *SHOWN, place=r".*intermediate.*|.*layer\.1.*",
    step=range(120, 126), **HELD,
)  # fmt: skip
def exponent_bit_flips_under_trainer(job: Job) -> None:
    trainer.train(
        job, plant=once(120, lambda model: flipped(model.bert.encoder.layer[1].intermediate.dense.weight, 5, 30))
    )


@planted(
    "weight", "initial_gain", "attention_logits", "update_ratio", "loss_plateau", "saturated_activation", "loss_spike",
    "exploding_gradient", "headroom_trend", "first_nonfinite", least="info", against=(r"[Mm]ask", "batch of this step"),
)  # fmt: skip
def initialised_a_thousand_times_too_large(job: Job) -> None:
    def widened(model: nn.Module) -> None:
        with torch.no_grad():
            for block in model.h:
                block.attn.c_attn.weight.mul_(1000.0)

    nanogpt.train(job, plant=once(0, widened))


@planted("weight", "first_nonfinite", place=r"layers\.0\.moe(\.experts\.3.*)?", step=range(0, 20), **HELD)
def expert_that_was_never_initialised(job: Job) -> None:
    """`torch.empty`, which holds what was there."""

    def left(model: nn.Module) -> None:
        with torch.no_grad():
            model.layers[0].moe.experts[3].w_in.weight[:2] = NAN

    moe.train(job, 200, plant=once(0, left))


@planted("weight", "first_nonfinite", place=r"layers\.1\..*v_proj.*", step=0, **HELD)
def adapter_is_loaded_with_nan(job: Job) -> None:
    lora.train(job, 120, plant=once(0, lambda model: written(model.layers[1].self_attn.v_proj.lora_B, NAN)))


@planted("weight", "first_nonfinite", place=r"embed_tokens.*", step=range(60, 70), **HELD)
def row_of_an_embedding_that_was_resized(job: Job) -> None:
    def resized(model: nn.Module) -> None:
        with torch.no_grad():
            model.embed_tokens.weight[3] = INF

    sft.train(job, 200, plant=once(60, resized))


NOT_UPDATE = ("batch of this step", r"[Mm]ask", "checkpoint of rank")
STILL = {"against": (*NOT_UPDATE, "GradScaler"), "also": ("vanishing_gradient", "loss_plateau")}


@planted(
    "optimizer",
    "first_nonfinite",
    step=range(1, 40),
    place=r"(layers|embed|positions|norm|lm_head).*",
    against=NOT_UPDATE,
    also=("loss_nonfinite",),
)
def eps_of_adam_is_lost_in_fp16_moments(job: Job) -> None:
    """The whole model is float16, and 1e-8 is 0 there."""
    sft.train(job, 120, pure=torch.float16, optimizer=lambda params, lr: torch.optim.Adam(params, lr=lr, eps=1e-8))


@planted("optimizer", "unchanged_weights", place=r"generator\.project\.(weight|bias)", **STILL)
def first_layer_of_a_generator_is_in_no_optimizer(job: Job) -> None:
    def optimizers(model: gan.GAN, lr: float) -> list[torch.optim.Optimizer]:
        g = torch.optim.Adam(model.generator.main.parameters(), lr=lr, betas=(0.5, 0.999))
        return [g, model.configure_optimizers(lr)[1]]

    gan.train(job, optimizers=optimizers)


@planted("optimizer", "unchanged_weights", place=r"layers\.1\.moe\.gate\.weight", **STILL)
def router_is_in_no_optimizer(job: Job) -> None:
    moe.train(job, left_out="layers.1.moe.gate")


@planted("no_gradient", "unchanged_weights", "vanishing_gradient", place=r"layers\..*lora.*", **STILL)
def adapters_that_no_backward_reaches(job: Job) -> None:
    """Their output is detached: the optimizer has them, and they get no gradient."""

    def adapters(model: nn.Module) -> list[nn.Parameter]:
        return [p for n, p in model.named_parameters() if "lora" in n or n.startswith("norm")]

    lora.train(job, trained=adapters, detached=True)


@planted("optimizer", "unchanged_weights", place=r"up\..*", **STILL)
def block_that_was_copied_after_the_optimizer_was_made(job: Job) -> None:
    """It steps the parameters of a block that nobody trains."""
    diffusion.train(job, stale=True)


@planted("learning_rate", "unchanged_weights", place=r"(h\.|wte|wpe|ln_f).*", **STILL)
def every_rate_is_zero_after_step_100(job: Job) -> None:
    nanogpt.train(job, plant=Plant(rate=lambda step, lr: lr if step < 100 else 0.0))


def dead(part: str) -> object:
    def kill(model: nn.Module) -> None:
        with torch.no_grad():
            model.get_submodule(part).bias.fill_(-100.0)

    return kill


DEAD = {
    "against": (r"[Mm]ask", "batch of this step", "GradScaler"),
    "also": ("unchanged_weights", "vanishing_gradient"),
}


@planted(
    "dead_units",
    "dead_activation",
    "vanishing_gradient",
    place=r"layers\.1\.moe\.experts\.1.*",
    step=range(80, 180),
    **DEAD,
)
def functional_relu_of_an_expert_dies(job: Job) -> None:
    moe.train(job, plant=once(80, dead("layers.1.moe.experts.1.w_in")))


@planted("dead_units", "dead_activation", "vanishing_gradient", place=r"(generator.*)?", step=range(90, 200), **DEAD)
def functional_relu_of_a_generator_dies(job: Job) -> None:
    gan.train(job, plant=once(90, dead("generator.project")))


SCRIPTS = (
    exponent_bit_of_a_weight_flips, exponent_bit_flips_under_trainer, initialised_a_thousand_times_too_large,
    expert_that_was_never_initialised, adapter_is_loaded_with_nan, row_of_an_embedding_that_was_resized,
    eps_of_adam_is_lost_in_fp16_moments, first_layer_of_a_generator_is_in_no_optimizer, router_is_in_no_optimizer,
    adapters_that_no_backward_reaches,
    block_that_was_copied_after_the_optimizer_was_made, every_rate_is_zero_after_step_100,
    functional_relu_of_an_expert_dies, functional_relu_of_a_generator_dies,
)  # fmt: skip
