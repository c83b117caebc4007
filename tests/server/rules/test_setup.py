"""How a training is set up: its mode, its first loss, and what becomes of gradients and updates on their way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch.wire.events import EvaluatedInTrain, EvaluationMode, FrozenInTrain, LossFunction, Optimizers, event
from rangewatch.wire.records import TensorEntry
from rangewatch_server.rules.gradients import gradient_underflow
from rangewatch_server.rules.loss import learning_lost
from rangewatch_server.rules.setup import evaluation_mode, held_at_zero, initial_loss, no_gradient, rounded_updates
from tests.server.rules.conftest import Recording, tensor

LAYERS = [tensor("body", module="LayerNorm"), tensor("head", call_index=1), tensor("head.weight", "grad", 2)]
WEIGHTS = [
    tensor("gain", "grad", 0, "float32"),
    tensor("a.weight", "grad", 1, "bfloat16"),
    tensor("b.weight", "grad", 2, "bfloat16"),
]


def mode(recording: Recording, *known: tuple[int, EvaluationMode]) -> None:
    recording.write(LAYERS, 200, events=[event(each, 1, step) for step, each in known])


def test_norms_that_nothing_has_trained(recording: Recording) -> None:
    untrained = np.where(np.arange(64) == 7, 3.0, np.nan)
    recording.write([tensor("a")], 64, series={"untrained_norms": untrained})
    (finding,) = recording.diagnose(evaluation_mode.RULE).findings
    assert (finding.step, finding.severity, finding.facts["cause_class"]) == (0, "warning", "eval")
    assert "all 3 batch norms are in eval() though the model is in train()" in finding.summary


@pytest.mark.parametrize(("was_trained", "norms"), [(True, 1), (False, 1), (True, 0), (False, 0)])
def test_trained_in_evaluation_mode(recording: Recording, was_trained: bool, norms: int) -> None:
    """What is loaded is in eval() at first, which leaves dropout out; batch norms stand still."""
    mode(recording, (67, EvaluationMode(8, 2, norms, was_trained)))
    (finding,) = recording.diagnose(evaluation_mode.RULE).findings
    assert (finding.step, finding.severity) == (60, "warning" if was_trained or norms else "info")
    assert finding.facts["cause_class"] == "eval"
    assert "2 dropouts" in finding.summary and ("1 batch norm goes" in finding.summary) == (norms > 0)


def test_back_in_training_mode(recording: Recording) -> None:
    mode(recording, (67, EvaluationMode(8, 2, 0, True)), (90, EvaluationMode()))
    (finding,) = recording.diagnose(evaluation_mode.RULE).findings
    assert finding.severity == "info" and "since step 90" in finding.summary
    assert recording.diagnose(evaluation_mode.RULE, stop=80).findings[0].severity == "warning"


@pytest.mark.parametrize(("norms", "severity"), [(3, "warning"), (0, "info")])
def test_evaluated_in_train_mode(recording: Recording, norms: int, severity: str) -> None:
    known = [(151, EvaluatedInTrain(2, 121, 4, norms, 1, "main.py:41")), (181, EvaluatedInTrain())]
    recording.write(LAYERS, 200, events=[event(each, 1, step) for step, each in known])
    (finding,) = recording.diagnose(evaluation_mode.RULE, stop=170).findings
    assert (finding.step, finding.severity, finding.facts["cause_class"]) == (121, severity, "eval")
    assert "at main.py:41" in finding.summary and "1 dropout drops" in finding.summary
    assert ("3 batch norms go" in finding.summary) == (norms > 0)
    (finding,) = recording.diagnose(evaluation_mode.RULE).findings
    assert finding.severity == "info" and "since step 181" in finding.summary


def first_loss(recording: Recording, loss: float, amax: float, classes: int = 300, **more: Any) -> None:
    model = [tensor("norm", module="LayerNorm"), tensor("head", call_index=1), tensor("head.weight", "grad", 2)]
    model[1] = type(model[1])("head", "output", 0, "float32", (32, classes), 1, "Linear")
    columns = {"amax": np.array([[3.5], [amax], [1.0]])}
    known = [event(LossFunction("nll", classes), 1, 0)]
    recording.write(model, 50, columns, series={"loss": np.linspace(loss, 0.5 * loss, 50)}, events=known, **more)


def test_a_first_loss_far_above_chance(recording: Recording) -> None:
    first_loss(recording, 89.0, 120.0)
    (finding,) = recording.diagnose(initial_loss.RULE).findings
    assert (finding.tensor, finding.step, finding.severity) == ("head", 0, "warning")
    assert finding.facts["cause_class"] == "weight" and finding.facts["chance"] == pytest.approx(np.log(300))


@pytest.mark.parametrize(
    ("module", "shapes"),
    [
        ("Embedding", [(300, 64)]), ("Embedding", [(300, 64), (300, 64)]), ("Embedding", [(64, 300)]),
        ("Embedding", []), ("Cosines", [(300, 64)]),
    ],
)  # fmt: skip
def test_logits_that_code_makes_with_a_table(recording: Recording, module: str, shapes: list[tuple[int, int]]) -> None:
    """The whole model's output is what `F.linear` makes of a norm's with the embedding's weight: named where it is the
    one of that shape."""
    model = [
        *(TensorEntry(f"table{at}", "output", 0, "float32", (32, 8), at, module) for at, _ in enumerate(shapes)),
        TensorEntry("norm", "output", 0, "float32", (32, 64), 4, "LayerNorm"),
        TensorEntry("", "output", 0, "float32", (32, 300), 5, "Net"),
        *(TensorEntry(f"table{at}.weight", "grad", 0, "float32", each, 6 + at) for at, each in enumerate(shapes)),
    ]
    columns = {"amax": np.array([*[[1.0]] * len(shapes), [3.5], [120.0], *[[1.0]] * len(shapes)])}
    known, losses = [event(LossFunction("nll", 300), 1, 0)], np.linspace(89.0, 45.0, 50)
    recording.write(model, 50, columns, series={"loss": losses}, events=known)
    found, is_named = recording.diagnose(initial_loss.RULE).findings, (module, shapes) == ("Embedding", [(300, 64)])
    assert [each.facts["where"] for each in found] == (["table0.weight"] if is_named else [])
    assert not found or "('table0').weight, std" in found[0].remedy[0].code


@pytest.mark.parametrize(
    ("loss", "amax", "more"),
    [(6.1, 3.0, {}), (89.0, 10.0, {}), (15.0, 120.0, {}), (89.0, 120.0, {"first": 1_000})],
    ids=["as chance is", "logits that are not large", "a little above", "of a run that goes on"],
)  # fmt: skip
def test_first_losses_that_are_none(recording: Recording, loss: float, amax: float, more: dict[str, Any]) -> None:
    first_loss(recording, loss, amax, **more)
    assert recording.diagnose(initial_loss.RULE).findings == ()


@pytest.mark.parametrize(
    ("gains", "loss", "count"),
    [((8, 7, 6, 5), 2.7, 1), ((8, 7, 6, 0.8), 2.7, 0), ((1.5, 1, 1, 1), 2.7, 0), ((8, 7, 6, 5), 1.0, 0)],
    ids=["all of them", "not all", "as usual", "near chance"],
)
def test_weights_of_deviation_1_behind_norms(recording: Recording, gains: Any, loss: float, count: int) -> None:
    """Of two classes the first loss is not far above chance."""
    model, sizes = [], []
    for at, gain in enumerate(gains):
        model.append(tensor(f"{at}.norm", call_index=2 * at, dtype="float32", module="LayerNorm"))
        model.append(tensor(f"{at}.linear", call_index=2 * at + 1, dtype="float32", module="Linear"))
        sizes += [3.0, 3.0 * gain]
    losses = np.linspace(loss, 0.5 * loss, 100)
    known = [event(LossFunction("nll", 2), 1, 0)]
    recording.write(model, 100, {"amax": np.array(sizes)[:, np.newaxis]}, series={"loss": losses}, events=known)
    found = recording.diagnose(initial_loss.RULE).findings
    assert [(each.severity, each.facts["cause_class"]) for each in found] == [("warning", "weight")] * count


@pytest.mark.parametrize(
    ("gains", "loss", "left", "size", "count"),
    [
        ((8, 0.9, 7, 6, 5), 8.5e8, 0.01, 0.4, 1), ((8, 0.9, 0.8, 6, 5), 8.5e8, 0.01, 0.4, 0),
        ((8, 0.9, 7, 6, 5), 20.0, 0.5, 0.4, 0), ((8, 0.9, 7, 6, 5), 1e4, 1e-3, 0.4, 0),
        ((8, 0.9, 7, 6, 5), 8.5e8, 0.01, 150.0, 0), ((1, 1, 2, 1, 5), 8.5e8, 0.01, 0.4, 0),
    ],
    ids=["most of them", "not most", "a loss that is low", "it is learned", "large inputs", "as usual"],
)  # fmt: skip
def test_weights_of_deviation_1_of_any_loss(
    recording: Recording, gains: Any, loss: float, left: float, size: float, count: int
) -> None:
    """One layer beside another is behind it in call order, and is as large."""
    model = [tensor("enter", call_index=0, dtype="float32", module="Linear")]
    model += [tensor(f"{at}", call_index=1 + at, dtype="float32", module="Linear") for at in range(len(gains))]
    sizes = np.cumprod([3.0, *gains])
    losses = loss * np.r_[np.linspace(1.0, left, 100), np.full(100, left)]
    recording.write(model, 200, {"amax": sizes[:, np.newaxis]}, series={"loss": losses, "input_rms": size})
    found = recording.diagnose(initial_loss.RULE).findings
    assert [(each.severity, each.facts["cause_class"]) for each in found] == [("warning", "weight")] * count


@pytest.mark.parametrize(
    ("first", "last", "target", "inputs", "count"),
    [(1.7e6, 3e4, 0.8, 1.0, 1), (1.7e6, 0.5, 0.8, 1.0, 0), (2.0, 1.5, 1e-3, 1.0, 0), (1.7e6, 3e4, 0.8, 150.0, 0)],
    ids=["far too large", "it learns", "small targets", "large inputs"],
)
def test_outputs_that_begin_far_too_large(
    recording: Recording, first: float, last: float, target: float, inputs: float, count: int
) -> None:
    """Of squared differences, in functions of one's own."""
    losses = np.geomspace(first, last, 200)
    known = [event(LossFunction("mse", target_rms=target), 1, 0)]
    recording.write([tensor("a")], 200, series={"loss": losses, "input_rms": inputs}, events=known)
    found = [each for each in recording.diagnose(initial_loss.RULE).findings if each.subject == "outputs"]
    assert [each.facts["cause_class"] for each in found] == ["weight"] * count


