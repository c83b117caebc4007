"""Passes over a data set in one and the same order, by a sampler that is there to shuffle."""

from __future__ import annotations

from tests.faults.families import epochs
from tests.faults.fault import Fault, Job, planted

NOT_ORDER = (r"[Ll]ower the learning rate", r"[Mm]ask", "bfloat16", "GradScaler", "leave out samples", "broadcast")


@planted("data", "repeated_order", step=range(24, 32), against=NOT_ORDER)
def sampler_is_not_told_the_epoch(job: Job) -> None:
    epochs.train(job)


@planted("data", "repeated_order", step=range(6, 14), against=NOT_ORDER)
def sampler_of_noisy_microbatches_is_not_told_the_epoch(job: Job) -> None:
    epochs.train(job, accumulate=4, noise=0.1, evaluated_by="in order")


@planted("data", "repeated_order", step=range(24, 32), against=NOT_ORDER)
def sampler_is_told_the_same_epoch_each_time(job: Job) -> None:
    epochs.train(job, says="the same", looks_first=True)


@planted("data", "repeated_random", "repeated_order", step=range(24, 36), against=NOT_ORDER)
def seed_is_set_at_the_top_of_each_epoch(job: Job) -> None:
    epochs.train(job, sampler="random", reseeds=True)


@planted("data", "repeated_order", step=range(24, 36), against=NOT_ORDER)
def sampler_of_its_own_passes_over_the_epoch(job: Job) -> None:
    epochs.train(job, sampler="own", says="epoch", noise=0.05)


@planted("data", "repeated_random", step=range(16, 36), against=NOT_ORDER)
def seed_of_what_is_drawn_is_set_at_the_top_of_each_epoch(job: Job) -> None:
    epochs.drawn(job)


@planted("data", "repeated_random", step=range(40, 60), against=NOT_ORDER)
def seed_of_batches_of_words_is_set_at_the_top_of_each_epoch(job: Job) -> None:
    epochs.drawn(job, batches=40, words=True)


SCRIPTS: tuple[Fault, ...] = tuple(each for each in list(globals().values()) if isinstance(each, Fault))
