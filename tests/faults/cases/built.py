"""Optimizers and checkpoints of what a model was before it was changed."""

from __future__ import annotations

from tests.faults.families import built
from tests.faults.fault import Fault, Job, planted

NOT_BUILT = ("[Ll]ower the learning rate", "GradScaler", "attention mask", "leave out samples")


@planted("optimizer", "unchanged_weights", place=r"convs\..*", step=range(0, 64), against=NOT_BUILT)
def weight_norm_is_put_on_after_the_optimizer_was_made(job: Job) -> None:
    built.normed(job, is_late=True)


@planted("weight", "first_nonfinite", place=r"turned.*", step=120, against=NOT_BUILT)
def buffer_of_no_checkpoint_is_what_the_memory_was(job: Job) -> None:
    built.emptied(job, at=120, is_anew=False)


@planted("optimizer", "unchanged_weights", step=0, against=NOT_BUILT)
def layers_in_a_plain_list(job: Job) -> None:
    built.listed(job, kind=list)


SCRIPTS: tuple[Fault, ...] = tuple(each for each in list(globals().values()) if isinstance(each, Fault))
