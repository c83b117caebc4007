"""Wrong from the first step on: rates, inputs, targets, units that are alike, gradients that vanish with depth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch.wire import events
from rangewatch.wire.events import LossFunction, Optimizers
from rangewatch.wire.records import TensorEntry
from rangewatch_server.rules.activations import dead_activation
from rangewatch_server.rules.gradients.vanishing_gradient import RULE as VANISHING
from rangewatch_server.rules.loss import loss_plateau
from rangewatch_server.rules.setup.alike_rows import RULE as ALIKE
from rangewatch_server.rules.setup.initial_loss import RULE as INITIAL
from rangewatch_server.rules.updates.update_ratio import RULE as UPDATES
from tests.server.rules.conftest import Recording

STEPS = 256
CHANCE = float(np.log(10))


def matrix(fqn: str, at: int) -> TensorEntry:
    return TensorEntry(fqn, "grad", 0, "float32", (64, 64), at, "Linear")


def rate_of(
    recording: Recording,
    *,
    lr: Any,
    loss: Any,
    name: str = "AdamW",
    momentum: float = 0.0,
    op: str = "nll",
    left: float = 1.0,
    left_out: tuple[str, ...] = (),
) -> None:
    held = Optimizers((name,), momentum=momentum, left_out=left_out, left_out_count=len(left_out))
    sent = [events.event(held, 1, 2), events.event(LossFunction(op, 10), 1, 0)]
    layers = [matrix("a.weight", 0), matrix("b.weight", 1)]
    series = {"loss": np.broadcast_to(loss, STEPS) * 1.0, "lr": np.broadcast_to(lr, STEPS) * 1.0}
    amax = np.broadcast_to(np.r_[np.full(8, 0.05), np.full(STEPS - 8, 0.05 * left)], (2, STEPS))
    recording.write(layers, STEPS, {"amax": amax}, series=series, events=sent)


STUCK = np.r_[2.4, np.full(STEPS - 1, CHANCE)]
ENTROPY = np.r_[2.4, np.full(STEPS - 1, 0.95 * CHANCE)]
FALLEN = np.r_[2.4, np.linspace(2.4, 0.5, STEPS - 1)]


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ({"lr": 0.5, "loss": STUCK}, 1),
        ({"lr": 0.5, "loss": FALLEN}, 0),
        ({"lr": 0.5, "loss": STUCK, "left_out": ("a.weight", "b.weight")}, 0),  # no rate moves these
        ({"lr": 0.5, "loss": STUCK, "left_out": ("a.weight",)}, 1),
        ({"lr": 0.5, "loss": np.full(STEPS, 7.0), "op": "mse"}, 1),
        ({"lr": 0.02, "loss": STUCK, "left": 2e-3}, 1),
        ({"lr": 0.02, "loss": STUCK, "left": 0.25}, 0),  # what is hard to learn
        ({"lr": 0.05, "loss": ENTROPY, "left": 1e-4}, 1),
        ({"lr": 0.05, "loss": ENTROPY, "left": 0.02}, 0),
        ({"lr": 0.015, "loss": ENTROPY, "left": 1e-4}, 0),
        ({"lr": 0.02, "loss": np.full(STEPS, 7.0), "op": "mse"}, 0),
        ({"lr": 2e-3, "loss": STUCK}, 0),
        ({"lr": 3.0, "loss": STUCK, "name": "SGD", "momentum": 0.9}, 1),
        ({"lr": 0.1, "loss": STUCK, "name": "SGD"}, 0),
        ({"lr": 0.5, "loss": STUCK, "name": "Lion"}, 0),
        ({"lr": 1.0, "loss": STUCK, "name": "Adadelta"}, 0),
        ({"lr": np.linspace(0, 0.5, STEPS), "loss": STUCK}, 0),  # a warm-up
        ({"lr": 5.0, "loss": np.r_[-1.2, np.zeros(STEPS - 1)], "left": 1e-9}, 1),  # a policy
        ({"lr": 5.0, "loss": np.r_[-1.2, np.zeros(STEPS - 1)], "left": 1e-3}, 0),
        ({"lr": 5e-3, "loss": np.r_[-1.2, np.zeros(STEPS - 1)], "left": 1e-9}, 0),
    ],
)
def test_a_rate_that_is_too_high_from_the_start(recording: Recording, given: dict[str, Any], count: int) -> None:
    rate_of(recording, **given)
    found = [each for each in recording.diagnose(UPDATES).findings if each.subject == "high rate"]
    assert [each.facts["cause_class"] for each in found] == ["learning_rate"] * count


@pytest.mark.parametrize(("stop", "count"), [(127, 0), (128, 1)])
def test_a_loss_of_chance_takes_some_steps_to_be_known(recording: Recording, stop: int, count: int) -> None:
    rate_of(recording, lr=0.02, loss=STUCK, left=2e-3)
    found = [each for each in recording.diagnose(UPDATES, stop=stop).findings if each.subject == "high rate"]
    assert len(found) == count


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ({}, 1), ({"head": 0.02}, 0), ({"rest": 0.2}, 0), ({"lr": 0.005}, 0), ({"last": 0.8}, 0), ({"level": 0.4}, 0),
        ({"op": "mse"}, 0),
    ],
    ids=["collapsed", "the head, too", "gradients left", "a usual rate", "still falls", "near its end", "no classes"],
)  # fmt: skip
def test_a_model_that_learns_how_frequent_classes_are_and_nothing_more(
    recording: Recording, given: dict[str, Any], count: int
) -> None:
    known = {"head": 0.12, "rest": 0.01, "lr": 0.03, "last": 1.0, "level": 0.7, "op": "nll"} | given
    sent = [events.event(Optimizers(("AdamW",)), 1, 2), events.event(LossFunction(known["op"], 90), 1, 0)]
    layers = [matrix(name, at) for at, name in enumerate(("head.weight", "a.weight", "b.weight", "c.weight"))]
    level = known["level"] * np.log(90)
    loss = np.r_[np.linspace(4.7, level, 24), np.linspace(level, known["last"] * level, STEPS - 24)]
    left = np.array([known["head"], *[known["rest"]] * 3])[:, np.newaxis]
    amax = np.where(np.arange(STEPS) < 8, 0.05, 0.05 * left)
    recording.write(layers, STEPS, {"amax": amax}, series={"loss": loss, "lr": known["lr"]}, events=sent)
    found = [each for each in recording.diagnose(UPDATES).findings if each.subject == "high rate"]
    assert [each.facts["cause_class"] for each in found] == ["learning_rate"] * count
    assert all("Lower the learning rate to about 0.001" in each.remedy[0].text for each in found)


@pytest.mark.parametrize(("part", "count"), [(1e-8, 0), (1.0, 1)])
def test_gradients_that_the_loop_divides(recording: Recording, part: float, count: int) -> None:
    """By a scale of its own, which the loss was multiplied by."""
    sent = [
        events.event(Optimizers(("SGD",)), 1, 2), events.event(LossFunction("mse", 10), 1, 0),
        events.event(events.SampledWeights(("b.weight",), True), 1, 0),
    ]  # fmt: skip
    series = {"loss": STUCK, "lr": 0.05, "sampled_gradient": 1e8 * part}
    recording.write([matrix("a.weight", 0), matrix("b.weight", 1)], STEPS, {"amax": 1e8}, series=series, events=sent)
    found = [each for each in recording.diagnose(UPDATES).findings if each.subject == "high rate"]
    assert len(found) == count


@pytest.mark.parametrize(("size", "first", "count"), [(5e3, 400.0, 1), (5e3, 2.3, 0), (1.0, 400.0, 0)])
def test_inputs_that_were_not_normalised(recording: Recording, size: float, first: float, count: int) -> None:
    loss = np.linspace(first, 1.0, STEPS)
    recording.write(
        [matrix("a.weight", 0)], STEPS, series={"loss": loss, "input_rms": size},
        events=[events.event(LossFunction("nll", 10), 1, 0)],
    )  # fmt: skip
    assert [each.facts["cause_class"] for each in recording.diagnose(INITIAL).findings] == ["data"] * count


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ({}, 1), ({"last": 0.4}, 0), ({"size": 2.0}, 0), ({"first": 1.2, "last": 1.1}, 0),
        ({"module": "BatchNorm1d"}, 0),
        ({"target": 0.1, "first": 1.0, "last": 0.0101}, 0), ({"newest": 9.0}, 0), ({"name": "input_rms_1"}, 0),
        ({"own": 0.5}, 0),
    ],
    ids=["behind", "learned", "usual inputs", "normalised within", "by a norm", "small targets", "targets that grow",
         "times beside the input", "logged in other units"],
)  # fmt: skip
def test_squares_of_inputs_that_were_not_normalised(recording: Recording, given: dict[str, Any], count: int) -> None:
    """Pixels of 0 to 255 and noise to foresee, of 1 in root mean square."""
    usual = {"size": 60.0, "first": 215.0, "last": 1.5, "module": "Linear", "target": 1.0, "name": "input_rms"}
    known: dict[str, Any] = usual | {"own": 40.0, "newest": 1.0} | given
    loss = np.geomspace(known["first"], known["last"], STEPS)
    model = [
        TensorEntry("in", "output", 0, "float32", (8, 4), 0, known["module"]),
        TensorEntry("", "output", 0, "float32", (8, 1), 1, "Net"), matrix("a.weight", 2),
    ]  # fmt: skip
    sent = [events.event(LossFunction("mse", target_rms=known["target"]), 1, 0)]
    columns = {"amax": np.array([[3.0], [known["own"]], [0.1]])}
    series = {"loss": loss, known["name"]: known["size"], "target_rms": known["target"] * known["newest"]}
    recording.write(model, STEPS, columns, series=series, events=sent)
    found = [each for each in recording.diagnose(INITIAL).findings if each.subject == "inputs of squares"]
    assert [(each.severity, each.facts["cause_class"]) for each in found] == [("warning", "data")] * count


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ({}, 1), ({"factor": 0.5}, 1), ({"op": "mse"}, 1), ({"size": 2.0}, 0), ({"last": 2.0}, 0), ({"near": 1.4}, 0),
        ({"near_last": 1.4}, 0), ({"first": 25.0, "last": 20.0}, 0), ({"module": "BatchNorm1d"}, 0),
        ({"inner": 3.0}, 0), ({"gain": 40.0}, 0), ({"begins": 1_000}, 0), ({"steps": 100}, 0),
    ],
    ids=["far from targets", "half of squares", "by mse_loss", "usual inputs", "learned", "another loss",
         "targets are in sight", "small", "normalised by a norm", "normalised by code", "weights are too large",
         "from a checkpoint", "too early to say"],
)  # fmt: skip
def test_squares_by_hand_of_inputs_that_were_not_normalised(
    recording: Recording, given: dict[str, Any], count: int
) -> None:
    """As hertz: the loss is of no known function, and what the model gives is as large as its root, at first and now:
    its targets are nothing beside that."""
    usual = {"size": 1.5e9, "first": 1.4e8, "last": 70.0, "factor": 1.0, "near": 1.0, "near_last": 1.0, "op": "",
             "module": "Linear", "inner": 2e9, "gain": 1.0, "begins": 0, "steps": STEPS}  # fmt: skip
    known: dict[str, Any] = usual | given
    steps = known["steps"]
    outputs = np.geomspace(known["first"], known["last"], steps)
    near = np.where(np.arange(steps) < 64, known["near"], known["near_last"])
    loss = known["factor"] * near * outputs**2
    model = [
        TensorEntry("in", "output", 0, "float64", (64, 64), 0, known["module"]),
        TensorEntry("mid", "output", 0, "float64", (64, 64), 1, "Linear"),
        TensorEntry("out", "output", 0, "float64", (64, 1), 2, "Linear"),
        TensorEntry("", "output", 0, "float64", (64, 1), 3, "Net"), matrix("in.weight", 4),
    ]  # fmt: skip
    is_full = (np.arange(steps) % 100 == 0) * 1.0
    inner = [np.full(steps, known["inner"] * known["gain"] ** each) for each in range(2)]
    amax = np.stack([*inner, 2 * outputs, 2 * outputs, np.ones(steps)])
    squares = np.stack([*[np.ones(steps)] * 3, 32 * outputs**2, np.ones(steps)]) * is_full
    sent = [events.event(LossFunction(known["op"], target_rms=1.0), 1, 0)] if known["op"] else []
    recording.write(
        model, steps, {"amax": amax, "sum_sq": squares, "full_numel": 32 * is_full}, first=known["begins"],
        series={"loss": loss, "input_rms": known["size"]}, events=sent,
    )  # fmt: skip
    found = [each for each in recording.diagnose(INITIAL).findings if each.facts["cause_class"] == "data"]
    assert [(each.step, each.severity, each.subject) for each in found] == [(0, "warning", "inputs of squares")] * count


@pytest.mark.parametrize(("size", "last", "count"), [(2e5, 0.8, 1), (2e5, 0.01, 0), (5.0, 0.8, 0)])
def test_targets_that_were_not_normalised(recording: Recording, size: float, last: float, count: int) -> None:
    loss = size**2 * np.linspace(1.0, last, STEPS)
    event = events.event(LossFunction("mse", target_rms=size), 1, 0)
    recording.write([matrix("a.weight", 0)], STEPS, series={"loss": loss}, events=[event])
    assert [each.facts["cause_class"] for each in recording.diagnose(INITIAL).findings] == ["data"] * count


@pytest.mark.parametrize(("first", "count"), [(2.5e5, 1), (500.0, 1), (2.6e3, 0), (1.0, 0)])
def test_outputs_that_begin_where_targets_are(recording: Recording, first: float, count: int) -> None:
    """As with a last bias that begins at their mean: what is left is noise."""
    event = events.event(LossFunction("mse", target_rms=500.0), 1, 0)
    recording.write(
        [matrix("a.weight", 0)], STEPS, series={"loss": np.linspace(first, 0.6 * first, STEPS)}, events=[event]
    )
    assert len(recording.diagnose(INITIAL).findings) == count


@pytest.mark.parametrize(("share", "count"), [(1.0, 1), (0.5, 0), (0.0, 0)])
def test_units_that_are_alike(recording: Recording, share: float, count: int) -> None:
    values = np.full(STEPS, np.nan)
    values[1] = share
    recording.write([matrix("a.weight", 0)], STEPS, series={"loss": 2.3, "alike_rows": values})
    found = recording.diagnose(ALIKE).findings
    assert [(each.step, each.facts["cause_class"]) for each in found] == [(0, "weight")] * count


@pytest.mark.parametrize(
    ("bits", "last", "count"),
    [
        (-3.0 * np.arange(12), 1.0, 1),
        (-3.0 * np.arange(12), 0.5, 0),  # it learns
        (-1.0 * np.arange(12), 1.0, 0),
        (np.r_[np.zeros(6), np.full(6, -30.0)], 1.0, 0),  # it is cut off at one place
        (-3.0 * np.arange(5), 1.0, 0),
    ],
)
def test_gradients_that_vanish_by_depth(recording: Recording, bits: np.ndarray, last: float, count: int) -> None:
    layers = [matrix(f"{at}.weight", at) for at in range(len(bits))]
    amax = np.broadcast_to(2.0 ** (bits - 3)[:, None], (len(bits), STEPS))
    recording.write(layers, STEPS, {"amax": amax}, series={"loss": np.linspace(1.0, last, STEPS)})
    found = [each for each in recording.diagnose(VANISHING).findings if each.subject == "depth"]
    assert [(each.tensor, each.facts["cause_class"]) for each in found] == [(layers[-1].fqn, "no_gradient")] * count


@pytest.mark.parametrize(("factor", "first", "count"), [(6.0, 6e6, 1), (6.0, 5.0, 0), (1.1, 6e6, 0)])
def test_weights_that_are_all_too_large(recording: Recording, factor: float, first: float, count: int) -> None:
    layers = [TensorEntry(f"{at}", "output", 0, "float32", (8, 64), at, "Linear") for at in range(5)]
    amax = np.broadcast_to(factor ** np.arange(5.0)[:, None], (5, STEPS))
    recording.write(
        layers, STEPS, {"amax": amax}, series={"loss": np.linspace(first, 0.1 * first, STEPS), "input_rms": 1.0},
        events=[events.event(LossFunction("nll", 10), 1, 0)],
    )  # fmt: skip
    assert [each.facts["cause_class"] for each in recording.diagnose(INITIAL).findings] == ["weight"] * count


@pytest.mark.parametrize(("fall", "count"), [(1.0, 1), (0.98, 0)])
def test_gradients_that_vanish_by_depth_though_a_last_bias_learned_the_mean(
    recording: Recording, fall: float, count: int
) -> None:
    """The loss is a fifth of the first one from step 20 on, and stays there or falls on."""
    layers = [matrix(f"{at}.weight", at) for at in range(12)]
    amax = np.broadcast_to(2.0 ** (-3.0 * np.arange(12) - 3)[:, None], (12, STEPS))
    each = np.arange(STEPS)
    loss = np.where(each < 20, 1 - 0.04 * each, 0.2 * fall ** np.maximum(each - 20, 0))
    recording.write(layers, STEPS, {"amax": amax}, series={"loss": loss})
    assert len([each for each in recording.diagnose(VANISHING).findings if each.subject == "depth"]) == count


def test_gradients_that_the_training_itself_has_brought_down(recording: Recording) -> None:
    """In the first steps they were alike: what came of them has another cause."""
    layers = [matrix(f"{at}.weight", at) for at in range(12)]
    amax = np.array(np.broadcast_to(2.0 ** (-3.0 * np.arange(12) - 3)[:, None], (12, STEPS)))
    amax[:, :8] = 0.1
    recording.write(layers, STEPS, {"amax": amax}, series={"loss": 1.0})
    assert not [each for each in recording.diagnose(VANISHING).findings if each.subject == "depth"]


@pytest.mark.parametrize(
    ("size", "steps", "expected"),
    [(130.0, 120, ("warning", "data")), (1.0, 120, None), (1.0, 220, ("info", "data")), (130.0, 80, None)],
)  # fmt: skip
def test_bytes_that_leave_a_classifier_at_chance(
    recording: Recording, size: float, steps: int, expected: tuple[str, str] | None
) -> None:
    """The first loss is not far above it: the first updates are what does harm, and units that they kill follow."""
    loss = CHANCE + np.random.default_rng(3).normal(0, 0.01, steps)
    loss[:4] += [0.7, 74, 10, 140]
    layers = [TensorEntry("act", "output", 0, "float32", (32, 64), 0, "ReLU"), matrix("a.weight", 1)]
    amax = np.ones((2, steps))
    amax[0, 5:] = 0.0
    known = [events.event(LossFunction("nll", 10), 1, 0)]
    recording.write(layers, steps, {"amax": amax}, series={"loss": loss, "input_rms": size}, events=known)
    found = recording.diagnose(loss_plateau.RULE, dead_activation.RULE).findings
    at_chance = [each for each in found if each.subject == "chance"]
    assert [(each.severity, each.facts["cause_class"]) for each in at_chance] == (
        [] if expected is None else [expected]
    )
    dead = [each for each in found if each.rule == "dead_activation"]
    assert len(dead) == (expected is None or expected[0] == "info")
    assert all(("Normalise" in each.remedy[0].text) == (size > 1) for each in dead)
