"""Every planted fault is named: what, where, on which rank and when, and why; gradual ones are warned of ahead.

Nothing else is found in its training. Of each class of faults the shortest training is quick, if it takes less than
some four seconds. A soak has those that take long, or whose trouble is time itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import pytest
import torch

from rangewatch_server import rules
from tests import forked
from tests.faults import cases
from tests.faults.conftest import Runs, asked
from tests.faults.fault import Cause, Fault, Job, planted
from tests.faults.healthy import SCRIPTS
from tests.faults.ranks import launch, run_name
from tests.faults.verdict import EVERY, LEAD, SAID, Ask, Finding, judged, verdict, warned_ahead
from tests.server.process import Run, Server

QUICK = (
    "fp32_activations_explode", "fp16_one_large_batch", "fp16_softmax_without_its_largest_value_taken_off",
    "share_of_nothing", "log_of_negative_values", "layernorm_without_eps_of_constant_values",
    "attention_row_masked_whole", "nan_in_one_row_of_a_batch",
    "nan_in_the_targets", "fp32_learning_rate_far_too_high", "no_target_is_left_in_a_batch", "weight_set_to_nan",
    "weight_set_to_nan_under_adam",
    "adam_without_eps", "adam_s_memory_is_spoiled", "second_moments_of_a_float16_model_underflow",
    "gradient_of_one_parameter_is_spoiled", "clipping_by_hand_divides_by_zero", "relu_dies", "sigmoid_closes",
    "loss_scale_falls_at_every_step", "fp16_with_a_fixed_scale_that_is_too_low", "fp32_with_a_scaler_that_grows",
    "loss_jumps_and_stays_up",
)  # fmt: skip
LONG = (
    "attention_row_masked_whole_between_modules", "weight_that_the_optimizer_has_not",
    "weight_decay_turns_a_weight_over_at_each_step", "recurrent_gradients_explode", "gradients_vanish_in_deep_sigmoids",
    "attention_logits_grow", "gradient_overflow_that_the_scaler_skips", "loss_scale_only_falls", "loss_does_not_fall",
)  # fmt: skip
"""The shortest training of each class: for each commit, and those of 4 s to 14 s, which the slow tests have."""

TOGETHER = (
    (("one_of_two_ranks_overflows",), (pytest.mark.slow,)),
    (("weight_of_one_of_two_ranks_is_nan",), (pytest.mark.slow,)),
    (tuple(each.name for each in cases.ALL if each.ranks == 4), (pytest.mark.soak,)),
)
"""Trained one after another by the same ranks."""


def class_of(fault: Fault) -> tuple[str | None, ...]:
    """Its rule and, of a first NaN or Inf, where it comes from; a gradual one is a class of its own."""
    return fault.rule, fault.facts.get("origin"), fault.facts.get("cause"), "warned" if fault.warned else None


def alone() -> Iterator[Any]:
    for fault in cases.ALL:
        mark = pytest.mark.soak if fault.soak else pytest.mark.slow
        if fault.ranks == 1:
            yield pytest.param(fault, id=fault.name, marks=[] if fault.name in QUICK else [mark])


def test_there_are_as_many_as_the_issue_wants() -> None:
    assert len(cases.ALL) + len(cases.SCRIPTS) == len(cases.BY_NAME)
    assert len(cases.ALL) >= 40 and len(cases.SCRIPTS) >= 60
    assert sum(each.warned for each in cases.ALL) >= 8


def test_of_each_class_there_is_a_short_one() -> None:
    by_class = [class_of(cases.BY_NAME[name]) for name in (*QUICK, *LONG)]
    assert sorted(by_class, key=str) == sorted(
        {class_of(each) for each in cases.ALL if each.ranks == 1 and not each.soak}, key=str
    )
    assert {name for names, _ in TOGETHER for name in names} == {each.name for each in cases.ALL if each.ranks > 1}


def check(fault: Fault, ask: Ask, truth: tuple[int, str] | None) -> None:
    found = verdict(fault, truth, ask)
    assert found.is_right and found.is_class_right and found.extra == (), found.text()
    if fault.warned:
        assert truth is not None
        assert warned_ahead(ask, truth[0]), f"no warning {LEAD} steps before step {truth[0]}"


@pytest.mark.parametrize("fault", list(alone()))
def test_a_fault_is_named(fault: Fault, run: Run) -> None:
    torch.manual_seed(0)
    job = Job(run.server.url, run.name)
    fault.train(job)
    check(fault, asked(run), job.truth)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "names", [pytest.param(names, marks=marks, id=", ".join(names)) for names, marks in TOGETHER]
)  # fmt: skip
def test_the_rank_that_has_it_is_named(names: Sequence[str], served: Server) -> None:
    faults = [cases.BY_NAME[name] for name in names]
    launch(served.url, 0, faults, lambda command, **more: forked.rank.start(*command, **more))
    for fault in faults:
        check(fault, asked(Run(served, run_name(fault, 0))), None)


@pytest.mark.parametrize(
    "names",
    [
        ("relu_dies",),
        pytest.param(("fp16_output_grows_exponentially", "loss_scale_falls_at_every_step"), marks=pytest.mark.slow),
    ],
    ids=len,
)
def test_the_same_evidence_gives_the_same_verdict(names: Sequence[str], runs: Runs) -> None:
    """To the byte: asked twice, in another order, and of another process."""
    for name in names:
        torch.manual_seed(1)
        cases.BY_NAME[name].train(Job(runs.url, f"again {name}"))
        runs.ask(f"again {name}")
    at = [(f"again {name}", stop) for name in names for stop in (None, 70, 45)]
    first = {each: runs.text(*each) for each in at}
    assert all('"rule"' in first[f"again {name}", None] for name in names)
    assert {each: runs.text(*each) for each in reversed(at)} == first
    runs.again()
    assert {each: runs.text(*each) for each in at} == first


APART = (
    "sharded_over_the_axis_of_one_rank", "wrapped_over_a_group_of_its_own", "flattened_over_a_group_of_its_own",
    "nobody_reduces_anything",
)  # fmt: skip
ALIKE = (
    "gradients are averaged by hand", "experts of each rank", "stages of a pipeline", "an ensemble",
    "local steps of plain models, averaged every forty", "an ensemble of plain models",
    "a sweep of plain models that begin alike",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ranks_that_are_wrapped_each_for_itself(served: Server) -> None:
    """Beside others that are so, too, and have reason to, or are kept alike by hand."""
    every = [cases.BY_NAME[name] for name in APART]
    quiet = [next(each for each in SCRIPTS if each.name == f"healthy apart, {name}") for name in ALIKE]
    launch(served.url, 0, [*every, *quiet], lambda command, **more: forked.rank.start(*command, **more))
    for each in every:
        found = judged(each, asked(Run(served, run_name(each, 0))))
        assert found.cause and found.place and found.same, found
        assert found.against == found.early == (), found
    for script in quiet:
        answer = asked(Run(served, run_name(script, 0)))(None)
        assert [each for each in answer["findings"] if each["severity"] != "info"] == [] == list(answer["failed"])


QUICK_SCRIPTS = ("nobody_sets_train_back_after_the_fourth_evaluation", "sampler_is_not_told_the_epoch")
SLOW_SCRIPTS = (
    "gpt_with_lr_1e12_at_step_50", "adapter_is_loaded_with_nan",
    "clip_spreads_one_inf_gradient", "advantages_of_a_group_that_was_paid_alike", "policy_with_lr_5",
    "root_of_zero_in_the_backward", "power_below_one_of_zero_in_the_backward",
    "observation_of_1e30", "row_of_an_embedding_that_was_resized", "gpt_in_bf16_with_lr_30",
    "gan_with_lr_50_at_step_100", "gpt_diverges_at_step_30_of_60", "gradients_of_a_gpt_overflow_at_every_step",
    "entropy_of_a_probability_of_zero", "evaluation_in_train_mode_poisons_batchnorm",
    "expert_that_was_never_initialised", "eps_of_adam_is_lost_in_fp16_moments",
    "masked_scores_and_a_learning_rate_that_is_raised", "loss_rises_a_thousandfold_within_50_steps",
    "log_of_a_sigmoid_that_is_zero", "norm_of_zero_in_a_gradient_penalty", "nan_in_a_picture_of_a_diffusion",
    "inf_in_a_picture_of_a_compiled_model", "scaler_of_a_gpt_is_forgotten", "picture_with_a_pixel_of_3e38",
    "batch_of_1e8_poisons_batchnorm", "real_pictures_of_1e8_in_a_gan", "every_rate_is_zero_after_step_100",
    "attention_logits_of_a_gpt_grow",
    "pictures_trained_in_eval_from_step_60", "head_of_a_frozen_net_in_eval_from_step_70",
    "small_targets_in_fp16_without_a_scaler", "small_targets_in_fp16_with_a_disabled_scaler",
    "small_targets_of_a_model_in_fp16", "updates_of_adamw_are_rounded_away",
    "updates_of_a_transformer_in_bfloat16_are_rounded_away", "updates_of_large_weights_are_rounded_away",
    "updates_of_a_large_table_are_rounded_away_far_from_zero", "seconds_since_1970_are_trained_by_sgd",
    "nanoseconds_in_float64_are_all_that_is_trained",
    "tied_embedding_begins_with_a_deviation_of_1", "last_layer_begins_with_a_deviation_of_2",
    "last_layer_of_pictures_begins_too_large_in_microbatches", "adaptive_clip_without_a_floor_holds_gains_at_zero",
    "clip_by_value_without_a_floor_holds_gains_at_zero", "adaptive_clip_without_a_floor_holds_a_bias_at_zero",
    "new_group_gets_the_rate_of_the_head", "layers_are_unfrozen_in_the_group_of_the_head",
    "new_optimizer_of_unfrozen_layers_has_too_high_a_rate", "latents_die_of_their_penalty",
    "hidden_units_die_of_a_penalty",
    "channels_die_of_a_penalty", "maximum_of_a_sentence_without_words", "mean_of_a_sentence_without_words",
    "maximum_of_ids_that_are_all_padding", "missing_values_are_minus_700_deviations", "missing_values_are_a_million",
    "labels_are_those_of_other_rows", "slow_weights_are_not_restored", "transformer_collapses_in_its_warm_up",
    "classifier_diverges_in_its_warm_up",
    "second_cosine_begins_a_hundred_times_too_high", "rate_is_raised_to_1",
    "warm_up_of_400_moves_is_moved_once_an_epoch", "warm_up_of_words_is_moved_once_in_30_steps",
    "scheduler_of_a_warm_up_is_never_moved", "rate_of_adamw_is_1e_9", "rate_of_sgd_is_1e_7",
    "scheduler_is_moved_twice_a_step", "cosine_of_100_steps_in_a_training_of_260",
    "decay_is_not_multiplied_by_the_rate", "decay_of_words_is_not_multiplied_by_the_rate", "decay_of_adamw_is_100",
    "layers_in_a_plain_list", "table_is_grown_behind_the_optimizer", "head_is_grown_behind_the_optimizer",
    "body_is_converted_behind_the_optimizer", "teacher_with_dropout_comes_into_train",
    "teacher_with_norms_comes_into_train", "frozen_body_comes_into_train", "average_is_left_in_the_model",
    "average_of_words_is_left_in_the_model", "average_is_left_in_the_model_of_a_slow_optimizer",
    "three_experts_by_hand_get_no_row", "two_experts_in_bfloat16_get_no_row_from_step_50_on",
    "most_linear_experts_get_no_row_from_step_20_on", "inverted_mask_of_texts_without_padding",
    "inverted_mask_of_three_texts_without_padding", "overlap_of_large_pictures_is_summed_in_float16",
    "overlap_of_squares_is_summed_in_float16",
    "column_of_predictions_against_a_row_of_targets", "squares_of_a_column_less_a_row_in_microbatches",
    "column_of_logits_times_a_row_of_labels", "row_of_predictions_against_a_column_of_targets",
    "maps_of_one_channel_against_maps_of_none", "gathered_values_against_a_row_of_targets",
    "recurrent_net_along_the_batch", "attention_along_the_batch_after_a_recurrent_net",
    "eight_microbatches_are_summed", "microbatches_of_words_are_summed_and_no_loss_is_logged",
    "batch_of_pictures_is_cut_in_four_and_summed",
    "sampler_of_noisy_microbatches_is_not_told_the_epoch", "sampler_is_told_the_same_epoch_each_time",
    "resumed_schedule_starts_over", "resumed_cosine_counts_epochs", "resumed_decay_starts_over_at_its_peak",
    "schedule_is_made_anew_from_the_number_of_the_epoch", "schedule_is_made_anew_in_the_midst_of_a_training",
    "row_of_a_loader_is_divided_by_a_deviation_of_0", "row_that_was_loaded_ahead_is_divided_by_a_deviation_of_0",
    "weights_beside_a_loader_are_0_by_0", "weights_of_a_loop_without_a_loader_are_0_by_0", "loader_gives_nan_in_a_row",
    "loader_gives_nan_in_a_row_that_is_standardised", "loader_gives_nan_in_a_weight_of_a_row",
    "loader_gives_nan_in_a_target",
    "seed_is_set_at_the_top_of_each_epoch", "sampler_of_its_own_passes_over_the_epoch",
)  # fmt: skip
"""The scripts' faults of which all is said as it should be; `bench/diagnosis.py` has the others too."""


