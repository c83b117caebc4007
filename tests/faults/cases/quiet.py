"""Quiet faults: nothing is NaN, and often the loss falls. Of each class three that are built differently."""

from __future__ import annotations

import gc
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.faults.families import far, setups
from tests.faults.fault import Fault, Job, planted
from tests.faults.models import CLASSES, FEATURES, rows

NOT_THIS = (r"[Mm]ask", r"[Ll]ower the learning rate", "bfloat16", "GradScaler", "leave out samples", "larger eps")


@planted("eval", "evaluation_mode", step=60, against=NOT_THIS, also=("loss_spike",))
def pictures_trained_in_eval_from_step_60(job: Job) -> None:
    setups.picture_net(job, mode=setups.left_in_eval)


@planted("eval", "evaluation_mode", step=80, against=NOT_THIS)
def nobody_sets_train_back_after_the_fourth_evaluation(job: Job) -> None:
    setups.dropout_net(job, at=80)


@planted("eval", "evaluation_mode", step=70, against=NOT_THIS)
def head_of_a_frozen_net_in_eval_from_step_70(job: Job) -> None:
    setups.head_of_a_frozen_net(job, at=70)


NOT_SCALE = (r"[Mm]ask", r"[Ll]ower the learning rate", "leave out samples")


@planted("loss_scale", "gradient_underflow", step=0, against=NOT_SCALE)
def small_targets_in_fp16_without_a_scaler(job: Job) -> None:
    setups.small_targets(job, size=1e-4)


@planted("loss_scale", "gradient_underflow", step=0, against=NOT_SCALE)
def small_targets_in_fp16_with_a_disabled_scaler(job: Job) -> None:
    setups.small_targets(job, size=1e-5, scaler=torch.amp.GradScaler("cpu", enabled=False))


@planted("loss_scale", "gradient_underflow", step=0, against=NOT_SCALE)
def small_targets_of_a_model_in_fp16(job: Job) -> None:
    setups.small_targets(job, size=1e-5, half=True)


NOT_ROUNDING = (r"[Mm]ask", r"[Ll]ower the learning rate", "leave out samples", "larger eps")


@planted("optimizer", "rounded_updates", step=range(0, 64), against=NOT_ROUNDING)
def updates_of_adamw_are_rounded_away(job: Job) -> None:
    setups.in_bfloat16(job, lr=1e-5)


@planted("optimizer", "rounded_updates", step=range(0, 64), against=NOT_ROUNDING)
def updates_of_a_transformer_in_bfloat16_are_rounded_away(job: Job) -> None:
    setups.in_bfloat16(job, lr=5e-6, words=True, optimizer=torch.optim.Adam)


@planted("optimizer", "rounded_updates", step=range(0, 64), against=NOT_ROUNDING)
def updates_of_large_weights_are_rounded_away(job: Job) -> None:
    setups.in_bfloat16(job, lr=2e-5, gain=4.0, optimizer=torch.optim.RMSprop)


NOT_FAR = (*NOT_ROUNDING, "bfloat16", "GradScaler", "zero_grad")


@planted("optimizer", "rounded_updates", place="places", step=range(0, 64), against=NOT_FAR)
def updates_of_a_large_table_are_rounded_away_far_from_zero(job: Job) -> None:
    far.table(job, origin=5e6, count=3_000)


@planted("optimizer", "rounded_updates", place="places", step=range(0, 64), against=NOT_FAR)
def seconds_since_1970_are_trained_by_sgd(job: Job) -> None:
    far.table(job, origin=1.75e9, lr=5.0, count=40, optimizer=torch.optim.SGD)


@planted("optimizer", "rounded_updates", place="places", step=range(0, 64), against=NOT_FAR)
def nanoseconds_in_float64_are_all_that_is_trained(job: Job) -> None:
    far.table(job, origin=1.75e18, count=40, dtype=torch.float64, has_net=False)


NOT_START = (r"[Mm]ask", "bfloat16", "GradScaler", "leave out samples")


@planted("weight", "initial_loss", place="head", step=0, against=NOT_START)
def tied_embedding_begins_with_a_deviation_of_1(job: Job) -> None:
    setups.language(job, std=1.0)


@planted("weight", "initial_loss", place=r"3", step=0, against=NOT_START)
def last_layer_begins_with_a_deviation_of_2(job: Job) -> None:
    setups.classifier(job, std=2.0)


