"""Causes of jumps, pools and dead units that nothing but what was newly recorded tells apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch.wire.events import Optimizers, StateLoaded, WrapperBypassed, event
from rangewatch.wire.records import Event, TensorEntry
from rangewatch_server.rules.activations import dead_activation
from rangewatch_server.rules.loss import loss_spike
from rangewatch_server.rules.machine import rank_failed
from rangewatch_server.rules.nonfinite import first_nonfinite
from rangewatch_server.rules.replicas import mismatch
from tests.faults.examples import facts, nonfinite
from tests.server.rules.conftest import Recording, tensor

STEPS, AT = 140, 100
MODEL = [
    tensor("encoder", dtype="float32"), tensor("head", call_index=1, dtype="float32"),
    tensor("encoder.weight", "grad", 2, "float32"), tensor("head.weight", "grad", 3, "float32"),
]  # fmt: skip


def jump(
    recording: Recording, high: float = 3.0, calls: Any = 1.0, series: Any = None, model: Any = MODEL, **more: Any
) -> Any:
    loss = np.r_[np.linspace(2.3, 0.5, 40), np.full(AT - 40, 0.5), np.full(STEPS - AT, high)]
    loss = loss + np.random.default_rng(5).normal(0, 0.01, STEPS)
    amax = 2.0 ** np.random.default_rng(5).normal(0, 0.05, (4, STEPS))
    recording.write(
        model, STEPS, {"amax": amax, "call_count": calls}, series={"loss": loss, "lr": 0.04, **(series or {})}, **more
    )  # fmt: skip
    return recording.diagnose(loss_spike.RULE).findings


def test_layers_that_were_just_unfrozen(recording: Recording) -> None:
    calls = np.ones((4, STEPS))
    calls[2, : AT - 1] = 0
    (finding,) = jump(recording, calls=calls)
    assert finding.facts["cause_class"] == "learning_rate"
    assert "encoder.weight got the first gradient of the run at step 99" in " ".join(finding.evidence)
    assert finding.facts["sureness"] == "likely", "the rate may be far too large, and that is not known"
    assert "parameter group with a smaller learning rate" in finding.remedy[0].text


def test_layers_that_are_new_at_the_very_step(recording: Recording) -> None:
    """Their first update is still to come: the loss is of another network."""
    calls = np.ones((4, STEPS))
    calls[2, :AT] = 0
    (finding,) = jump(recording, calls=calls)
    assert finding.severity == "info" and "cause_class" not in finding.facts
    assert "encoder.weight got the first gradient of the run: the loss is of layers" in " ".join(finding.evidence)


def test_layers_of_another_dtype_are_not_new(recording: Recording) -> None:
    calls = np.ones((4, STEPS))
    calls[2, : AT - 1], calls[3, AT - 1 :] = 0, 0
    model = [*MODEL[:2], tensor("encoder.weight", "grad", 2, "float16"), tensor("encoder.weight", "grad", 3, "float32")]
    (finding,) = jump(recording, calls=calls, model=model)
    assert "first gradient" not in " ".join(finding.evidence)


@pytest.mark.parametrize(("rate", "is_told"), [(0.8, True), (0.04, False)])
def test_a_rate_that_was_never_so_high_shows_a_small_rise(recording: Recording, rate: float, is_told: bool) -> None:
    """One that falls hides its own jumps for tens of steps; and a warm restart goes back to a rate that there was."""
    at = np.arange(STEPS)
    loss = np.linspace(2.6, 2.1, STEPS) + 0.4 * (at > AT) + np.random.default_rng(5).normal(0, 0.01, STEPS)
    rates = np.where(at == AT, rate, np.where(at < 20, 0.04, 0.002))
    amax = np.ones((4, STEPS))
    recording.write(MODEL, STEPS, {"amax": amax}, series={"loss": loss, "lr": rates})
    found = recording.diagnose(loss_spike.RULE).findings
    assert [each.facts["cause_class"] for each in found] == (["learning_rate"] if is_told else [])


@pytest.mark.parametrize(("output", "severity"), [(1e20, "warning"), (1.0, "info")])
def test_a_parameter_in_the_place_of_another_that_holds_garbage(
    recording: Recording, output: float, severity: str
) -> None:
    amax = np.ones((4, STEPS))
    amax[1, AT:] = output
    loss = np.where(np.arange(STEPS) < AT, 0.5, 1.5) + np.random.default_rng(5).normal(0, 0.01, STEPS)
    events = [event(Optimizers(("AdamW",), renewed=("head.weight",)), 1, AT)]
    recording.write(
        MODEL, STEPS, {"amax": amax}, series={"loss": loss + (np.arange(STEPS) < 20), "lr": 0.04}, events=events
    )
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert finding.severity == severity
    assert (finding.facts.get("cause_class") == "weight") == (severity == "warning")


def test_layers_that_are_seldom_used(recording: Recording) -> None:
    """Their gradient has been there before."""
    calls = np.ones((4, STEPS))
    calls[2, 3 : AT - 1] = 0
    (finding,) = jump(recording, calls=calls)
    assert finding.facts.get("cause_class") != "learning_rate"


def restored(recording: Recording, loaded: int) -> Any:
    written = np.where(np.arange(STEPS) % 6 == 4, 0.002, 0.0)
    written[AT] = 0.008
    events = [event(StateLoaded("AdamW"), 1, loaded)]
    return jump(recording, 2.0, series={"weights_written": written}, events=events)


@pytest.mark.parametrize(("loaded", "cause"), [(AT - 6, "optimizer"), (AT - 40, None)])
def test_slow_weights_that_are_not_restored(recording: Recording, loaded: int, cause: str | None) -> None:
    (finding,) = restored(recording, loaded)
    assert (finding.facts.get("cause_class") == "optimizer") == (cause is not None)
    assert finding.severity == ("warning" if cause else "info")


@pytest.mark.parametrize(("high", "is_anew"), [(2.2, True), (1.2, False), (9.0, False)])
def test_a_model_that_begins_anew(recording: Recording, high: float, is_anew: bool) -> None:
    """Into which no checkpoint went: the loss is what it was at first."""
    written = np.zeros(STEPS)
    written[AT] = 0.4
    events = [event(StateLoaded("AdamW"), 1, AT)]
    (finding,) = jump(recording, high, series={"weights_written": written}, events=events)
    assert any("where the training began" in each for each in finding.evidence) == is_anew
    assert (finding.facts["cause_class"] == "weight") == is_anew


@pytest.mark.parametrize(("elements", "severity"), [(2_000, "info"), (1_000, "warning")])
def test_batches_of_another_size(recording: Recording, elements: int, severity: str) -> None:
    sizes = np.where(np.arange(STEPS) < AT, 1_000, elements)
    (finding,) = jump(recording, series={"input_elements": sizes})
    assert finding.severity == severity
    assert ("of another size" in " ".join(finding.evidence)) == (severity == "info")


@pytest.mark.parametrize(
    ("count", "end", "severity"), [(480, 1.0, "info"), (480, 2.9, "warning"), (320, 1.0, "warning")],
    ids=["more targets, and learned", "and not learned", "as many as before"],
)  # fmt: skip
def test_rows_with_more_targets(recording: Recording, count: int, end: float, severity: str) -> None:
    """By a curriculum whose inputs are padded to one length: how many labels are not ignored shows it alone."""
    series = {"target_count": np.where(np.arange(STEPS) < AT, 320, count)}
    (finding,) = jump(recording, np.linspace(3.0, end, STEPS - AT), series=series)
    assert finding.severity == severity
    assert ("480 targets, by their weights, count in the loss, where it was 320" in " ".join(finding.evidence)) == (
        severity == "info"
    )


POOL = [
    TensorEntry("pool", "output", 0, "float32", (24, 8), 0, "Pool"),
    tensor("head", call_index=1, dtype="float32"),
    tensor("head.weight", "grad", 2, "float32"),
]  # fmt: skip
MASK = {"name": "input[1]", "rows": 24, "zero_rows": 3, "one_rows": 0}


def pooled(
    recording: Recording, count: int, negative: int | None, masks: list[dict[str, Any]], zeros: int = 0,
    shape: tuple[int, ...] = (24, 5, 8),
) -> Any:  # fmt: skip
    counts = np.zeros((3, 90))
    counts[0, 80:] = count
    what = "nan_count" if negative is None else "inf_count"
    reported = {"inputs": [facts("input[0]", zero_count=zeros, shape=shape)], "masks": masks}
    reported |= {} if negative is None else {"inf_count": count, "negative_inf_count": negative}
    later = np.zeros((3, 90))
    later[1:, 80:] = 5
    columns = {"nan_count": later, "numel": 24 * 8}
    columns[what] = counts + (later if what == "nan_count" else 0)
    nonfinite(recording, 0, POOL, what=what, columns=columns, reported=reported)
    (finding,) = recording.diagnose(first_nonfinite.RULE).findings
    return finding


@pytest.mark.parametrize(
    ("count", "negative", "masks"), [(24, 24, [MASK]), (24, None, [MASK]), (24, 24, [])],
    ids=["a maximum", "a mean", "a mask of its own"],
)  # fmt: skip
def test_rows_of_a_pool_that_are_masked_whole(
    recording: Recording, count: int, negative: int | None, masks: list[Any]
) -> None:
    finding = pooled(recording, count, negative, masks)
    assert finding.facts["cause_class"] == "mask", finding.evidence
    assert "masked whole" in finding.remedy[0].text


def test_rows_of_a_logarithm_are_no_pool_s(recording: Recording) -> None:
    """It gives as many dimensions as it is given."""
    assert pooled(recording, 24, 24, [], shape=(24, 8)).facts["cause_class"] == "forward_arithmetic"


@pytest.mark.parametrize(
    ("count", "negative"), [(24, 20), (23, 23), (192, 192)], ids=["+Inf too", "single elements", "all of it"]
)
def test_infinities_that_are_no_pool_s(recording: Recording, count: int, negative: int) -> None:
    assert pooled(recording, count, negative, [MASK]).facts["cause_class"] != "mask"


SPARSE = [
    TensorEntry("encoder", "output", 0, "float32", (128, 64), 0, "Linear"),
    TensorEntry("latent", "output", 0, "float32", (128, 64), 1, "ReLU"),
    TensorEntry("encoder.weight", "grad", 0, "float32", (64, 32), 2, "Linear"),
]  # fmt: skip


def units(recording: Recording, silent: list[float], active: list[float]) -> Any:
    """Shares at each 100th step: of units without a gradient, and of elements that are not 0."""
    steps = 100 * len(silent)
    columns = {name: np.zeros((3, steps)) for name in ("full_numel", "zero_count")}
    at = np.arange(len(silent)) * 100
    columns["full_numel"][:, at] = np.array([[8192], [8192], [2048]])
    columns["zero_count"][1, at] = 8192 * (1 - np.array(active))
    columns["zero_count"][2, at] = 2048 * np.array(silent)
    recording.write(SPARSE, steps, columns | {"numel": np.array([[8192], [8192], [2048]])})
    return recording.diagnose(dead_activation.RULE).findings


def test_units_that_die(recording: Recording) -> None:
    (finding,) = units(recording, [0.0, 0.5, 0.92, 0.95], [0.4, 0.1, 0.02, 0.01])
    assert (finding.tensor, finding.severity) == ("latent", "warning")
    assert "95% of them are zero for each row" in finding.summary and "penalty" in finding.remedy[0].text


@pytest.mark.parametrize(
    ("silent", "active"),
    [
        ([0.0, 0.0, 0.0, 0.0], [0.4, 0.06, 0.06, 0.05]),
        ([0.95, 0.95, 0.95, 0.95], [0.01, 0.01, 0.01, 0.01]),
        ([0.0, 0.92, 0.5, 0.95], [0.4, 0.02, 0.1, 0.01]),
        ([0.0, 0.5, 0.93, 0.95], [0.4, 0.01, 0.0016, 0.0012]),
    ],
    ids=["sparse and alive", "sparse by nature", "they come back", "as chance leaves out"],
)
def test_units_that_are_seldom_active(recording: Recording, silent: list[float], active: list[float]) -> None:
    """Of the last one it is another matter that most rows get nothing through the layer."""
    found = units(recording, silent, active)
    assert not any("mostly dead units" in each.summary for each in found)
    assert len(found) == (active[-1] * 64 < 0.2)


@pytest.mark.parametrize(
    "message", ["Empty: ", "Empty", "TimeoutError: no batch", "RuntimeError: DataLoader timed out"]
)
def test_a_wait_within_a_process(recording: Recording, message: str) -> None:
    recording.write(MODEL, 20, events=[Event("failed", 1, 19, message, {})])
    (finding,) = recording.diagnose(rank_failed.RULE).findings
    assert "loads its data" in finding.remedy[0].text


def past_wrapper(recording: Recording, steps: int, every: int = 1) -> Any:
    model = [tensor("a.weight", "grad"), tensor("b.weight", "grad", 1)]
    for rank in range(2):
        sums = np.full((2, 40), 7.0)
        sums[:, 30:] += rank
        sums[:, np.arange(40) % every > 0] = 0.0
        known = [event(WrapperBypassed(steps, "Net" if steps else ""), 1, 27)]
        recording.write(
            model,
            40,
            {"checksum_max": sums, "checksum_min": np.where(sums > 0, sums, np.inf)},
            rank=rank,
            world_size=2,
            events=known,
        )
    (finding,) = recording.diagnose(mismatch.RULE).findings
    return finding


@pytest.mark.parametrize("steps", [8, 0])
def test_replicas_whose_wrapper_is_not_called(recording: Recording, steps: int) -> None:
    finding = past_wrapper(recording, steps)
    assert ("Call the wrapped model" in finding.remedy[0].text) == bool(steps)
    assert (finding.facts.get("cause_class") == "replicas") == bool(steps)


@pytest.mark.parametrize(("steps", "step"), [(8, 20), (25, 38), (0, 38)])
def test_between_two_comparisons_the_call_past_the_wrapper_says_when(
    recording: Recording, steps: int, step: int
) -> None:
    """They are alike at step 19."""
    assert past_wrapper(recording, steps, every=19).step == step