@pytest.mark.parametrize(("third", "named"), [(1.0, "1.linear"), (500.0, None)])
def test_one_layer_that_makes_outputs_far_too_large_is_named(
    recording: Recording, third: float, named: str | None
) -> None:
    """Where it is the only one."""
    gains = (1.0, 1500.0, 1.0, third)
    model, sizes = [tensor("", call_index=8, dtype="float32", module="Net")], [1.3e3]
    for at, gain in enumerate(gains):
        model.append(tensor(f"{at}.norm", call_index=2 * at, dtype="float32", module="LayerNorm"))
        model.append(tensor(f"{at}.linear", call_index=2 * at + 1, dtype="float32", module="Linear"))
        sizes += [3.0, 3.0 * gain]
    known = [event(LossFunction("mse", target_rms=1.0), 1, 0)]
    series = {"loss": np.geomspace(1.7e6, 3e4, 200)}
    recording.write(model, 200, {"amax": np.array(sizes)[:, np.newaxis]}, series=series, events=known)
    (finding,) = recording.diagnose(initial_loss.RULE).findings
    assert finding.tensor == named and ("weights of 1.linear" in " ".join(finding.evidence)) == (named is not None)


@pytest.mark.parametrize(("own", "count"), [(1.3e3, 1), (3.0, 0)])
def test_a_loss_that_is_logged_in_other_units(recording: Recording, own: float, count: int) -> None:
    """As the error in euros of a model whose targets are standardised."""
    known = [event(LossFunction("mse", target_rms=1.0), 1, 0)]
    series = {"loss": np.geomspace(1.7e6, 3e4, 200)}
    recording.write([tensor("", dtype="float32")], 200, {"amax": own}, series=series, events=known)
    assert len(recording.diagnose(initial_loss.RULE).findings) == count


