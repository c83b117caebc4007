"""NaN that comes with a loader's batch, and NaN that code without gradient makes of a batch that was finite."""

from __future__ import annotations

from tests.faults.families import loaded
from tests.faults.fault import Fault, Job, planted

NONFINITE = ("first_nonfinite", "loss_nonfinite")
USUAL = (r"[Ll]ower the learning rate", r"[Mm]ask", "bfloat16", "GradScaler")
NOT_BATCH = (*USUAL, "leave out samples")


@planted("forward_arithmetic", *NONFINITE, step=90, against=NOT_BATCH)
def row_of_a_loader_is_divided_by_a_deviation_of_0(job: Job) -> None:
    loaded.train(job, bad="constant", at=90, standardises=True)


@planted("forward_arithmetic", *NONFINITE, step=90, against=NOT_BATCH)
def row_that_was_loaded_ahead_is_divided_by_a_deviation_of_0(job: Job) -> None:
    loaded.train(job, bad="constant", at=90, standardises=True, prefetches=True)


@planted("forward_arithmetic", *NONFINITE, step=90, against=NOT_BATCH)
def weights_beside_a_loader_are_0_by_0(job: Job) -> None:
    loaded.train(job, weighs="noise", since=90)


@planted("forward_arithmetic", *NONFINITE, step=90, against=NOT_BATCH)
def weights_of_a_loop_without_a_loader_are_0_by_0(job: Job) -> None:
    loaded.train(job, weighs="noise", since=90, from_loader=False)


@planted("data", *NONFINITE, step=90, against=USUAL)
def loader_gives_nan_in_a_row(job: Job) -> None:
    loaded.train(job, bad="x", at=90)


@planted("data", *NONFINITE, step=90, against=USUAL)
def loader_gives_nan_in_a_row_that_is_standardised(job: Job) -> None:
    loaded.train(job, bad="x", at=90, standardises=True, prefetches=True)


@planted("data", *NONFINITE, step=90, against=USUAL)
def loader_gives_nan_in_a_weight_of_a_row(job: Job) -> None:
    loaded.train(job, bad="weight", at=90, weighs="loaded")


@planted("data", *NONFINITE, step=90, against=USUAL)
def loader_gives_nan_in_a_target(job: Job) -> None:
    loaded.train(job, bad="y", at=90)


SCRIPTS: tuple[Fault, ...] = tuple(each for each in list(globals().values()) if isinstance(each, Fault))
