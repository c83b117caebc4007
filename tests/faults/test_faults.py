"""Every planted fault is named: what, where, on which rank and when, and why; gradual ones are warned of ahead.

Nothing else is found in its training. A soak has those that take long, or whose trouble is time itself.
"""

from __future__ import annotations

import os

import pytest
import torch

from tests import forked
from tests.faults import cases
from tests.faults.conftest import Runs
from tests.faults.fault import Fault, Job
from tests.faults.ranks import launch, run_name
from tests.faults.verdict import LEAD, verdict, warned_ahead

SOAK = bool(os.environ.get("RANGEWATCH_SOAK"))
WANTED = [each for each in cases.ALL if SOAK or not each.soak]
ALONE = [each for each in WANTED if each.ranks == 1]
TOGETHER = {count: [each for each in WANTED if each.ranks == count] for count in (2, 4)}


def test_there_are_as_many_as_the_issue_wants() -> None:
    assert len(cases.ALL) == len(cases.BY_NAME) >= 40
    assert sum(each.warned for each in cases.ALL) >= 8


def check(fault: Fault, runs: Runs, truth: tuple[int, str] | None) -> None:
    ask = runs.ask(run_name(fault, 0))
    found = verdict(fault, truth, ask)
    assert found.is_right and found.is_class_right and found.extra == (), found.text()
    if fault.warned:
        assert truth is not None
        assert warned_ahead(ask, truth[0]), f"no warning {LEAD} steps before step {truth[0]}"


@pytest.mark.parametrize("fault", ALONE, ids=[each.name for each in ALONE])
def test_a_fault_is_named(fault: Fault, runs: Runs) -> None:
    torch.manual_seed(0)
    job = Job(runs.url, run_name(fault, 0))
    fault.train(job)
    check(fault, runs, job.truth)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", [each for each in TOGETHER if TOGETHER[each]])
def test_the_rank_that_has_it_is_named(ranks: int, runs: Runs) -> None:
    launch(runs.url, 0, TOGETHER[ranks], lambda command, **more: forked.rank.start(*command, **more))
    for fault in TOGETHER[ranks]:
        check(fault, runs, None)


def test_the_same_evidence_gives_the_same_verdict(runs: Runs) -> None:
    """To the byte: asked twice, in another order, and of another process."""
    names = ("fp16_output_grows_exponentially", "loss_scale_falls_at_every_step", "relu_dies")
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
