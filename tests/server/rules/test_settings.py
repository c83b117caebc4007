"""Settings that cannot work: an optimizer's, and a clip's."""

from __future__ import annotations

import numpy as np
import pytest

from rangewatch.wire import events
from rangewatch.wire.events import Clipping, Optimizers
from rangewatch.wire.records import Event
from rangewatch_server.rules.gradients.clip_limit import RULE as LIMIT
from rangewatch_server.rules.loss.loss_spike import RULE as SPIKE
from rangewatch_server.rules.setup.optimizer_settings import RULE as SETTINGS
from tests.server.rules.conftest import Recording, tensor

STEPS = 200
SENT = ((2, 0.0), (100, 2.0), (160, 0.0))
LAYERS = [tensor("a.weight", "grad", 0, "float32")]


def known(momentum: float, second: float = 0.0, step: int = 30) -> Event:
    return events.event(Optimizers(("SGD",), momentum=momentum, second_beta=second), 1, step)


@pytest.mark.parametrize(
    ("momentum", "second", "subjects"),
    [
        (1.0, 0.0, ["momentum"]), (1.3, 0.0, ["momentum"]), (0.999, 0.9, ["betas"]), (0.99, 0.95, ["betas"]),
        (0.9, 0.999, []), (0.95, 0.95, []), (0.95, 0.9, []), (0.99, 0.0, []), (0.99, 0.999, []), (0.0, 0.99, []),
    ],
)  # fmt: skip
def test_an_optimizer_s(recording: Recording, momentum: float, second: float, subjects: list[str]) -> None:
    recording.write(LAYERS, STEPS, events=[known(0.9, 0.999, 2), known(momentum, second)])
    found = recording.diagnose(SETTINGS).findings
    assert [(each.subject, each.step, each.facts["cause_class"]) for each in found] == [
        (each, 30, "optimizer") for each in subjects
    ]


def test_a_decay_that_turns_weights_over(recording: Recording) -> None:
    sent = [events.event(Optimizers(("SGD",), decay_part=part, decay_of="a.weight"), 1, at) for at, part in SENT]
    recording.write(LAYERS, STEPS, events=sent)
    (finding,) = recording.diagnose(SETTINGS).findings
    assert (finding.step, finding.tensor, finding.severity) == (100, "a.weight", "info")
    (finding,) = recording.diagnose(SETTINGS, stop=150).findings
    assert "the parameter group of a.weight turns each weight over" in finding.summary
    assert (finding.severity, finding.facts["cause_class"]) == ("warning", "optimizer")


def test_a_decay_below_0_makes_weights_grow(recording: Recording) -> None:
    sent = events.event(Optimizers(("AdamW",), decay_part=-0.024, decay_of="a.weight"), 1, 60)
    recording.write(LAYERS, STEPS, events=[sent])
    (finding,) = recording.diagnose(SETTINGS).findings
    assert (finding.step, finding.tensor, finding.facts["cause_class"]) == (60, "a.weight", "optimizer")
    assert "0.024 times itself larger" in finding.summary and "doubles in 29 updates" in finding.evidence[0]


@pytest.mark.parametrize(
    ("optimizer", "decay", "last", "severity"),
    [
        ("Adam", 5.0, 1.1, "warning"), ("Adam", 5.0, 0.3, "info"), ("Adam", 0.1, 1.1, ""), ("AdamW", 5.0, 1.1, ""),
        ("Adam, decoupled", 1.0, 1.1, ""),
    ],
)  # fmt: skip
def test_a_decay_that_outweighs_gradients(
    recording: Recording, optimizer: str, decay: float, last: float, severity: str
) -> None:
    name, _, is_decoupled = optimizer.partition(", ")
    sent = events.event(Optimizers((name,), weight_decay=decay, is_decoupled=bool(is_decoupled)), 1, 2)
    recording.write(LAYERS, STEPS, series={"loss": np.linspace(1.1, last, STEPS)}, events=[sent])
    found = recording.diagnose(SETTINGS).findings
    assert [(each.severity, each.facts["cause_class"]) for each in found] == [(severity, "optimizer")] * bool(severity)


def test_a_momentum_that_is_below_1_again(recording: Recording) -> None:
    recording.write(LAYERS, STEPS, events=[known(1.01), known(0.9, step=60)])
    (finding,) = recording.diagnose(SETTINGS).findings
    assert finding.severity == "info"


@pytest.mark.parametrize(("max_norm", "count"), [(-0.1, 1), (0.0, 1), (1e-3, 0)])
def test_a_clip_s(recording: Recording, max_norm: float, count: int) -> None:
    recording.write(LAYERS, STEPS, events=[events.event(Clipping(max_norm, False, 0), 1, 40)])
    found = recording.diagnose(LIMIT).findings
    assert [(each.step, each.severity, each.facts["cause_class"]) for each in found] == [
        (40, "warning", "clip")
    ] * count


@pytest.mark.parametrize(("later", "severity"), [((), "warning"), ((0,), "info"), ((0, 16), "warning")])
def test_a_clip_before_the_backward(recording: Recording, later: tuple[int, ...], severity: str) -> None:
    every = [(16, 30), *((each, 60 + 20 * at) for at, each in enumerate(later))]
    sent = [events.event(Clipping(1.0, False, 0, count), 1, step) for count, step in every]
    recording.write(LAYERS, STEPS, events=sent)
    (found,) = recording.diagnose(LIMIT).findings
    assert (found.step, found.severity, found.facts["cause_class"]) == (15, severity, "clip")


@pytest.mark.parametrize(
    ("name", "changes_at", "severity"),
    [
        ("stage", 120, "info"), ("train/seq_len", 120, "info"), ("noise_level", 120, "info"),
        ("stage", 100, "warning"), ("epoch", 120, "warning"), ("val_loss", 120, "warning"),
    ],
)  # fmt: skip
def test_a_jump_of_a_loop_that_has_changed_its_own_plan(
    recording: Recording, name: str, changes_at: int, severity: str
) -> None:
    at = np.arange(STEPS)
    loss = np.where(at >= 120, 6.0, 2.0) + np.random.default_rng(3).normal(0, 0.05, STEPS)
    recording.write(LAYERS, STEPS, {"amax": 1.0}, series={"loss": loss, name: np.where(at >= changes_at, 2.0, 1.0)})
    (finding,) = recording.diagnose(SPIKE).findings
    assert finding.severity == severity
    assert (repr(name) in " ".join(finding.evidence)) == (severity == "info")
