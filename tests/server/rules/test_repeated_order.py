"""Passes over the data in one and the same order."""

from __future__ import annotations

import pytest

from rangewatch.wire.events import RepeatedOrder, event
from rangewatch_server.rules.setup import repeated_order
from tests.server.rules.conftest import Recording, tensor

LAYERS = [tensor("head.weight", "grad", 0)]
SAME, OTHER = RepeatedOrder("DistributedSampler", 1, 20), RepeatedOrder("DistributedSampler", 0, 40, epoch=2)


def test_ranks_are_named_together(recording: Recording) -> None:
    for rank in range(2):
        recording.write(LAYERS, 60, rank=rank, world_size=2, events=[event(SAME, 1, 23)])
    (finding,) = recording.diagnose(repeated_order.RULE).findings
    assert (finding.severity, finding.step, finding.rank) == ("warning", 20, None)
    assert "ranks 0 and 1" in finding.summary and "set_epoch" in finding.remedy[0].text


def test_what_is_over_is_worth_knowing(recording: Recording) -> None:
    recording.write(LAYERS, 60, events=[event(SAME, 1, 23), event(OTHER, 2, 43)])
    (finding,) = recording.diagnose(repeated_order.RULE).findings
    assert (finding.severity, finding.step) == ("info", 20) and "another order" in finding.summary


def test_another_loader_that_is_told_the_epoch_again_ends_nothing(recording: Recording) -> None:
    other = RepeatedOrder("DistributedSampler", 1, 30)
    events = [event(SAME, 1, 23), event(other, 2, 33), event(OTHER, 3, 43)]
    recording.write(LAYERS, 60, events=events)
    (finding,) = recording.diagnose(repeated_order.RULE).findings
    assert (finding.severity, finding.step) == ("warning", 20) and "another order" not in finding.summary


def test_what_batches_show_is_likely(recording: Recording) -> None:
    recording.write(LAYERS, 60, events=[event(RepeatedOrder("RandomSampler", 1, 20, 8), 1, 28)])
    (finding,) = recording.diagnose(repeated_order.RULE).findings
    assert finding.severity == "info" and "seed" in finding.remedy[0].text


@pytest.mark.parametrize(("why", "advice"), [("is_epoch_unused", "depend on its epoch"), ("is_seeded", "seed")])
def test_batches_that_are_the_same_for_a_known_reason(recording: Recording, why: str, advice: str) -> None:
    known = RepeatedOrder("RandomSampler", 1, 20, 8, **{why: True})
    recording.write(LAYERS, 60, events=[event(known, 1, 28)])
    (finding,) = recording.diagnose(repeated_order.RULE).findings
    assert finding.severity == "warning" and advice in finding.remedy[0].text and "(shown)" in finding.evidence[2]


def test_without_one_nothing_is_said(recording: Recording) -> None:
    recording.write(LAYERS, 60, events=[event(OTHER, 2, 43)])
    assert recording.diagnose(repeated_order.RULE).findings == ()