def test_the_scripts_have_every_cause() -> None:
    assert len(cases.SCRIPTS) >= 60
    assert {each.cause for each in cases.SCRIPTS} == set(get_args(Cause)) - {""} == set(SAID)
    assert {rule for each in cases.SCRIPTS for rule in each.rules} <= set(rules.BY_NAME)
    for pattern in (wrong for each in cases.SCRIPTS for wrong in (*each.against, each.tensor or "")):
        re.compile(pattern)


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore:Using a target size:UserWarning")  # torch's own, of a target that is broadcast
@pytest.mark.parametrize(
    "name", [*QUICK_SCRIPTS, *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW_SCRIPTS)]
)
def test_a_fault_of_a_script_is_named(name: str, run: Run) -> None:
    torch.manual_seed(0)
    fault = cases.BY_NAME[name]
    fault.train(Job(run.server.url, run.name))
    found = judged(fault, asked(run))
    assert found.cause and found.place and found.same, found
    assert found.against == found.early == (), found


def finding(rule: str = "first_nonfinite", **more: Any) -> Finding:
    usual = {"severity": "critical", "rank": 0, "step": 60, "tensor": "h.1.mlp.c_fc", "summary": f"{rule} it is"}
    usual |= {"evidence": [], "path": [], "remedy": [], "consequences": [], "facts": {"origin": "weight"}}
    return {"rule": rule} | usual | more


