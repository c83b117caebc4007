"""Every planted fault is named: what, where, on which rank and when, and why; gradual ones are warned of ahead.

Nothing else is found in its training. Of each class of faults one training is quick. A soak has those that take long,
or whose trouble is time itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from tests import forked
from tests.faults import cases
from tests.faults.conftest import Runs, asked
from tests.faults.fault import Fault, Job
from tests.faults.ranks import launch, run_name
from tests.faults.verdict import LEAD, Ask, verdict, warned_ahead
from tests.server.process import Run, Server

QUICK = (
    "fp32_activations_explode", "fp16_one_large_batch", "fp16_softmax_without_its_largest_value_taken_off",
    "share_of_nothing", "log_of_negative_values", "layernorm_without_eps_of_constant_values",
    "attention_row_masked_whole", "attention_row_masked_whole_between_modules", "nan_in_one_row_of_a_batch",
    "nan_in_the_targets", "no_target_is_left_in_a_batch", "weight_set_to_nan", "weight_set_to_nan_under_adam",
    "adam_without_eps", "adam_s_memory_is_spoiled", "weight_that_the_optimizer_has_not",
    "weight_decay_turns_a_weight_over_at_each_step", "gradient_of_one_parameter_is_spoiled",
    "clipping_by_hand_divides_by_zero", "recurrent_gradients_explode", "gradients_vanish_in_deep_sigmoids", "relu_dies",
    "sigmoid_closes", "attention_logits_grow", "gradient_overflow_that_the_scaler_skips",
    "loss_scale_falls_at_every_step", "loss_scale_only_falls", "fp16_with_a_fixed_scale_that_is_too_low",
    "fp32_with_a_scaler_that_grows", "loss_jumps_and_stays_up", "loss_does_not_fall",
)  # fmt: skip
"""The shortest training of each class."""

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
    assert len(cases.ALL) == len(cases.BY_NAME) >= 40
    assert sum(each.warned for each in cases.ALL) >= 8


def test_of_each_class_there_is_a_quick_one() -> None:
    by_class = [class_of(cases.BY_NAME[name]) for name in QUICK]
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