STEPS = 260
READ = [1, 2, 4, 8, 16, *range(32, STEPS, 32)]


def reads(
    recording: Recording, pushed: Any, unmoved: Any, zero: Any, series: dict[str, Any] | None = None, **more: Any
) -> None:
    """Of 100 elements each, at the steps `READ`."""
    columns = {name: np.zeros((len(WEIGHTS), STEPS)) for name in ("sampled_count", "pushed_count", "unmoved_count")}
    columns["zero_weight_count"] = np.zeros((len(WEIGHTS), STEPS))
    for name, values in (("sampled_count", 100), ("pushed_count", pushed), ("unmoved_count", unmoved)):
        columns[name][:, READ] = np.reshape(values, (-1, 1))
    columns["zero_weight_count"][:, READ] = np.reshape(zero, (-1, 1))
    recording.write(WEIGHTS, STEPS, columns, series={"loss": 2.0, **(series or {})}, **more)


def test_updates_that_are_rounded_away(recording: Recording) -> None:
    reads(recording, 100, [0, 95, 85], 0)
    (finding,) = recording.diagnose(rounded_updates.RULE).findings
    assert (finding.tensor, finding.severity, finding.facts["cause_class"]) == ("a.weight", "warning", "optimizer")
    assert finding.facts["share"] == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("unmoved", "series", "classes"),
    [
        (60, {}, "AdamW"),
        (90, {"lr": np.linspace(0, 1e-3, STEPS)}, "AdamW"),
        (90, {}, "SGD"),
    ],
    ids=["some of them", "in a warm-up", "by an optimizer that most gradients move little"],
)  # fmt: skip
def test_updates_that_are_small(recording: Recording, unmoved: int, series: Any, classes: str) -> None:
    known = [event(Optimizers((classes,)), 1, 2)]
    reads(recording, 100, [0, unmoved, unmoved], 0, series, events=known)
    assert recording.diagnose(rounded_updates.RULE).findings == ()


