"""Gradient accumulation that is ramped up without dividing by the number of microbatches."""

from __future__ import annotations

from tests.faults.families import microbatches
from tests.faults.fault import Fault, Job, planted

NOT_SUM = (r"[Mm]ask", "bfloat16", "GradScaler", "leave out samples", "larger eps")
FOLLOWS = ("loss_spike", "exploding_gradient", "update_ratio", "learning_lost")


@planted("learning_rate", "summed_microbatches", step=100, against=NOT_SUM, also=FOLLOWS)
def eight_microbatches_are_summed(job: Job) -> None:
    microbatches.ramped(job, divides=False)


@planted("learning_rate", "summed_microbatches", step=100, against=NOT_SUM, also=FOLLOWS)
def microbatches_of_words_are_summed_and_no_loss_is_logged(job: Job) -> None:
    microbatches.ramped(job, kind="words", few=2, many=8, divides=False, logs="nothing", lr=0.05)


@planted("learning_rate", "summed_microbatches", step=70, against=NOT_SUM, also=FOLLOWS)
def batch_of_pictures_is_cut_in_four_and_summed(job: Job) -> None:
    microbatches.ramped(job, kind="pictures", many=4, at=70, divides=False, logs="sum", same_batch=True, lr=5e-3)


SCRIPTS: tuple[Fault, ...] = tuple(each for each in list(globals().values()) if isinstance(each, Fault))
