"""Growth toward overflow: told five steps ahead or more, and not where there is none."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from rangewatch_server.rules import Finding
from rangewatch_server.rules.activations.headroom_trend import RULE, steps_text
from rangewatch_server.rules.trend import Crossing
from tests.server.rules.conftest import EVERY, Recording, tensor

LIMIT = 65_504.0
LAYERS = [tensor("blocks.0", call_index=0), tensor("blocks.1", call_index=1), tensor("head", call_index=2)]
NOISE = np.random.default_rng(7)


def flat(bits: float, steps: int, scatter: float = 0.1) -> np.ndarray:
    return bits + NOISE.normal(0, scatter, steps)


def rise(bits: float, slope: float, steps: int, scatter: float = 0.05) -> np.ndarray:
    return bits + slope * np.arange(1, steps + 1) + NOISE.normal(0, scatter, steps)


GROWTH = {
    "quick": np.r_[flat(10, 80), rise(10, 0.4, 20)],
    "quick, from the first step": rise(10, 0.4, 20),
    "quicker": np.r_[flat(6, 60), rise(6, 1.0, 12)],
    "linear": np.log2(np.r_[2 ** flat(9, 80), 512 + 1_300 * np.arange(1.0, 60)]),
    "slow, over 200 steps": np.r_[flat(8, 60), rise(8, 0.04, 210, 0.1)],
    "noisy": np.r_[flat(8, 100, 0.6), rise(8, 0.1, 90, 0.6)],
    "staircase": np.r_[flat(8, 100, 0.05), 8 + np.floor(np.arange(1, 180) / 20) + NOISE.normal(0, 0.05, 179)],
    "with spikes": np.r_[flat(8, 100), rise(8, 0.1, 90, 0.1) + 1.5 * (np.arange(90) % 10 == 9)],
}
LONG = ("slow, over 200 steps", "staircase")
"""To ask at each of their steps takes seconds."""

STEPS = np.arange(400)
CALM = {
    "noise": 12 + NOISE.normal(0, 0.7, 400),
    "flattens": 4 + 8 * (1 - np.exp(-STEPS / 30)) + NOISE.normal(0, 0.1, 400),
    "flattens at once": 1 + 10 * (1 - np.exp(-STEPS / 5)) + NOISE.normal(0, 0.1, 400),
    "warm-up": np.log2(2 + 2_048 * np.minimum(STEPS, 100) / 100) + NOISE.normal(0, 0.1, 400),
    "spikes now and then": 8 + 6.0 * (STEPS % 25 == 0) + NOISE.normal(0, 0.2, 400),
    "up and down": 11 + 2 * np.sin(STEPS / 20) + NOISE.normal(0, 0.1, 400),
    "far from the limit": 2 + 0.015 * STEPS + NOISE.normal(0, 0.1, 400),
    "wanders": np.minimum(11 + np.convolve(NOISE.normal(0, 1, 431), np.ones(32) / 8, "valid"), 15.9),
    "one step up": np.where(STEPS < 200, 9, 13) + NOISE.normal(0, 0.15, 400),
    "constant": np.full(400, 15.0),
    "falls": 15 - 0.01 * STEPS,
}


def write(recording: Recording, bits: np.ndarray, **more: object) -> int | None:
    """The middle one of three layers has this amax, the others 1; the step at which it is Inf."""
    amax = np.ones((3, len(bits)))
    amax[1] = np.minimum(2.0**bits, LIMIT)
    over = np.zeros((3, len(bits)))
    over[1] = 2.0**bits > LIMIT
    recording.write(LAYERS, len(bits), {"amax": amax, "inf_count": over}, **more)  # type: ignore[arg-type]
    return int(over[1].argmax()) if over.any() else None


def warnings(recording: Recording, stops: Iterable[int]) -> list[tuple[int, Finding]]:
    return [(stop, found) for stop in stops for found in recording.diagnose(RULE, stop=stop).findings]


@pytest.mark.parametrize("name", GROWTH)
def test_growth_is_told_five_steps_ahead(recording: Recording, name: str) -> None:
    overflow = write(recording, GROWTH[name])
    assert overflow is not None
    ((stop, found),) = warnings(recording, [overflow - 4])  # its last step is five before the overflow
    assert (found.tensor, found.kind, found.rank, found.step) == ("blocks.1", "output", 0, stop - 1)
    assert found.summary.startswith(
        f"Step {stop - 1}, rank 0: the output of blocks.1 grows toward the limit of float16"
    )
    assert 0 <= found.facts["about_steps"] <= 40
    assert found.facts["earliest_steps"] <= found.facts["about_steps"] <= found.facts["latest_steps"]


@pytest.mark.parametrize("grows", [True, False])
def test_values_that_grow_with_the_inputs(recording: Recording, grows: bool) -> None:
    name = next(iter(GROWTH))
    inputs = 2.0 ** GROWTH[name] if grows else np.ones(len(GROWTH[name]))
    overflow = write(recording, GROWTH[name], series={"input_rms": inputs})
    assert overflow is not None
    ((_, found),) = warnings(recording, [overflow - 4])
    advice = " ".join(each.text for each in found.remedy)
    assert ("Scale what the model is given" in advice, "learning rate" in advice) == (grows, not grows)


@pytest.mark.parametrize(
    ("name", "every"),
    [(name, 5 if name in LONG else 1) for name in GROWTH]
    + [pytest.param(name, 1, marks=pytest.mark.slow) for name in LONG],
)
def test_once_told_it_is_told_until_the_overflow(recording: Recording, name: str, every: int) -> None:
    overflow = write(recording, GROWTH[name])
    assert overflow is not None
    reported = [len(recording.diagnose(RULE, stop=stop).findings) for stop in range(overflow, 5, -every)]
    assert reported == sorted(reported, reverse=True)
    assert sum(reported) >= 5 / every


@pytest.mark.parametrize(
    ("about", "earliest", "latest", "words"),
    [
        (0.0, 0.0, 0.4, "within a step or two if it goes on like this"),
        (1.2, 1.0, 2.0, "within a step or two if it goes on like this"),
        (0.0, 0.0, 12.0, "from now on at any step, within 12 steps if it goes on like this"),
        (6.4, 0.3, 9.0, "in about 6 steps (between 1 and 9) if it goes on like this"),
        (30.0, 20.0, np.inf, "in about 30 steps (between 20 and many) if it goes on like this"),
    ],
)
def test_when_is_said_in_words(about: float, earliest: float, latest: float, words: str) -> None:
    assert steps_text(Crossing(about, earliest, latest)) == words


def test_near_the_limit_it_is_never_in_no_steps(recording: Recording) -> None:
    overflow = write(recording, np.r_[flat(8, 100), rise(8, 0.1, 90, 0.1)])
    assert overflow is not None
    texts = [found.summary for _, found in warnings(recording, range(overflow - 12, overflow + 1))]
    assert len(texts) == 13
    assert not [each for each in texts if "about 0" in each or "between 0" in each]


@EVERY
def test_of_those_that_grow_together_the_same_one_is_named(recording: Recording, every: int) -> None:
    bits = np.stack([rise(8, 0.1, 70, 0.1) for _ in range(3)])
    recording.write(LAYERS, 130, {"amax": 2.0 ** np.concatenate([np.stack([flat(8, 60)] * 3), bits], axis=1)})
    names = [found.tensor for _, found in warnings(recording, range(60, 131, every))]
    assert len(names) > 20 / every
    first = names.index("blocks.0")  # before, its growth was not clear
    assert first < 8 / every
    assert set(names[first:]) == {"blocks.0"}


@EVERY
@pytest.mark.parametrize("name", CALM)
def test_what_does_not_grow_to_the_limit_is_quiet(recording: Recording, name: str, every: int) -> None:
    write(recording, CALM[name])
    assert warnings(recording, range(7, 401, 7 * every)) == []


def test_the_projection_has_the_overflow_in_it(recording: Recording) -> None:
    overflow = write(recording, np.r_[flat(8, 100, 0.02), rise(8, 0.1, 90, 0.02)])
    assert overflow is not None
    ((_, found),) = warnings(recording, [overflow - 20])
    assert found.facts["earliest_steps"] <= 21 <= found.facts["latest_steps"] + 1
    assert found.facts["bits_a_step"] == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("kind", ["grad", "grad_output"])
@pytest.mark.parametrize("loss_scaled", [True, False])
def test_gradients_that_a_scaler_may_skip_are_left_alone(recording: Recording, kind: str, loss_scaled: bool) -> None:
    layers = [tensor("a", kind), tensor("b", kind, 1)]
    amax = np.stack([np.ones(100), 2 ** np.r_[flat(10, 80), rise(10, 0.25, 20)]])
    recording.write(layers, 100, {"amax": amax}, loss_scaled=loss_scaled)
    assert len(recording.diagnose(RULE).findings) == (0 if loss_scaled else 1)


def test_three_quick_steps_are_enough(recording: Recording) -> None:
    calm = 11 + 0.05 * (np.arange(60) % 2)
    write(recording, np.r_[calm, 12.1, 13.1, 14.1])
    assert warnings(recording, [62]) == []
    ((_, found),) = warnings(recording, [63])
    assert found.facts["about_steps"] == pytest.approx(1.9, abs=0.1)


def test_a_short_rise_is_not_drawn_on_for_long(recording: Recording) -> None:
    write(recording, np.r_[10.5 + 0.05 * (np.arange(100) % 2), 10.5 + 0.15 * np.arange(1, 17)])
    assert warnings(recording, [110]) == []  # it rose by 1.5 bits, and 4 are left
    assert len(warnings(recording, [116])) == 1


def test_after_the_overflow_it_is_no_warning_any_more(recording: Recording) -> None:
    overflow = write(recording, np.r_[flat(8, 100), rise(8, 0.2, 60)])
    assert overflow is not None
    assert warnings(recording, [overflow + 1, overflow + 5]) == []


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_wide_dtypes_only_explode(recording: Recording, dtype: str) -> None:
    layers = [tensor("a", dtype=dtype), tensor("b", call_index=1, dtype=dtype)]
    grows = np.r_[flat(4, 60), rise(4, 0.4, 60)]
    recording.write(layers, 120, {"amax": np.stack([np.ones(120), 2**grows])})
    assert recording.diagnose(RULE, stop=80).findings == ()  # 2^12 of 2^128, 8 bits beyond its own history
    (found,) = recording.diagnose(RULE).findings
    assert (found.tensor, found.step) == ("b", 119)
    assert 200 < found.facts["about_steps"] < 300


def test_float8_is_scaled_to_its_limit(recording: Recording) -> None:
    amax = np.stack([np.ones(100), np.minimum(2 ** np.r_[flat(3, 80), rise(3, 0.25, 20)], 448)])
    recording.write([tensor("a"), tensor("b", call_index=1, dtype="float8_e4m3fn")], 100, {"amax": amax})
    assert recording.diagnose(RULE).findings == ()


def test_the_rank_that_grows_is_named(recording: Recording) -> None:
    bits = np.r_[flat(8, 80), rise(8, 0.2, 25)]
    for rank in range(4):
        amax = np.ones((3, 105))
        amax[1] = 2 ** (bits if rank == 2 else flat(8, 105))
        recording.write(LAYERS, 105, {"amax": amax}, rank=rank, world_size=4)
    (found,) = recording.diagnose(RULE).findings
    assert (found.rank, found.tensor) == (2, "blocks.1")


def test_all_ranks_alike_are_none(recording: Recording) -> None:
    bits = np.r_[flat(8, 80), rise(8, 0.2, 25)]
    for rank in range(2):
        recording.write(LAYERS, 105, {"amax": np.stack([np.ones(105), 2**bits, np.ones(105)])}, rank=rank, world_size=2)
    (found,) = recording.diagnose(RULE).findings
    assert found.rank is None
    assert any("on all ranks" in each for each in found.evidence)


def test_one_finding_for_all_that_grow_together(recording: Recording) -> None:
    bits = np.r_[flat(8, 80), rise(8, 0.2, 25)]
    recording.write(LAYERS, 105, {"amax": np.stack([2 ** (bits - 1), 2**bits, 2 ** (bits - 2)])})
    (found,) = recording.diagnose(RULE).findings
    assert found.tensor == "blocks.1"  # the first to get there
    assert any("first of all in call order is the output of blocks.0" in each for each in found.evidence)


def test_steps_that_were_merged_before_they_were_sent(recording: Recording) -> None:
    bits = np.r_[flat(8, 100), rise(8, 0.05, 150)]
    calls = (np.arange(250) % 8 == 7).astype(float)
    amax = np.where(calls, np.stack([np.ones(250), 2**bits, np.ones(250)]), 0.0)
    recording.write(LAYERS, 250, {"amax": amax, "call_count": calls, "numel": 32 * calls})
    (found,) = recording.diagnose(RULE).findings
    assert found.tensor == "blocks.1"
    assert found.facts["bits_a_step"] == pytest.approx(0.05, abs=0.02)


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_short_runs(recording: Recording, steps: int) -> None:
    recording.write(LAYERS, steps, {"amax": 2.0**15})
    diagnosis = recording.diagnose(RULE)
    assert (diagnosis.findings, diagnosis.failed) == ((), {})


def test_all_nan(recording: Recording) -> None:
    recording.write(LAYERS, 100, {"amax": 0.0, "nan_count": 32.0})
    diagnosis = recording.diagnose(RULE)
    assert (diagnosis.findings, diagnosis.failed) == ((), {})


def test_the_same_again(recording: Recording) -> None:
    write(recording, GROWTH["slow, over 200 steps"])
    assert recording.diagnose(RULE, stop=250) == recording.diagnose(RULE, stop=250)


@pytest.mark.parametrize(("before", "since", "drift"), [(16, 3, 0.05), (30, 2, 0.05), (8, 6, 0.05), (200, 5, 0.2)])
def test_a_jump_in_one_step_is_no_growth(recording: Recording, before: int, since: int, drift: float) -> None:
    bits = 2 + drift * np.arange(before + since) + 124.7 * (np.arange(before + since) >= before)
    recording.write([tensor("a", dtype="bfloat16")], len(bits), {"amax": 2 ** np.minimum(bits, 127.9)[None]})
    assert recording.diagnose(RULE).findings == ()


def test_growth_that_is_quicker_at_each_step_is_no_jump(recording: Recording) -> None:
    bits = np.r_[flat(2, 60), 2.0 ** np.arange(1, 6.5, 0.5)]
    recording.write([tensor("a", dtype="bfloat16")], len(bits), {"amax": 2 ** bits[None]})
    assert len(recording.diagnose(RULE).findings) == 1