def test_updates_that_are_rounded_away_while_the_loss_falls(recording: Recording) -> None:
    reads(recording, 100, [0, 90, 90], 0, {"loss": np.linspace(2, 1, STEPS)})
    (finding,) = recording.diagnose(rounded_updates.RULE).findings
    assert finding.severity == "info"


@pytest.mark.parametrize(
    ("unmoved", "pushed", "more", "is_named"),
    [
        ([0, 100, 30], 100, {}, True),
        ([0, 99, 30], 100, {}, False),
        ([0, 40, 10], [100, 40, 40], {}, False),  # most of it had no gradient
        ([0, 100, 30], 100, {"events": [event(Optimizers(("SGD",)), 1, 2)]}, False),
        ([0, 100, 30], 100, {"series": {"lr": np.minimum(np.arange(STEPS) / 2_000, 1.0)}}, False),
        ([0, 100, 30], 100, {"series": {"lr": np.minimum(np.arange(STEPS) / 10, 1.0)}}, True),
    ],
    ids=["one never moves", "it does, a little", "unused", "SGD", "in a long warm-up", "after a short one"],
)  # fmt: skip
def test_a_parameter_of_which_each_update_is_rounded_away(
    recording: Recording, unmoved: Any, pushed: Any, more: dict[str, Any], is_named: bool
) -> None:
    falls = {"loss": np.linspace(2, 1, STEPS), **more.pop("series", {})}
    reads(recording, pushed, unmoved, 0, falls, **({"events": [event(Optimizers(("AdamW",)), 1, 2)]} | more))
    findings = recording.diagnose(rounded_updates.RULE).findings
    assert [(each.tensor, each.severity) for each in findings] == ([("a.weight", "warning")] if is_named else [])


