"""A loss that compares each prediction with each target."""

from __future__ import annotations

import pytest

from rangewatch.wire.events import LossBroadcast, event
from rangewatch_server.rules.setup import target_broadcast
from tests.server.rules.conftest import Recording, tensor

LAYERS = [tensor("head"), tensor("head.weight", "grad", 1)]


def told(recording: Recording, *known: LossBroadcast) -> None:
    recording.write(LAYERS, 60, series={"loss": 2.0}, events=[event(each, 1, 3) for each in known])


@pytest.mark.parametrize(
    ("op", "prediction", "other", "words"),
    [
        ("MseLoss", (256, 1), (256,), "(256, 1) against (256,) gave (256, 256)"),
        ("Sub", (256, 1), (), "(256, 1) against what has no gradient gave (256, 256)"),
        ("MseLoss", (256,), (256, 1), "(256,) against (256, 1) gave (256, 256)"),
    ],
)
def test_shapes_are_named(
    recording: Recording, op: str, prediction: tuple[int, ...], other: tuple[int, ...], words: str
) -> None:
    told(recording, LossBroadcast(op, prediction, other, (256, 256)), LossBroadcast(op, (2,), (2, 1), (2, 2)))
    (finding,) = recording.diagnose(target_broadcast.RULE).findings
    assert (finding.step, finding.rank, finding.severity) == (3, 0, "warning")
    assert words in finding.summary and finding.facts["cause_class"] == "forward_arithmetic"
    wrong = "pred" if len(prediction) == 2 else "target"
    assert f"\n    {wrong} = {wrong}.squeeze(1)" in finding.remedy[0].code


@pytest.mark.parametrize(
    "known",
    [(), (LossBroadcast(),), *((LossBroadcast("Sub", shape, (9,), (9, 9)),) for shape in ((9, 9), (9, 0)))],
    ids=["no event", "an empty one", "of one shape", "of no element"],
)
def test_without_it_nothing_is_said(recording: Recording, known: tuple[LossBroadcast, ...]) -> None:
    told(recording, *known)
    assert recording.diagnose(target_broadcast.RULE).findings == ()


@pytest.mark.parametrize("shape", [(-1, 1), (1, 2**60)])
def test_a_shape_that_cannot_be_is_not_read_as_another(shape: tuple[int, ...], recording: Recording) -> None:
    told(recording, LossBroadcast("Sub", shape, (5,), (5, 5)), LossBroadcast("Sub", (5, 1), (5,), (5, 5)))
    (finding,) = recording.diagnose(target_broadcast.RULE).findings
    assert "(5, 1) against (5,)" in finding.summary
