"""Layers that are far larger than what comes before them, since the first step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch.wire import events
from rangewatch.wire.events import LossFunction
from rangewatch.wire.records import TensorEntry
from rangewatch_server.rules.activations.initial_gain import RULE
from rangewatch_server.rules.nonfinite import first_nonfinite
from tests.server.rules.conftest import Recording, tensor


def layers() -> list[TensorEntry]:
    """A norm and a linear layer, four times."""
    kinds = (("norm", "LayerNorm"), ("linear", "Linear"))
    return [tensor(f"{at}.{name}", "output", 2 * at + n, "float32", module) for at in range(4)
            for n, (name, module) in enumerate(kinds)]  # fmt: skip


def test_a_layer_that_is_a_thousand_times_too_large(recording: Recording) -> None:
    amax = np.ones((8, 50))
    amax[3] = 700.0
    recording.write(layers(), 50, {"amax": amax})
    (finding,) = recording.diagnose(RULE).findings
    assert (finding.tensor, finding.step, finding.severity) == ("1.linear", 0, "info")
    assert finding.facts["cause_class"] == "weight"


@pytest.mark.parametrize(
    ("factor", "row", "trained", "severity"),
    [(700.0, 3, "1.linear", "warning"), (200.0, 3, "1.linear", "info"), (700.0, 7, "3.linear", "info"),
     (700.0, 3, "0.linear", "info")],
)  # fmt: skip
def test_one_that_is_trained_in_the_midst_of_the_model(
    recording: Recording, factor: float, row: int, trained: str, severity: str
) -> None:
    amax = np.ones((9, 50))
    amax[row] = factor
    recording.write([*layers(), tensor(f"{trained}.weight", "grad", 9, "float32")], 50, {"amax": amax})
    (finding,) = recording.diagnose(RULE).findings
    assert finding.severity == severity


def test_a_branch_that_begins_behind_a_head_which_is_meant_to_be_small(recording: Recording) -> None:
    """As that of a policy: the critic's first layer is given the observations."""
    amax = np.ones((9, 50))
    amax[1], amax[2], amax[3] = 10.0, 0.02, 12.0
    recording.write([*layers(), tensor("1.linear.weight", "grad", 9, "float32")], 50, {"amax": amax})
    (finding,) = recording.diagnose(RULE).findings
    assert finding.severity == "info"


@pytest.mark.parametrize(("breaks", "cause"), [(3, "weight"), (40, "learning_rate")])
def test_what_breaks_within_the_first_steps_is_its_doing(recording: Recording, breaks: int, cause: str) -> None:
    at = np.arange(50)
    growth = 1e6 ** np.clip(at - breaks + 4, 0, 4)
    amax, bad = np.ones((8, 50)) * growth, np.zeros((8, 50))
    amax[3] *= 700.0
    bad[4:, breaks:] = 1
    loss = np.where(at < breaks, growth, np.nan)
    recording.write(layers(), 50, {"amax": amax, "inf_count": bad}, series={"loss": loss, "lr": 0.1})
    (finding,) = recording.diagnose(first_nonfinite.RULE).findings
    assert finding.facts["cause_class"] == cause
    assert ("weights of 1.linear are initialised" in finding.remedy[0].text) == (cause == "weight")


@pytest.mark.parametrize("rows", [[], [0, 1, 2, 3, 4, 5, 6, 7], [1, 3, 5, 7], [2, 3]])
def test_large_values_alone_are_none(recording: Recording, rows: list[int]) -> None:
    """All of them, all linear ones, or a layer behind another that is as large."""
    amax = np.ones((8, 50))
    amax[rows] = 700.0
    recording.write(layers(), 50, {"amax": amax})
    assert recording.diagnose(RULE).findings == ()


def test_a_run_that_goes_on_from_a_checkpoint(recording: Recording) -> None:
    amax = np.ones((8, 50))
    amax[3] = 700.0
    recording.write(layers(), 50, {"amax": amax}, first=1_000)
    assert recording.diagnose(RULE).findings == ()