def far(
    recording: Recording, *, size: float = 4.8e6, rate: Any = 0.05, unmoved: Any = 100, dtype: str = "float32",
    amax: Any = 1.0, optimizer: str = "Adam", **more: Any,
) -> list[Any]:  # fmt: skip
    """The parameter `places` is read; what is said of it. `unmoved`, `rate` and `amax` are of the readings."""
    columns = {name: np.zeros((2, STEPS)) for name in ("sampled_count", "pushed_count", "unmoved_count")}
    columns |= {"unmoved_amin": np.full((2, STEPS), np.inf), "sampled_rate": np.zeros((2, STEPS))}
    columns |= {"zero_weight_count": np.zeros((2, STEPS)), "amax": np.ones((2, STEPS))}
    given = {"sampled_count": 100, "pushed_count": 100, "unmoved_count": unmoved, "sampled_rate": rate}
    for name, values in (given | {"unmoved_amin": size}).items():
        columns[name][0, READ] = values
    of_reading = np.broadcast_to(amax, len(READ))
    columns["amax"][0] = of_reading[np.searchsorted(READ, np.arange(STEPS), "right") - 1]
    model = [tensor("places", "grad", 0, dtype), tensor("net.weight", "grad", 1, "float32")]
    events = [event(more.pop("optimizers", Optimizers((optimizer,))), 1, 2)]
    series = {"loss": np.linspace(2, 1, STEPS), **more.pop("series", {})}
    recording.write(model, STEPS, columns, series=series, events=events, **more)
    return list(recording.diagnose(rounded_updates.RULE).findings)


FROM_2 = np.r_[0.0, np.full(len(READ) - 1, 100.0)]


def test_a_parameter_that_lies_far_from_zero(recording: Recording) -> None:
    (finding,) = far(recording)
    assert (finding.tensor, finding.severity, finding.facts["cause_class"]) == ("places", "warning", "optimizer")
    assert (finding.facts["spacing"], finding.facts["lr"], finding.facts["share"]) == (0.5, 0.05, 1.0)
    assert "near 4.8e+06 float32 numbers are 0.5 apart" in finding.summary
    assert "less than 0.25" in finding.evidence[1] and "The learning rate is 0.05" in finding.evidence[2]


@pytest.mark.parametrize(
    "more",
    [
        {"dtype": "float64", "size": 1.7e18},
        {"unmoved": 95},
        {"optimizer": "SGD"},
        {"optimizer": "SGD", "amax": 2.0**20, "loss_scaled": True, "series": {"loss_scale": 2.0**20}},
        {"size": 300.0, "rate": 1e-5},
        {"rate": 0.4},
    ],
    ids=["float64", "nearly all of it", "SGD", "scaled gradients", "kelvin", "close to the spacing"],
)  # fmt: skip
def test_parameters_that_lie_far_from_zero(recording: Recording, more: dict[str, Any]) -> None:
    assert [each.tensor for each in far(recording, **more)] == ["places"]


@pytest.mark.parametrize(
    "more",
    [
        {"size": 1.0, "rate": 1e-8},
        {"unmoved": 40},
        {"rate": 0.0},
        {"rate": 10.0},
        {"optimizer": "SGD", "amax": 1e4},
        {"optimizer": "SGD", "unmoved": FROM_2},
        {"optimizer": "SGD", "amax": np.r_[np.ones(5), np.full(len(READ) - 5, 1e-6)]},
        {"optimizer": "SGD", "first": 1_000},
        {"rate": np.r_[np.full(6, 10.0), np.full(len(READ) - 6, 0.05)], "unmoved": np.r_[np.zeros(6), FROM_2[6:]]},
        {"optimizers": Optimizers(("Adam",), initial_lr=10.0)},
        {"series": {"lr": np.linspace(0, 0.05, STEPS)}},
    ],
    ids=[
        "weights of a usual size", "less than half", "no rate", "a rate that is felt", "a gradient that is felt",
        "it moved at first", "it has converged", "SGD of a run that goes on", "the rate has fallen",
        "the rate was lowered before the run", "in a warm-up",
    ],
)  # fmt: skip
def test_parameters_that_stay_for_another_reason(recording: Recording, more: dict[str, Any]) -> None:
    assert far(recording, **more) == []