@planted("weight", "initial_loss", place=r"5", step=0, against=NOT_START)
def last_layer_of_pictures_begins_too_large_in_microbatches(job: Job) -> None:
    setups.classifier(job, std=6.0, pictures=True, accumulate=2)


NOT_CLIP = (r"[Ll]ower the learning rate", r"[Mm]ask", "bfloat16", "GradScaler")


@planted("clip", "held_at_zero", place=r"\d\.gain|.*bias", step=range(0, 60), against=NOT_CLIP)
def adaptive_clip_without_a_floor_holds_gains_at_zero(job: Job) -> None:
    setups.adaptive_clip(job, floor=0.0)


@planted("clip", "held_at_zero", place=r"\d\.gain|.*bias", step=range(0, 60), against=NOT_CLIP)
def clip_by_value_without_a_floor_holds_gains_at_zero(job: Job) -> None:
    setups.adaptive_clip(job, floor=0.0, vector=True, by_value=True)


@planted("clip", "held_at_zero", place=r".*bias", step=range(0, 60), against=NOT_CLIP)
def adaptive_clip_without_a_floor_holds_a_bias_at_zero(job: Job) -> None:
    setups.adaptive_clip(job, floor=0.0, only_biases=True)


NOT_LABELS = (r"[LlRr](ower|aise) the learning rate", "bfloat16", "GradScaler")


def preferred(job: Job, cut: int, *, pairs: bool = True) -> None:
    """Scores of answers, of which labels beyond `cut` count; of `pairs`, or each by itself. A frozen copy compares."""
    model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 20))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    chance = torch.Generator().manual_seed(job.seed)

    def score() -> torch.Tensor:
        tokens = torch.randint(20, (8, 12), generator=chance)
        counts = torch.arange(12).expand(8, 12) >= cut
        return (model(tokens).log_softmax(-1).gather(2, tokens[..., None])[..., 0] * counts).sum(1)

    with job.attach(model, optimizer) as watch:
        for _ in range(120):
            loss = -F.logsigmoid(0.1 * (score() - score())).mean() if pairs else (1 - torch.sigmoid(score())).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.log(loss=loss.item())


@planted("mask", "no_gradient", step=0, against=NOT_LABELS)
def no_label_of_a_pair_is_left(job: Job) -> None:
    preferred(job, 12)


@planted("mask", "no_gradient", step=0, against=NOT_LABELS)
def no_label_of_an_answer_is_left(job: Job) -> None:
    preferred(job, 12, pairs=False)


RATES = (
    "loss_spike", "learning_lost", "exploding_gradient", "update_ratio", "headroom_trend", "first_nonfinite",
    "dead_activation",
)  # fmt: skip
NOT_RATE = (r"[Mm]ask", "bfloat16", "GradScaler", "leave out samples")


@planted("learning_rate", *RATES, step=range(99, 108), against=NOT_RATE, also=RATES)
def new_group_gets_the_rate_of_the_head(job: Job) -> None:
    setups.unfrozen(job, way="group", lr=None)


@planted("learning_rate", *RATES, step=range(99, 108), against=NOT_RATE, also=RATES)
def layers_are_unfrozen_in_the_group_of_the_head(job: Job) -> None:
    setups.unfrozen(job, way="held", lr=None)


@planted("learning_rate", *RATES, step=range(99, 108), against=NOT_RATE, also=RATES)
def new_optimizer_of_unfrozen_layers_has_too_high_a_rate(job: Job) -> None:
    setups.unfrozen(job, way="optimizer", lr=None)


DEAD = ("dead_activation", "vanishing_gradient")
NOT_DEAD = (r"[Mm]ask", "bfloat16", "GradScaler", "leave out samples")


@planted("dead_units", *DEAD, place=r"latent|encoder.*", step=range(0, 340), against=NOT_DEAD)
def latents_die_of_their_penalty(job: Job) -> None:
    setups.autoencoder(job, penalty=6.0)


@planted("dead_units", *DEAD, step=range(0, 340), against=NOT_DEAD)
def hidden_units_die_of_a_penalty(job: Job) -> None:
    setups.penalised(job, penalty=30.0)


@planted("dead_units", *DEAD, step=range(0, 340), against=NOT_DEAD)
def channels_die_of_a_penalty(job: Job) -> None:
    setups.penalised(job, penalty=10.0, pictures=True)


NOT_MASK = (r"[Ll]ower the learning rate", "bfloat16", "GradScaler", "larger eps")


