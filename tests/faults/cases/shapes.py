"""Losses that compare every row with every other one, as their tensors have other shapes than was meant, and modules
that run along the batch."""

from __future__ import annotations

from tests.faults.families import shapes
from tests.faults.fault import Fault, Job, planted

NOT_SHAPES = (r"[Ll]ower the learning rate", r"[Mm]ask", "bfloat16", "GradScaler", "leave out samples", "larger eps")


@planted("forward_arithmetic", "target_broadcast", step=0, against=NOT_SHAPES)
def column_of_predictions_against_a_row_of_targets(job: Job) -> None:
    shapes.numbers(job, keeps=True)


@planted("forward_arithmetic", "target_broadcast", step=0, against=NOT_SHAPES)
def squares_of_a_column_less_a_row_in_microbatches(job: Job) -> None:
    shapes.numbers(job, keeps=True, loss=shapes.squares, accumulate=4)


@planted("forward_arithmetic", "target_broadcast", step=0, against=NOT_SHAPES)
def column_of_logits_times_a_row_of_labels(job: Job) -> None:
    shapes.numbers(job, keeps=True, loss=shapes.binary)


@planted("forward_arithmetic", "target_broadcast", step=0, against=NOT_SHAPES)
def row_of_predictions_against_a_column_of_targets(job: Job) -> None:
    shapes.numbers(job, keeps=True, is_row=True, loss=shapes.absolute)


@planted("forward_arithmetic", "target_broadcast", step=0, against=NOT_SHAPES)
def maps_of_one_channel_against_maps_of_none(job: Job) -> None:
    shapes.depth(job, keeps=True)


@planted("forward_arithmetic", "target_broadcast", step=0, against=NOT_SHAPES)
def gathered_values_against_a_row_of_targets(job: Job) -> None:
    shapes.values(job, keeps=True)


@planted("forward_arithmetic", "sequence_axes", place="rnn", step=0, against=NOT_SHAPES)
def recurrent_net_along_the_batch(job: Job) -> None:
    shapes.waves(job, mixed=True)


@planted("forward_arithmetic", "sequence_axes", place="attention", step=0, against=NOT_SHAPES)
def attention_along_the_batch_after_a_recurrent_net(job: Job) -> None:
    shapes.waves(job, mixed=True, attends=True)


SCRIPTS: tuple[Fault, ...] = tuple(each for each in list(globals().values()) if isinstance(each, Fault))
