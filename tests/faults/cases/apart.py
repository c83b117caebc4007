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


@planted("replicas", "replica_mismatch", rank=None, step=range(0, 1), ranks=2, against=NOT_APART)
def each_rank_begins_with_its_own_seed_and_reduces_by_hand(job: Job) -> None:
    apart.by_hand(job, own_seed=True)


@planted("replicas", "replica_mismatch", rank=None, step=range(40, 142), ranks=2, against=NOT_APART)
def gradients_that_are_none_are_not_reduced_by_hand(job: Job) -> None:
    apart.by_hand(job, skips_from=40)


@planted("replicas", "replica_mismatch", rank=None, step=range(1, 102), ranks=2, against=NOT_APART)
def each_rank_clips_by_a_norm_of_its_own_after_it_has_reduced_by_hand(job: Job) -> None:
    apart.by_hand(job, own_clip=True)


@planted("replicas", "replica_mismatch", rank=None, step=range(0, 102), ranks=2, against=NOT_APART)
def gradients_are_reduced_to_the_first_rank_alone_by_hand(job: Job) -> None:
    apart.by_hand(job, to_the_first=True)


@planted("replicas", "gradients_not_reduced", step=range(0, 8), ranks=2, against=NOT_APART)
def nobody_reduces_anything(job: Job) -> None:
    apart.by_hand(job, alone_from=0, steps=220, collect=("collectives",))


SCRIPTS: tuple[Fault, ...] = tuple(each for each in list(globals().values()) if isinstance(each, Fault))
