"""Learning rates that are far too low, restart too high or end too soon, and weight decay that is far too strong."""

from __future__ import annotations

import torch

from tests.faults.families import schedules
from tests.faults.families.schedules import own_decay, torch_decay
from tests.faults.fault import Fault, Job, planted

RATES = ("exploding_gradient", "loss_spike", "learning_lost", "headroom_trend", "first_nonfinite", "update_ratio")
NOT_RATE = (r"[Mm]ask", "bfloat16", "GradScaler", "leave out samples")


@planted("learning_rate", *RATES, step=range(49, 100), against=NOT_RATE, also=RATES)
def second_cosine_begins_a_hundred_times_too_high(job: Job) -> None:
    schedules.restarted(job, cycle=50, times=100.0, kind="words")


@planted("learning_rate", *RATES, step=range(99, 140), against=NOT_RATE, also=RATES)
def rate_is_raised_to_1(job: Job) -> None:
    schedules.raised(job, low=1e-3, high=1.0)


NOT_HIGHER = (r"[Ll]ower the learning rate", r"[Mm]ask", "GradScaler", "leave out samples")


@planted("learning_rate", "update_ratio", step=range(0, 240), against=NOT_HIGHER)
def warm_up_of_400_moves_is_moved_once_an_epoch(job: Job) -> None:
    schedules.warmed(job, moves=400, every=60)


@planted("learning_rate", "update_ratio", step=range(0, 240), against=NOT_HIGHER)
def warm_up_of_words_is_moved_once_in_30_steps(job: Job) -> None:
    schedules.warmed(job, moves=1_000, every=30, kind="words")


@planted("learning_rate", "update_ratio", step=range(0, 240), against=NOT_HIGHER)
def scheduler_of_a_warm_up_is_never_moved(job: Job) -> None:
    schedules.warmed(job, moves=500, every=10_000)


@planted("learning_rate", "update_ratio", step=range(0, 240), against=NOT_HIGHER)
def rate_of_adamw_is_1e_9(job: Job) -> None:
    schedules.constant(job, lr=1e-9)


@planted("learning_rate", "update_ratio", step=range(0, 240), against=NOT_HIGHER)
def rate_of_sgd_is_1e_7(job: Job) -> None:
    schedules.constant(job, lr=1e-7, optimizer=torch.optim.SGD, kind="words")


@planted("learning_rate", "unchanged_weights", step=range(128, 133), against=NOT_HIGHER)
def scheduler_is_moved_twice_a_step(job: Job) -> None:
    schedules.ends(job, length=260, moves=2)


@planted("learning_rate", "unchanged_weights", step=range(99, 102), against=NOT_HIGHER)
def cosine_of_100_steps_in_a_training_of_260(job: Job) -> None:
    schedules.ends(job, length=100, kind="cosine", text=True)


@planted(
    "learning_rate", "schedule_begins_high", step=range(0, 8), against=("GradScaler", "bfloat16", r"[Mm]ask"),
    also=("loss_spike", "short_spike", "exploding_gradient"),
)  # fmt: skip
def warm_up_that_is_upside_down(job: Job) -> None:
    schedules.begins_high(job)


NOT_DECAY = (r"[Mm]ask", "bfloat16", "GradScaler", "leave out samples", r"[LlRr](ower|aise) the learning rate")


@planted("optimizer", "update_ratio", step=range(0, 200), against=NOT_DECAY)
def decay_is_not_multiplied_by_the_rate(job: Job) -> None:
    schedules.decayed(job, make=own_decay(0.1, by_rate=False))


@planted("optimizer", "update_ratio", step=range(0, 200), against=NOT_DECAY)
def decay_of_words_is_not_multiplied_by_the_rate(job: Job) -> None:
    schedules.decayed(job, make=own_decay(0.05, by_rate=False, lr=1e-3), kind="words")


@planted("optimizer", "optimizer_settings", "update_ratio", step=range(0, 200), against=NOT_DECAY)
def decay_of_adamw_is_100(job: Job) -> None:
    schedules.decayed(job, make=torch_decay("AdamW", lr=1e-3, weight_decay=100.0), rise=1)


SCRIPTS: tuple[Fault, ...] = tuple(each for each in list(globals().values()) if isinstance(each, Fault))
