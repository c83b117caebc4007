"""Gradients that are carried over from one update to the next."""

from __future__ import annotations

from rangewatch.wire.records import Event
from rangewatch_server.rules.gradients.kept_gradients import RULE
from tests.server.rules.conftest import Recording, tensor

LAYERS = [tensor("a.weight", "grad", 0, "float32")]


def event(step: int, kept: int) -> Event:
    return Event("optimizers", 1, step, "", {"classes": ["SGD"], "trainable_count": 1, "kept_gradient_steps": kept})


def test_since_the_first_update_that_had_them(recording: Recording) -> None:
    recording.write(LAYERS, 200, {"amax": 1.0}, events=[event(131, 32)])
    assert recording.diagnose(RULE, stop=131).findings == ()
    (found,) = recording.diagnose().findings
    assert (found.rule, found.step, found.rank, found.tensor) == ("gradients_not_zeroed", 100, 0, "a.weight")
    assert "zero_grad" in found.remedy[0].text
    assert not found.facts["is_over"]


def test_it_stays_though_it_is_over(recording: Recording) -> None:
    recording.write(LAYERS, 200, {"amax": 1.0}, events=[event(131, 32), event(150, 0)])
    (found,) = recording.diagnose(RULE).findings
    assert found.step == 100
    assert found.facts["is_over"]


def test_what_agents_before_sent_is_quiet(recording: Recording) -> None:
    old = Event("optimizers", 1, 3, "", {"classes": ["SGD"], "trainable_count": 1})
    recording.write(LAYERS, 200, {"amax": 1.0}, events=[old, event(8, 0)])
    assert recording.diagnose(RULE).findings == ()