@planted("mask", "first_nonfinite", place="pool|norm", step=100, rank=0, against=NOT_MASK)
def maximum_of_a_sentence_without_words(job: Job) -> None:
    setups.sentences(job, pool="max of a mask", empty=100)


@planted("mask", "first_nonfinite", place="pool|norm", step=100, rank=0, against=NOT_MASK)
def mean_of_a_sentence_without_words(job: Job) -> None:
    setups.sentences(job, pool="mean of whole numbers", empty=100)


@planted("mask", "first_nonfinite", place="pool|norm", step=100, rank=0, against=NOT_MASK)
def maximum_of_ids_that_are_all_padding(job: Job) -> None:
    setups.sentences(job, pool="max of ids", empty=100)


NOT_PRECISION = (r"[Ll]ower the learning rate", "bfloat16", "GradScaler", "larger eps", "leave out samples")


@planted("mask", "first_nonfinite", place=r"attention.*", step=80, rank=0, against=NOT_PRECISION)
def inverted_mask_of_texts_without_padding(job: Job) -> None:
    setups.padded(job, is_inverted=True)


@planted("mask", "first_nonfinite", place=r"attention.*", step=80, rank=0, against=NOT_PRECISION)
def inverted_mask_of_three_texts_without_padding(job: Job) -> None:
    setups.padded(job, is_inverted=True, full=3)


NOT_SUM = (r"[Mm]ask", r"[Ll]ower the learning rate", "init_scale", "leave out samples", "larger eps")


@planted("forward_arithmetic", "loss_scale_collapse", "first_nonfinite", step=60, against=NOT_SUM)
def overlap_of_large_pictures_is_summed_in_float16(job: Job) -> None:
    setups.overlap(job)


@planted("forward_arithmetic", "loss_scale_collapse", "first_nonfinite", step=60, against=NOT_SUM)
def overlap_of_squares_is_summed_in_float16(job: Job) -> None:
    setups.overlap(job, square=True, size=128)


NOT_DATA = (r"[Ll]ower the learning rate", "bfloat16", "GradScaler", "larger eps")
OF_DATA = ("loss_spike", "exploding_gradient", "outlier_batch", "headroom_trend")


@planted("data", *OF_DATA, step=range(139, 146), against=NOT_DATA, also=OF_DATA)
def missing_values_are_minus_700_deviations(job: Job) -> None:
    setups.table(job, missing=-700.0)


@planted("data", *OF_DATA, step=range(139, 146), against=NOT_DATA, also=OF_DATA)
def missing_values_are_a_million(job: Job) -> None:
    setups.table(job, missing=1e6, column=7)


@planted("weight", "untied_weights", step=range(99, 103), against=NOT_DEAD[1:])
def head_is_untied_by_a_resize(job: Job) -> None:
    setups.resized(job)


NOT_SET = (r"[Mm]ask", "bfloat16", "GradScaler", "leave out samples")


@planted("optimizer", "optimizer_settings", step=range(0, 4), against=NOT_SET)
def betas_are_given_in_the_wrong_order(job: Job) -> None:
    setups.with_settings(job, optimizer=lambda given: torch.optim.AdamW(given, 3e-3, betas=(0.999, 0.95)))


@planted("optimizer", "optimizer_settings", step=range(99, 104), against=NOT_SET)
def momentum_is_warmed_up_past_one(job: Job) -> None:
    setups.with_settings(
        job, optimizer=lambda given: torch.optim.SGD(given, 0.02, momentum=0.5),
        momentum=lambda step: 0.5 + 0.005 * step,
    )  # fmt: skip


@planted("clip", "clip_limit", step=range(80, 83), against=NOT_SET)
def limit_of_the_clip_falls_below_zero(job: Job) -> None:
    setups.with_settings(
        job, optimizer=lambda given: torch.optim.SGD(given, 0.02, momentum=0.9), norm=lambda step: 2.0 - step / 40
    )


@planted("clip", "clip_limit", step=0, against=NOT_SET)
def clip_stands_before_the_backward(job: Job) -> None:
    setups.with_settings(
        job, optimizer=lambda given: torch.optim.SGD(given, 0.02, momentum=0.9), norm=lambda step: 1.0, is_early=True
    )


NOT_GIVEN = (r"[Ll]ower the learning rate", r"[Mm]ask", "bfloat16", "leave out samples")


