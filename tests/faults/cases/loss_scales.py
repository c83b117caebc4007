"""Loss scales: skipped steps that are right, and scales that fall, stand still or grow past use."""

from __future__ import annotations

import torch

from tests.faults.cases.gradients import Times
from tests.faults.families import diffusion, nanogpt, scaled, setups
from tests.faults.fault import Job, Plant, fault, planted
from tests.faults.models import MLP, cross_entropy, rows

HALF = torch.float16
AT = 61


def scaler(init_scale: float = 2.0**10, growth_interval: int = 20) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=growth_interval)


def with_gradient(job: Job, factor: object, steps: int, given: torch.amp.GradScaler | None, **more: object) -> None:
    """Gradients before `middle` are multiplied by `factor(step)`."""
    middle = Times()
    job.train(
        MLP(middle), rows(job.seed), cross_entropy, steps, dtype=HALF, scaler=given, full_every=20,
        before=lambda step: setattr(middle, "factor", factor(step)), **more,  # type: ignore[operator]
    )  # fmt: skip


@fault("")
def gradient_overflow_that_the_scaler_skips(job: Job) -> None:
    with_gradient(job, lambda step: 1e30 if step in (40, 90) else 1.0, 140, scaler())


@fault("")
def search_for_the_first_scale(job: Job) -> None:
    with_gradient(job, lambda step: 1.0, 120, scaler(2.0**40, 40))


@fault("loss_scale_collapse", step=AT)
def loss_scale_falls_at_every_step(job: Job) -> None:
    with_gradient(job, lambda step: float("nan") if step >= AT else 1.0, 90, scaler())


@fault("loss_scale_collapse", step=AT)
def gradient_is_inf_at_any_scale(job: Job) -> None:
    with_gradient(job, lambda step: 1e35 if step >= AT else 1.0, 90, scaler())


@fault("loss_scale_never_grows", words=("only falls",), step=75)
def loss_scale_only_falls(job: Job) -> None:
    with_gradient(job, lambda step: 1e30 if step > 60 and step % 15 == 0 else 1.0, 200, scaler(2.0**13))


@fault("loss_scale_never_grows", words=("skipped",))
def loss_scale_is_driven(job: Job) -> None:
    with_gradient(job, lambda step: 1.0, 280, scaler(2.0**16, 2))


@fault("gradient_underflow", words=("loss is not scaled",))
def fp16_without_a_scaler_underflows(job: Job) -> None:
    with_gradient(job, lambda step: 1e-6, 120, None)


@fault("gradient_underflow", words=("The loss scale is 1",))
def fp16_with_a_fixed_scale_that_is_too_low(job: Job) -> None:
    with_gradient(job, lambda step: 1e-6, 120, scaler(1.0, 10**9))


@fault("loss_scale_growing_past_use", rank=None, words=("float16",))
def fp32_with_a_scaler_that_grows(job: Job) -> None:
    job.train(MLP(), rows(job.seed), cross_entropy, 120, scaler=scaler(2.0**16, 20))


@fault("loss_scale_growing_past_use", rank=None, words=("zero",))
def every_gradient_is_zero(job: Job) -> None:
    job.train(
        MLP(), rows(job.seed), lambda out, y: cross_entropy(out, y) * 0.0, 200, dtype=HALF, scaler=scaler(2.0**16, 10)
    )


ALL = (
    gradient_overflow_that_the_scaler_skips, search_for_the_first_scale, loss_scale_falls_at_every_step,
    gradient_is_inf_at_any_scale, loss_scale_only_falls, loss_scale_is_driven, fp16_without_a_scaler_underflows,
    fp16_with_a_fixed_scale_that_is_too_low, fp32_with_a_scaler_that_grows, every_gradient_is_zero,
)  # fmt: skip


SCALED = {
    "against": (r"[Mm]ask", "batch of this step", "tensors of the checkpoint"),
    "also": ("unchanged_weights", "loss_plateau"),
}


def fixed(scale: float) -> object:
    """A scaler that never grows and hardly falls."""
    return lambda: torch.amp.GradScaler("cpu", init_scale=scale, backoff_factor=0.999, growth_interval=10**9)


def spiking(at: range, place: str, factor: float = 1e30) -> Plant:
    """The gradient that passes `place` overflows float16 at these steps."""

    def inside(step: int, name: str, value: torch.Tensor) -> torch.Tensor:
        if step in at and name == place:
            value = value * 1.0
            value.register_hook(lambda grad: grad * factor)
        return value

    return Plant(inside=inside)


