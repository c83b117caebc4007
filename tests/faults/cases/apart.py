"""Ranks that train apart, though their wrapper should have kept them alike."""

from __future__ import annotations

from tests.faults.families import apart
from tests.faults.fault import Fault, Job, planted

NOT_APART = (r"[Ll]ower the learning rate", r"[Mm]ask", "bfloat16", "GradScaler", "leave out samples")


@planted("replicas", "gradients_not_reduced", step=range(0, 8), ranks=2, against=NOT_APART)
def sharded_over_the_axis_of_one_rank(job: Job) -> None:
    apart.train(job)


@planted("replicas", "gradients_not_reduced", step=range(0, 8), ranks=2, against=NOT_APART)
def pictures_are_sharded_over_the_axis_of_one_rank(job: Job) -> None:
    apart.train(job, axes=("ddp", "fsdp"), pictures=True)


@planted("replicas", "gradients_not_reduced", step=range(0, 8), ranks=2, against=NOT_APART, least="info")
def wrapped_over_a_group_of_its_own(job: Job) -> None:
    apart.train(job, wrap=apart.by_ddp)


@planted("replicas", "gradients_not_reduced", step=range(0, 8), ranks=2, against=NOT_APART, least="info")
def flattened_over_a_group_of_its_own(job: Job) -> None:
    apart.train(job, wrap=apart.by_fsdp1)


SCRIPTS: tuple[Fault, ...] = tuple(each for each in list(globals().values()) if isinstance(each, Fault))
