"""Layers that are far larger than what comes before them, since the first step."""

from __future__ import annotations

import numpy as np
import pytest

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