@planted("loss_scale", "loss_scale_collapse", "loss_scale_never_grows", **SCALED)
def gpt_with_a_scale_that_is_far_too_large(job: Job) -> None:
    nanogpt.train(job, 250, dtype=HALF, scaler=fixed(2.0**60))


@planted("backward_arithmetic", "loss_scale_collapse", place=r"(h\.[01]|wte|wpe)\b.*", step=range(100, 104), **SCALED)
def gradients_of_a_gpt_overflow_at_every_step(job: Job) -> None:
    nanogpt.train(job, 250, plant=spiking(range(100, 250), "h.1.mlp"), dtype=HALF, scaler=scaler)


@planted("loss_scale", "gradient_underflow", "underflow_rising", "vanishing_gradient", **SCALED)
def scaler_of_a_gpt_is_forgotten(job: Job) -> None:
    """float16, and a loss that is a mean over a thousand micro steps."""
    nanogpt.train(job, 250, plant=Plant(loss=lambda step, loss: loss * 1e-5), dtype=HALF, full_every=20)


@planted(
    "backward_arithmetic",
    "first_nonfinite",
    "loss_scale_collapse",
    "loss_scale_unexplained_skip",
    least="info",
    place=r"(middle|down|conv_in|time_mlp)\b.*",
    step=140,
    **SCALED,
)
def one_gradient_of_a_diffusion_overflows_and_is_skipped(job: Job) -> None:
    diffusion.train(job, 250, plant=spiking(range(140, 141), "middle"), dtype=HALF, scaler=scaler, ch=4)


@planted("loss_scale", "loss_scale_never_grows", "loss_scale_collapse", least="info", **SCALED)
def interval_of_growth_is_two_steps(job: Job) -> None:
    """The scale is driven into an overflow at every third step."""
    nanogpt.train(job, dtype=HALF, scaler=lambda: scaler(2.0**16, 2))


NOT_SCALE = ("[Ll]ower the learning rate", "mask", "larger initial", "Check the data")


@planted("loss_scale", "unscaled_loss", step=0, against=NOT_SCALE)
def second_of_two_losses_is_not_scaled(job: Job) -> None:
    setups.two_tasks(job, second="not")


@planted("loss_scale", "unscaled_loss", step=range(80, 96), against=NOT_SCALE)
def part_of_a_loss_is_added_after_it_was_scaled(job: Job) -> None:
    setups.two_tasks(job, second="added after", at=80, optimizer=torch.optim.AdamW, lr=2e-3)


@planted("loss_scale", "unscaled_loss", step=range(60, 76), against=NOT_SCALE)
def loss_of_a_second_stage_is_not_scaled(job: Job) -> None:
    setups.scaled_at_first(job, until=60)


@planted("loss_scale", "loss_scale_collapse", step=0, against=("[Ll]ower the learning rate", "mask", "Check the data"))
def scaler_is_made_anew_in_each_step(job: Job) -> None:
    """Nothing is learned: not one step is made."""
    scaled.classes(job, is_anew=True, scale=2.0**24)


@planted("loss_scale", "loss_scale_collapse", step=0, against=("[Ll]ower the learning rate", "mask", "bfloat16"))
def gradient_penalty_is_made_of_scaled_gradients(job: Job) -> None:
    scaled.penalised(job, is_unscaled=False)


@planted("loss_scale", "gradients_changed", step=range(40, 60), against=NOT_SCALE)
def gradients_are_unscaled_twice(job: Job) -> None:
    """By hand first, for a log of their norm."""
    scaled.classes(job, 260, divided=40, is_passed=True, **scaled.SGD)


@planted("loss_scale", "gradients_changed", "unchanged_weights", step=range(17, 64), against=NOT_SCALE)
def gradients_are_unscaled_twice_for_adam(job: Job) -> None:
    scaled.classes(job, 300, divided=40, is_passed=True, optimizer=torch.optim.Adam)


SCRIPTS = (
    scaler_is_made_anew_in_each_step, gradient_penalty_is_made_of_scaled_gradients, gradients_are_unscaled_twice,
    gradients_are_unscaled_twice_for_adam,
    second_of_two_losses_is_not_scaled, part_of_a_loss_is_added_after_it_was_scaled,
    loss_of_a_second_stage_is_not_scaled,
    gpt_with_a_scale_that_is_far_too_large, gradients_of_a_gpt_overflow_at_every_step, scaler_of_a_gpt_is_forgotten,
    one_gradient_of_a_diffusion_overflows_and_is_skipped, interval_of_growth_is_two_steps,
)  # fmt: skip