@planted("clip", "gradients_changed", step=130, against=NOT_GIVEN)
def gradients_are_a_billion_times_as_large_in_one_update(job: Job) -> None:
    setups.enlarged(job, times=1e9)


@planted("clip", "gradients_changed", step=190, against=NOT_GIVEN)
def gradients_are_a_hundred_million_times_as_large_in_one_update(job: Job) -> None:
    setups.enlarged(job, times=1e8, at=190, optimizer=torch.optim.Adam)


OF_SIZE = (*OF_DATA, "learning_lost", "loss_plateau")


@planted("data", *OF_SIZE, step=range(129, 140), against=NOT_DATA, also=OF_SIZE)
def pictures_are_no_longer_divided_by_their_deviation(job: Job) -> None:
    setups.pictures_of_size(job, times=5.5)


@planted("data", *OF_SIZE, step=range(129, 140), against=NOT_DATA, also=OF_SIZE)
def pictures_are_divided_by_255_twice(job: Job) -> None:
    setups.pictures_of_size(job, times=1 / 255)


@planted("data", *OF_SIZE, step=range(129, 140), against=NOT_DATA, also=OF_SIZE)
def mean_of_the_pictures_is_no_longer_taken_off(job: Job) -> None:
    setups.pictures_of_size(job, times=1.0, shift=4.0)


@planted("data", *OF_DATA, step=range(119, 126), against=NOT_DATA, also=OF_DATA)
def labels_are_those_of_other_rows(job: Job) -> None:
    setups.labels(job, shuffled=120)


NOT_STATE = (r"[Ll]ower the learning rate", r"[Mm]ask", "bfloat16", "GradScaler", "leave out samples")


@planted("optimizer", "loss_spike", step=range(100, 110), against=NOT_STATE, also=("exploding_gradient",))
def slow_weights_are_not_restored(job: Job) -> None:
    setups.slow_weights(job, resumed=100, forgets=True)


@planted("learning_rate", *RATES, step=range(5, 120), against=NOT_RATE, also=RATES)
def transformer_collapses_in_its_warm_up(job: Job) -> None:
    setups.warmed_up(job, peak=0.3)


@planted("learning_rate", *RATES, step=range(5, 120), against=NOT_RATE, also=RATES)
def classifier_diverges_in_its_warm_up(job: Job) -> None:
    setups.warmed_up(job, peak=0.6, words=False)


def past_the_wrapper(job: Job, at: int, *, wrapped: bool, by_hand: bool = False, is_kept: bool = True) -> None:
    """From step `at` on the module inside is called. `wrapped`: the wrapper is attached, and not the model in it;
    `by_hand`: gradients are reduced by the loop then; `is_kept`: the wrapper stays in memory."""
    model = nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh(), nn.Linear(32, CLASSES))
    whole = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    data = rows(100 * job.seed + job.rank)
    called: Any = whole
    with job.attach(whole if wrapped else model, optimizer) as watch:
        for step in range(180):
            if step == at:
                called = whole.module
                if not is_kept:
                    del whole
                    gc.collect()
            x, y = data(step)
            loss = F.cross_entropy(called(x), y)
            optimizer.zero_grad()
            loss.backward()
            if step >= at and by_hand:
                for each in model.parameters():
                    dist.all_reduce(each.grad)
                    each.grad /= job.ranks
            optimizer.step()
            watch.log(loss=loss.item())


NOT_ALONE = (r"[Ll]ower the learning rate", r"[Mm]ask", "bfloat16", "leave out samples")


@planted("replicas", "replica_mismatch", step=range(40, 160), ranks=2, against=NOT_ALONE, also=("straggler",))
def forward_goes_past_the_wrapper(job: Job) -> None:
    past_the_wrapper(job, 40, wrapped=True)


@planted("replicas", "replica_mismatch", step=range(60, 170), ranks=2, against=NOT_ALONE, also=("straggler",))
def forward_goes_past_a_wrapper_that_came_later(job: Job) -> None:
    past_the_wrapper(job, 60, wrapped=False)


@planted("replicas", "replica_mismatch", step=range(50, 160), ranks=2, against=NOT_ALONE, also=("straggler",))
def wrapper_is_let_go_of(job: Job) -> None:
    past_the_wrapper(job, 50, wrapped=True, is_kept=False)


SCRIPTS: tuple[Fault, ...] = tuple(each for each in list(globals().values()) if isinstance(each, Fault))