def test_a_parameter_that_is_held_at_zero(recording: Recording) -> None:
    reads(recording, [0, 100, 100], 0, [100, 0, 0])
    (finding,) = recording.diagnose(held_at_zero.RULE).findings
    assert (finding.tensor, finding.severity, finding.facts["cause_class"]) == ("gain", "warning", "clip")


@pytest.mark.parametrize(
    ("pushed", "zero", "amax"), [(0, 99, 1.0), (1, 100, 1.0), (0, 100, 0.0)],
    ids=["not all of it", "its gradient is there", "it has none after the backward"],
)  # fmt: skip
def test_parameters_that_are_not_held(recording: Recording, pushed: int, zero: int, amax: float) -> None:
    reads(recording, [pushed, 100, 100], 0, [zero, 0, 0])
    if not amax:
        recording.memory = type(recording.memory)()
        columns = {"amax": np.array([[0.0], [1.0], [1.0]])}
        recording.write(WEIGHTS, STEPS, columns, series={"loss": 2.0})
    assert recording.diagnose(held_at_zero.RULE).findings == ()


HALF = [
    tensor("head"), tensor("head", "grad_output", 1),
    tensor("head.weight", "grad", 2, "float32"), tensor("body.weight", "grad", 3, "float32"),
]  # fmt: skip


def half(
    recording: Recording, of_output: float = 0.0, of_weights: float = 0.0, loss: float = 1e-8, **more: Any
) -> None:
    amax = np.array([[1.0], [of_output], [of_weights], [of_weights]])
    recording.write(HALF, 60, {"amax": amax}, series={"loss": loss}, **more)


@pytest.mark.parametrize("of_output", [0.0, 6e-8])
def test_every_gradient_is_flushed_to_zero(recording: Recording, of_output: float) -> None:
    half(recording, of_output)
    (finding,) = recording.diagnose(gradient_underflow.RULE).findings
    assert (finding.step, finding.facts["cause_class"], finding.facts["zero"]) == (0, "loss_scale", 2)


@pytest.mark.parametrize(
    "more", [{"of_output": 1e-3}, {"of_weights": 1e-5}, {"loss": 0.0}, {"loss_scaled": True}],
    ids=["float16 holds them", "they are not 0", "the loss is 0", "the loss is scaled"],
)  # fmt: skip
def test_zero_gradients_that_are_not_flushed(recording: Recording, more: dict[str, Any]) -> None:
    half(recording, **more)
    assert recording.diagnose(gradient_underflow.RULE).findings == ()


def lost(recording: Recording, rate: Any, back: float = 2.2) -> None:
    """The loss falls to 1 within 60 steps, and is back within 20 more."""
    noise = np.random.default_rng(3).normal(0, 0.03, 140)
    loss = np.r_[np.linspace(2.3, 1.0, 60), np.linspace(1.0, back, 20), np.full(60, back)] + noise
    recording.write(LAYERS, 140, series={"loss": loss, "lr": rate})


RISING = np.linspace(1e-4, 5e-2, 140)


def test_what_was_learned_is_lost_in_a_warm_up(recording: Recording) -> None:
    lost(recording, RISING)
    (finding,) = recording.diagnose(learning_lost.RULE).findings
    assert finding.step is not None and 66 <= finding.step <= 80
    assert finding.facts["cause_class"] == "learning_rate" and finding.severity == "warning"
    seen = int(finding.facts["seen_step"])
    assert recording.diagnose(learning_lost.RULE, stop=seen).findings == ()
    assert recording.diagnose(learning_lost.RULE, stop=seen + 1).findings == (finding,)


def test_what_is_lost_right_after_it_was_learned(recording: Recording) -> None:
    """Within one step the rate rises by little; while the loss stays high it goes on rising."""
    loss = np.r_[np.linspace(1.4, 0.3, 16), 1.3 + 0.1 * np.cos(np.arange(44.0))]
    recording.write(LAYERS, 60, series={"loss": loss, "lr": 0.005 * np.arange(1, 61)})
    (finding,) = recording.diagnose(learning_lost.RULE).findings
    assert finding.step == 16 and finding.facts["lr"] == pytest.approx(0.2)