def answering(*looks: Sequence[Finding]) -> Ask:
    """What is found at the looks, at `EVERY` steps and twice that and so on; the last of them is the end."""

    def ask(stop: int | None) -> dict[str, Any]:
        at = len(looks) - 1 if stop is None else stop // EVERY - 1
        return {"stop": EVERY * len(looks), "findings": list(looks[at]), "failed": {}}

    return ask


LOOK_HERE = {"text": "Look at the mask.", "because": "it is there", "code": ""}
FLIPPED = planted(
    "weight", "first_nonfinite", place=r"h\.1\b.*", step=60, rank=0, against=(r"[Mm]ask",), also=("headroom_trend",)
)(lambda job: None)


@pytest.mark.parametrize(
    ("looks", "wrong"),
    [
        (((), (), [finding()], [finding()]), ""),
        (((), (), (), ()), "cause place"),
        (((), (), [finding(rule="loss_spike")], [finding(rule="loss_spike")]), "cause"),
        (((), (), [finding(facts={"origin": "data"})], [finding(facts={"origin": "data"})]), "cause"),
        (((), (), [finding(tensor="h.0.mlp")], [finding(tensor="h.0.mlp")]), "place"),
        (((), (), [finding(step=61)], [finding(step=61)]), "place"),
        (((), (), [finding(rank=1)], [finding(rank=1)]), "place"),
        (((), (), [finding(remedy=[LOOK_HERE])], [finding(remedy=[LOOK_HERE])]), "against"),
        (((), (), [finding(tensor="h.1.ln_1")], [finding()]), "same"),
        (((), (), [finding(step=59)], [finding()]), "same"),
        (((), (), [finding("dead_activation", step=59)], [finding("dead_activation")]), "cause"),
        (((), (), [finding()], ()), "cause place same"),
        (((), (), [finding(rule="headroom_trend", severity="warning")], [finding()]), ""),
        (((), (), [finding("loss_spike", summary="later")], [finding(consequences=["later"])]), ""),
        (((), [finding()], [finding()], [finding()]), "early"),
        (((), (), [finding()], [finding(), finding("loss_plateau", severity="warning")]), "extra"),
        (((), (), [finding(severity="info")], [finding(severity="info")]), "cause place"),
    ],
)
def test_what_is_said_is_held_against_what_was_planted(looks: Sequence[Sequence[Finding]], wrong: str) -> None:
    found = judged(FLIPPED, answering(*looks))
    is_wrong = {
        "cause": not found.cause, "place": not found.place, "against": found.against, "same": not found.same,
        "early": found.early, "extra": found.extra,
    }  # fmt: skip
    assert " ".join(each for each, is_so in is_wrong.items() if is_so) == wrong
