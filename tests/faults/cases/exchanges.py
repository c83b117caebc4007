"""Parameters made anew behind the optimizer's back, teachers in train(), averages left in a model, and dead experts."""

from __future__ import annotations

from tests.faults.families import exchanges
from tests.faults.fault import Fault, Job, planted

NOT_HELD = (r"[LlRr](ower|aise) the learning rate", r"[Mm]ask", "bfloat16", "GradScaler", "leave out samples")


@planted("optimizer", "unchanged_weights", place=r"table.*", step=range(90, 92), against=NOT_HELD)
def table_is_grown_behind_the_optimizer(job: Job) -> None:
    exchanges.renewed(job, how=exchanges.grown_table)


@planted("optimizer", "unchanged_weights", place=r"head.*", step=range(90, 92), against=NOT_HELD)
def head_is_grown_behind_the_optimizer(job: Job) -> None:
    exchanges.renewed(job, how=exchanges.grown_head, count=4)


@planted("optimizer", "unchanged_weights", place=r"body.*", step=range(90, 92), against=NOT_HELD)
def body_is_converted_behind_the_optimizer(job: Job) -> None:
    exchanges.renewed(job, how=exchanges.moved_to_a_copy)


NOT_MODE = (r"[Ll]ower the learning rate", r"[Mm]ask", "bfloat16", "GradScaler", "leave out samples")
OF_LOSS = ("loss_spike", "short_spike")


@planted("eval", "evaluation_mode", place=r"teacher.*", step=range(80, 84), against=NOT_MODE, also=OF_LOSS)
def teacher_with_dropout_comes_into_train(job: Job) -> None:
    exchanges.taught(job, at=80)


@planted("eval", "evaluation_mode", place=r"teacher.*", step=range(80, 84), against=NOT_MODE, also=OF_LOSS)
def teacher_with_norms_comes_into_train(job: Job) -> None:
    exchanges.taught(job, at=80, kind="norm")


@planted("eval", "evaluation_mode", place=r"body.*", step=range(90, 94), against=NOT_MODE, also=OF_LOSS)
def frozen_body_comes_into_train(job: Job) -> None:
    exchanges.tuned(job, at=90)


NOT_WRITTEN = (r"[Ll]ower the learning rate", r"[Mm]ask", "bfloat16", "GradScaler", "leave out samples")


@planted("weight", "loss_spike", step=range(60, 64), against=NOT_WRITTEN)
def average_is_left_in_the_model(job: Job) -> None:
    exchanges.averaged(job, is_restored=False)


@planted("weight", "loss_spike", step=range(80, 84), against=NOT_WRITTEN)
def average_of_words_is_left_in_the_model(job: Job) -> None:
    exchanges.averaged(job, is_restored=False, every=80, decay=0.999, words=True)


@planted("weight", "loss_spike", step=range(60, 64), against=NOT_WRITTEN)
def average_is_left_in_the_model_of_a_slow_optimizer(job: Job) -> None:
    exchanges.averaged(job, is_restored=False, decay=0.99, lr=1e-3)


NOT_EXPERT = (r"[Ll]ower the learning rate", r"[Mm]ask", "GradScaler", "leave out samples")


@planted("dead_units", "dead_expert", place=r"1\.(experts|gate).*", step=range(0, 100), against=NOT_EXPERT)
def three_experts_by_hand_get_no_row(job: Job) -> None:
    exchanges.routed(job, lost=3)


@planted("dead_units", "dead_expert", place=r"1\.(experts|gate).*", step=range(50, 160), against=NOT_EXPERT)
def two_experts_in_bfloat16_get_no_row_from_step_50_on(job: Job) -> None:
    exchanges.routed(job, lost=2, at=50, half=True)


@planted("dead_units", "dead_expert", place=r"1\.(experts|gate).*", step=range(0, 120), against=NOT_EXPERT)
def most_linear_experts_get_no_row_from_step_20_on(job: Job) -> None:
    exchanges.routed(job, lost=6, at=20, experts=8, each="linear")


SCRIPTS: tuple[Fault, ...] = tuple(each for each in list(globals().values()) if isinstance(each, Fault))