def test_a_rate_that_is_raised_after_the_loss_was_high_is_no_cause_of_it(recording: Recording) -> None:
    loss = np.r_[np.linspace(1.4, 0.3, 16), 1.3 + 0.1 * np.cos(np.arange(44.0))]
    recording.write(LAYERS, 60, series={"loss": loss, "lr": np.r_[np.full(20, 0.08), np.linspace(0.08, 0.3, 40)]})
    assert recording.diagnose(learning_lost.RULE).findings == ()


def behind_chance(recording: Recording, classes: int) -> None:
    """A head that was loaded is surer than chance at first; at the end the loss is 1.79."""
    loss = np.r_[np.linspace(5.3, 0.5, 20), np.full(10, 0.5), 1.79 + 0.02 * np.cos(np.arange(70.0))]
    known = [event(LossFunction("nll", classes), 1, 0)]
    recording.write(LAYERS, 100, series={"loss": loss, "lr": RISING[:100]}, events=known)


def test_what_is_back_at_chance_may_have_begun_above_it(recording: Recording) -> None:
    behind_chance(recording, classes=6)
    (finding,) = recording.diagnose(learning_lost.RULE).findings
    assert finding.step == 30 and finding.facts["first"] == pytest.approx(np.log(6))
    assert "of a model that knows nothing, ln(6)" in finding.evidence[0]


def test_what_is_far_below_chance_and_below_where_it_began(recording: Recording) -> None:
    behind_chance(recording, classes=200)
    assert recording.diagnose(learning_lost.RULE).findings == ()


@pytest.mark.parametrize(
    ("rate", "back"), [(np.full(140, 1e-2), 2.2), (RISING[::-1], 2.2), (RISING, 1.6)],
    ids=["a rate that stays", "a rate that falls", "not all of it"],
)  # fmt: skip
def test_losses_that_rise_for_another_reason(recording: Recording, rate: Any, back: float) -> None:
    lost(recording, rate, back)
    assert recording.diagnose(learning_lost.RULE).findings == ()


def test_a_frozen_part_in_train(recording: Recording) -> None:
    known = FrozenInTrain(8, "teacher", 2, 1, 2)
    recording.write(LAYERS, 200, events=[event(known, 1, 67), event(FrozenInTrain(0, "teacher"), 1, 90)])
    (finding,) = recording.diagnose(evaluation_mode.RULE, stop=80).findings
    assert (finding.step, finding.severity, finding.facts["where"]) == (60, "warning", "teacher")
    assert "teacher and 1 more frozen part are in train()" in finding.summary and "2 batch norms go" in finding.summary
    assert finding.evidence[1].startswith("Cause (likely)")  # the modules' flags are read, and no call
    (finding,) = recording.diagnose(evaluation_mode.RULE).findings
    assert finding.severity == "info" and "since step 90" in finding.summary


def all_zero(recording: Recording, *, at: tuple[int, float] = (0, 0.0), loss: float = 0.6931, **more: Any) -> None:
    """Gradients of three parameters; that of the second has `at[1]` at the step `at[0]`."""
    amax = np.zeros((3, STEPS))
    amax[1, at[0]] = at[1]
    dtype = more.pop("dtype", "float32")
    model = [tensor(each.fqn, "grad", at, dtype) for at, each in enumerate(WEIGHTS)]
    if more.pop("under_autocast", False):
        model, amax = [*model, tensor("body", call_index=9)], np.concatenate([amax, np.ones((1, STEPS))])
    recording.write(model, STEPS, {"amax": amax}, series={"loss": loss}, **more)


def test_no_gradient_at_all(recording: Recording) -> None:
    all_zero(recording)
    (finding,) = recording.diagnose(no_gradient.RULE).findings
    assert (finding.step, finding.severity, finding.facts["cause_class"]) == (0, "warning", "mask")
    assert "gradients of all 3 parameters are zero" in finding.summary and finding.facts["is_constant"]
    assert recording.diagnose(no_gradient.RULE, stop=20).findings == ()