def test_a_layer_that_is_given_large_inputs_itself(recording: Recording) -> None:
    """A way past the others: in call order something small comes before it."""
    amax = np.ones((8, 50))
    amax[3] = 2e9
    recording.write(layers(), 50, {"amax": amax}, series={"input_rms": 1e9})
    assert recording.diagnose(RULE).findings == ()


STEPS = 200


def tanh_layers(recording: Recording, count: int, given: dict[str, Any]) -> None:
    """A first linear layer, and `count` more, each with a tanh of its own class behind it, and a last one."""
    usual = {"sums": 14.7, "rms": 0.97, "amax": 1.0, "before": 1.0, "module": "TanhLayer", "first": 0.35, "last": 0.15,
             "target": 0.35, "op": "mse", "classes": 0, "input": 0.6, "trained": True, "begins": 0}  # fmt: skip
    known = usual | given
    model, amax, squares = [], [], []
    for at in range(count + 1):
        for name, module in ((f"{at}.lin", "Linear"), (f"{at}", known["module"])):
            model.append(TensorEntry(name, "output", 0, "float32", (128, 96), len(model), module))
        amax += [4.0 * known["sums"], known["amax"] if at == count or known["before"] == 1.0 else known["before"]]
        squares += [known["sums"] ** 2, known["rms"] ** 2]
    model.append(TensorEntry("head", "output", 0, "float32", (128, 1), len(model), "Linear"))
    model += [TensorEntry(f"{at}.lin.weight", "grad", 0, "float32", (96, 96), len(model) + at, "Parameter")
              for at in range(count + 1) if known["trained"]]  # fmt: skip
    rest = len(model) - len(amax)
    sizes = np.array([*amax, *[1.0] * rest])[:, np.newaxis]
    sums = 32.0 * np.array([*squares, *[1.0] * rest])[:, np.newaxis]
    first = known["begins"]
    columns = {"amax": sizes, "sum_sq": sums, "full_numel": 32.0}
    series = {"loss": np.linspace(known["first"], known["last"], STEPS), "input_rms": known["input"],
              "target_rms": known["target"]}  # fmt: skip
    sent = [events.event(LossFunction(known["op"], known["classes"], target_rms=known["target"]), 1, first)]
    recording.write(model, STEPS, columns, series=series, events=sent if known["op"] else [], first=first)


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ({}, 1), ({"module": "Tanh"}, 1), ({"op": "", "last": 0.33}, 1),
        ({"op": "nll", "classes": 10, "first": 3.4, "last": 2.4}, 1),
        ({"last": 0.05}, 0), ({"op": ""}, 0), ({"op": "nll", "classes": 10, "first": 2.4, "last": 1.4}, 0),
        ({"sums": 1.2, "rms": 0.65}, 0), ({"sums": 15.0, "rms": 0.707}, 0), ({"rms": 1.0}, 0), ({"amax": 3.0}, 0),
        ({"before": 5.0}, 0), ({"input": 200.0}, 0), ({"trained": False}, 0), ({"begins": 1_000}, 0),
        ({"module": "Tanh", "rms": 0.9985}, 0),
    ],
    ids=["shut", "torch's own", "a loss of one's own", "of classes", "it learns", "a loss that falls",
         "classes are learned", "a usual gain", "sines", "signs", "not bounded", "given more than 1", "large inputs",
         "drawn and not trained", "from a checkpoint", "saturated_activation says so"],
)  # fmt: skip
def test_tanh_layers_that_are_shut_from_the_start(recording: Recording, given: dict[str, Any], count: int) -> None:
    """Each layer's sums are 15 in root mean square: alike, so that none stands out."""
    tanh_layers(recording, 3, given)
    found = recording.diagnose(RULE).findings
    assert [(each.tensor, each.step, each.severity, each.facts["cause_class"]) for each in found] == [
        ("1.lin", 0, "warning", "weight")
    ] * count


def test_one_such_layer_is_too_few(recording: Recording) -> None:
    tanh_layers(recording, 1, {})
    assert recording.diagnose(RULE).findings == ()
