"""Trainings that begin with a loss, weights, inputs or a learning rate of which nothing can come."""

from __future__ import annotations

import torch
from torch import nn

from tests.faults.families import starts
from tests.faults.families.starts import SGD, classes
from tests.faults.fault import Fault, Job, planted

NOT_LOSS = ("[Ll]ower the learning rate", "GradScaler", "attention mask", "leave out samples")
NOT_RATE = ("GradScaler", "attention mask", "leave out samples", "bfloat16")


@planted("forward_arithmetic", "loss_input", step=0, against=NOT_LOSS)
def softmax_stands_before_cross_entropy(job: Job) -> None:
    classes(job, last=nn.Softmax(-1))


@planted("forward_arithmetic", "loss_input", step=0, against=NOT_LOSS)
def sigmoid_stands_before_a_loss_of_logits(job: Job) -> None:
    classes(job, loss=starts.binary(torch.sigmoid))


@planted("forward_arithmetic", "loss_input", step=0, against=NOT_LOSS)
def nll_loss_is_given_probabilities(job: Job) -> None:
    classes(job, loss=starts.nll_of(lambda out: torch.softmax(out, -1)))


@planted("forward_arithmetic", "loss_input", step=0, against=NOT_LOSS)
def nll_loss_is_given_raw_outputs(job: Job) -> None:
    classes(job, 120, loss=starts.nll_of(lambda out: out), optimizer=SGD, lr=0.01)


@planted("forward_arithmetic", "loss_input", step=0, against=NOT_LOSS)
def cross_entropy_is_maximised(job: Job) -> None:
    classes(job, 120, loss=lambda out, y: -torch.nn.functional.cross_entropy(out, y), optimizer=SGD, lr=0.02)


@planted("forward_arithmetic", "loss_input", step=0, against=NOT_LOSS)
def kl_div_is_given_probabilities(job: Job) -> None:
    classes(job, loss=starts.divergence(torch.softmax))


@planted("weight", "alike_rows", step=0, against=NOT_LOSS)
def all_weights_begin_at_zero(job: Job) -> None:
    classes(job, weights=nn.init.zeros_)


@planted("weight", "alike_rows", step=0, against=NOT_LOSS)
def all_weights_begin_at_one_number(job: Job) -> None:
    classes(job, weights=lambda each: nn.init.constant_(each, 0.1))


@planted("learning_rate", "update_ratio", "loss_spike", step=range(0, 2), against=NOT_RATE)
def learning_rate_of_adam_is_half_from_the_start(job: Job) -> None:
    classes(job, lr=0.5)


@planted("learning_rate", "update_ratio", "loss_spike", step=range(0, 2), against=NOT_RATE)
def learning_rate_of_sgd_is_three_from_the_start(job: Job) -> None:
    classes(job, optimizer=SGD, lr=3.0, momentum=0.9)


@planted("data", "initial_loss", step=0, against=NOT_LOSS)
def inputs_are_in_thousands(job: Job) -> None:
    classes(job, times=1e3, shift=5e3)


@planted("learning_rate", "schedule_over", step=range(20, 40), against=("[Ll]ower the learning rate", *NOT_RATE))
def plateau_is_looked_for_in_the_wrong_direction(job: Job) -> None:
    classes(job, schedule=starts.plateau("max"))


@planted("no_gradient", "vanishing_gradient", place=r"0\..*|1\.0\..*", step=0, against=NOT_LOSS)
def sigmoids_of_fifteen_layers(job: Job) -> None:
    starts.deep(job, depth=15, act=nn.Sigmoid)


@planted("no_gradient", "vanishing_gradient", place=r"0\..*|1\.0\..*", step=0, against=NOT_LOSS)
def forty_layers_and_no_residual(job: Job) -> None:
    starts.deep(job, depth=40)


@planted("no_gradient", "unchanged_weights", place=r"(0|1\.\d+)\..*", step=range(0, 64), against=NOT_LOSS)
def output_of_the_body_is_detached(job: Job) -> None:
    starts.deep(job, depth=2, cut=True)


@planted("optimizer", "unchanged_weights", step=0, against=NOT_LOSS)
def optimizer_has_the_parameters_of_another_model(job: Job) -> None:
    starts.copied(job, 400)


@planted("data", "initial_loss", step=0, against=NOT_LOSS)
def targets_are_prices(job: Job) -> None:
    starts.prices(job, times=5e4, shift=2e5)


@planted("clip", "update_ratio", step=0, against=NOT_LOSS)
def limit_of_the_clip_is_far_too_low(job: Job) -> None:
    starts.clipped(job, most=1e-4)


@planted("learning_rate", "update_ratio", step=0, against=NOT_RATE)
def learning_rate_of_a_transformer_is_a_hundredth(job: Job) -> None:
    starts.reader(job, 240, lr=2e-2)


@planted("weight", "initial_loss", place=r"0\..*|1\..*|2\..*", step=0, against=NOT_LOSS)
def weights_begin_with_a_deviation_of_one(job: Job) -> None:
    starts.deep(job, depth=4, act=nn.GELU, weights=nn.init.normal_)


@planted("weight", "loss_spike", "learning_lost", step=range(109, 113), against=NOT_LOSS)
def checkpoint_of_other_names_is_passed_over(job: Job) -> None:
    starts.resumed(job, at=110, fits=False)


@planted("weight", "loss_spike", "learning_lost", step=range(119, 123), against=NOT_LOSS)
def weights_alone_are_not_restored(job: Job) -> None:
    starts.resumed(job, at=120, fits=False, has_optimizer=False)


@planted("eval", "evaluation_mode", step=0, against=NOT_LOSS)
def batch_norms_stand_still_from_the_start(job: Job) -> None:
    starts.in_eval(job, norms=True)


SCRIPTS: tuple[Fault, ...] = tuple(each for each in list(globals().values()) if isinstance(each, Fault))