def test_a_loss_with_a_slope_that_is_lost_within_the_model_is_no_mask(recording: Recording) -> None:
    """As where both matrices of each adapter are zero: the outputs get a gradient, and nothing that is trained does."""
    gradients = [("up.lora_a.weight", "grad"), ("up.lora_b.weight", "grad"), ("head.weight", "grad")]
    of_outputs = [("head", "grad_output"), ("up.lora_b", "grad_output"), ("up.lora_a", "grad_output")]
    model = [tensor(fqn, kind, at, "float32") for at, (fqn, kind) in enumerate((*gradients, *of_outputs))]
    amax = np.zeros((6, STEPS))
    amax[3:5] = 1.0
    recording.write(model, STEPS, {"amax": amax}, series={"loss": 14.0})
    (finding,) = recording.diagnose(no_gradient.RULE).findings
    assert finding.facts["cause_class"] == "weight"
    assert "The gradient of the output of head is not zero" in finding.evidence[1]
    assert "LoRA" in finding.remedy[0].text and "label" not in finding.remedy[0].text


@pytest.mark.parametrize(
    ("score", "stars", "behind", "cause"),
    [(2.0, 1.0, 0.0, "backward_arithmetic"), (0.0, 1.0, 0.0, "weight"), (2.0, 0.0, 0.0, "weight"),
     (2.0, 1.0, 1.0, "weight")],
    ids=["a rounding", "a factor of 0", "units that are all dead", "further in"],
)  # fmt: skip
def test_a_gradient_that_ends_at_a_rounding(
    recording: Recording, score: float, stars: float, behind: float, cause: str
) -> None:
    """`stars` rounds what `table` and `score` give; a product with zeros, or a gradient further in, is another case."""
    entries = [
        *((f"{name}.weight", "grad") for name in ("table", "score", "bias")),
        *((name, "output") for name in ("table", "score", "stars")),
        *((name, "grad_output") for name in ("stars", "score", "table")),
    ]
    amax = np.zeros((9, STEPS))
    amax[3:7], amax[4], amax[5], amax[8] = 1.0, score, stars, behind
    model = [tensor(fqn, kind, at, "float32") for at, (fqn, kind) in enumerate(entries)]
    recording.write(model, STEPS, {"amax": amax}, series={"loss": 2.0})
    (finding,) = recording.diagnose(no_gradient.RULE).findings
    assert finding.facts["cause_class"] == cause
    assert ("straight-through" in finding.remedy[0].text) == (cause == "backward_arithmetic")


def test_gradients_that_die_in_the_first_updates(recording: Recording) -> None:
    all_zero(recording, at=(2, 0.3))
    (finding,) = recording.diagnose(no_gradient.RULE).findings
    assert (finding.step, finding.facts["cause_class"]) == (3, "dead_units")
    assert "ReLU" in finding.remedy[0].text


@pytest.mark.parametrize(
    "more",
    [{"at": (9, 1e-9)}, {"at": (STEPS - 2, 1e-9)}, {"loss": 0.0}, {"dtype": "float16"}, {"loss_scaled": True},
     {"under_autocast": True}],
    ids=["not at first", "a gradient came later", "no reward yet", "float16", "a loss scaler", "outputs in float16"],
)  # fmt: skip
def test_gradients_that_may_be_zero(recording: Recording, more: dict[str, Any]) -> None:
    all_zero(recording, **more)
    assert recording.diagnose(no_gradient.RULE).findings == ()


@pytest.mark.parametrize(("last", "severity"), [(3.0, "warning"), (0.0, "info")])
def test_running_statistics_that_an_evaluation_has_spoiled(recording: Recording, last: float, severity: str) -> None:
    at = np.arange(200)
    bad = np.where(at % 40 == 0, np.where(at < 120, 0.0, np.where(at < 160, 3.0, last)), np.nan)
    recording.write(LAYERS, 200, series={"bad_norms": bad, "loss": 1.0})
    (finding,) = recording.diagnose(evaluation_mode.RULE).findings
    assert (finding.step, finding.severity, finding.facts["cause_class"]) == (120, severity, "eval")
    assert "the running statistics of 3 batch norms hold NaN" in finding.summary
