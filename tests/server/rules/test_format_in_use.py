"""What is left of tensors in the formats they are rounded to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch.wire.events import FormatOf, FormatsInUse, event
from rangewatch.wire.records import Event
from rangewatch_server.rules.precision.format_in_use import RULE
from tests.server.rules.conftest import Recording, tensor

STEPS, ELEMENTS = 40, 1_000.0
WELL = {
    "count": ELEMENTS, "sum_sq": ELEMENTS, "spread_sq": ELEMENTS, "flushed_count": 0.0, "saturated_count": 0.0,
    "error_sq": 1e-3 * ELEMENTS, "relative_error": 0.0225 * ELEMENTS, "finer_error_sq": 0.0, "finer_lost_count": 0.0,
}  # fmt: skip
MODEL = [tensor("up", "input", 0), tensor("norm.weight", "weight", 1), tensor("up", "grad_output", 2)]


def said(*formats: FormatOf) -> Event:
    return event(FormatsInUse(formats), 1_000, 0)


ALL = (
    FormatOf("input", "", "e4m3_tensor"), FormatOf("weight", "*norm*", "mxfp8_e4m3"),
    FormatOf("grad_output", "", "mxfp8_e5m2"),
)  # fmt: skip


def write(recording: Recording, lost: dict[int, dict[str, float]], formats: Any = ALL, since: int = 20) -> None:
    """Each tensor is read at every tenth step; what of it is `lost` since that step."""
    columns = {f"in_use_{name}": np.zeros((len(MODEL), STEPS)) for name in WELL}
    for name, value in WELL.items():
        columns[f"in_use_{name}"][:, ::10] = value
        for at, changed in lost.items():
            columns[f"in_use_{name}"][at, since::10] = changed.get(name, value)
    recording.write(MODEL, STEPS, columns, events=[said(*formats)] if formats else [])


def test_what_is_well_is_quiet(recording: Recording) -> None:
    write(recording, {})
    assert recording.diagnose(RULE).findings == ()


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"flushed_count": 300.0}, "30% of it become zero"),
        ({"error_sq": 100.0}, "10.0 dB of signal"),
        ({"relative_error": 200.0}, "off by 20% on average"),
    ],
)
def test_an_input_that_is_lost(changed: dict[str, float], text: str, recording: Recording) -> None:
    write(recording, {0: changed})
    assert recording.diagnose(RULE, stop=20).findings == ()
    (found,) = recording.diagnose(RULE, stop=21).findings
    assert (found.severity, found.tensor, found.kind, found.step, found.subject) == (
        "warning",
        "up",
        "input",
        20,
        "lost",
    )
    assert text in found.summary


@pytest.mark.parametrize(("name", "count"), [("e4m3_delayed", 1), ("mxfp8_e4m3", 0)])
def test_only_a_stale_scale_saturates_what_matters(name: str, count: int, recording: Recording) -> None:
    write(recording, {0: {"saturated_count": 50.0}}, (FormatOf("input", "", name),))
    found = recording.diagnose(RULE).findings
    assert len(found) == count and all("5% of it saturate" in each.summary for each in found)


def test_what_is_small_beside_its_neighbours_may_become_zero(recording: Recording) -> None:
    write(recording, {0: {"flushed_count": 300.0, "relative_error": 300.0}}, (FormatOf("input", "", "mxfp6_e2m3"),))
    assert recording.diagnose(RULE).findings == ()


def test_gradients_with_one_bit_of_mantissa_are_too_noisy(recording: Recording) -> None:
    formats = FormatOf("input", "", "mxfp4"), FormatOf("grad_output", "", "mxfp4")
    write(recording, {0: {"error_sq": 15.0}, 2: {"error_sq": 15.0}}, formats)
    (found,) = recording.diagnose(RULE).findings
    assert (found.kind, found.subject) == ("grad_output", "lost") and "18.2 dB" in found.summary


def test_a_norm_whose_weights_become_one_number(recording: Recording) -> None:
    alike = {"spread_sq": 0.1, "error_sq": 6.0, "saturated_count": ELEMENTS}
    write(recording, {1: alike})
    (found,) = recording.diagnose(RULE).findings
    assert (found.tensor, found.kind, found.subject) == ("norm.weight", "weight", "alike")
    assert "100% of them are beyond" in found.evidence[0]


def test_weights_that_differ_by_next_to_nothing_may_become_one_number(recording: Recording) -> None:
    write(recording, {1: {"spread_sq": 1e-3, "error_sq": 1e-3}})
    assert recording.diagnose(RULE).findings == ()


@pytest.mark.parametrize(("lost", "count"), [(0.0, 1), (100.0, 0)], ids=["range enough", "range is needed"])
def test_a_bit_that_is_spent_on_range(lost: float, count: int, recording: Recording) -> None:
    write(recording, {2: {"error_sq": 4.0, "finer_error_sq": 1.0, "finer_lost_count": lost}})
    found = recording.diagnose(RULE).findings
    assert len(found) == count
    assert all(each.subject == "coarse" and "6.0 dB" in each.summary for each in found)


def test_nothing_is_said_of_formats_that_are_not_known(recording: Recording) -> None:
    write(recording, {0: {"flushed_count": 900.0}}, ())
    assert recording.diagnose(RULE).findings == ()


def test_few_elements_say_nothing(recording: Recording) -> None:
    write(recording, {0: {"count": 20.0, "flushed_count": 20.0}})
    assert recording.diagnose(RULE, stop=22).findings == ()
