"""Learning-rate schedules that start over, or go on from a wrong place, where a training is resumed."""

from __future__ import annotations

import torch

from tests.faults.families import resumes
from tests.faults.families.resumes import cosine, linear, replayed
from tests.faults.fault import Fault, Job, planted

NOT_SCHEDULE = (r"[Ll]ower the learning rate", r"[Mm]ask", "bfloat16", "GradScaler", "leave out samples")


@planted("learning_rate", "schedule_restarted", step=110, against=NOT_SCHEDULE)
def resumed_schedule_starts_over(job: Job) -> None:
    resumes.train(job, plan=replayed(linear(50, 400), 110, 0), resumed_at=110)


@planted("learning_rate", "schedule_restarted", step=130, against=NOT_SCHEDULE)
def resumed_cosine_counts_epochs(job: Job) -> None:
    resumes.train(job, plan=replayed(cosine(60, 300), 130, 13), resumed_at=130, lr=0.1, optimizer=torch.optim.SGD)


@planted("learning_rate", "schedule_restarted", step=140, against=NOT_SCHEDULE)
def resumed_decay_starts_over_at_its_peak(job: Job) -> None:
    resumes.train(job, plan=replayed(cosine(1, 220), 140, 1), resumed_at=140)


@planted("learning_rate", "schedule_restarted", step=100, against=NOT_SCHEDULE)
def schedule_is_made_anew_from_the_number_of_the_epoch(job: Job) -> None:
    resumes.train(job, plan=replayed(linear(40, 300), 100, 5))


@planted("learning_rate", "schedule_restarted", step=100, against=NOT_SCHEDULE, least="info")
def schedule_is_made_anew_in_the_midst_of_a_training(job: Job) -> None:
    resumes.train(job, plan=replayed(linear(40, 300), 100, 0))


@planted("learning_rate", "schedule_turned", step=100, against=NOT_SCHEDULE)
def cosine_is_moved_past_its_end(job: Job) -> None:
    resumes.train(job, plan=resumes.periodic(100))


@planted("learning_rate", "schedule_turned", step=120, against=NOT_SCHEDULE)
def cosine_with_a_warm_up_has_a_whole_cycle(job: Job) -> None:
    resumes.train(job, plan=resumes.periodic(100, warmup=20), lr=0.1, optimizer=torch.optim.SGD)


@planted("learning_rate", "schedule_over", step=range(40, 130), against=NOT_SCHEDULE)
def decay_of_an_epoch_is_made_at_each_step(job: Job) -> None:
    resumes.train(job, plan=resumes.decays(0.9))


@planted("learning_rate", "schedule_over", step=range(80, 140), against=NOT_SCHEDULE)
def step_lr_counts_batches(job: Job) -> None:
    resumes.train(job, 400, plan=lambda n: 0.5 ** (n // 9), lr=0.1, optimizer=torch.optim.SGD)


@planted("learning_rate", "update_ratio", step=range(0, 64), against=NOT_SCHEDULE)
def lambda_returns_the_rate_and_no_factor(job: Job) -> None:
    resumes.by_lambda(job, factor=lambda lr: lambda n: lr * (1 + 0.001 * n) ** -0.75)


SCRIPTS: tuple[Fault, ...] = tuple(each for each in list(globals().values()) if isinstance(each, Fault))
