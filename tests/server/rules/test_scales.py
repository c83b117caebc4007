"""Scales that are too small or stale are named with layer, rank and first step; healthy look-alikes are quiet."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch.statistics import scales
from rangewatch.wire.events import ScaledOperand, ScaledOperands, event
from rangewatch_server.rules.precision.scale_stale import RULE as STALE
from rangewatch_server.rules.precision.scale_too_small import RULE as TOO_SMALL
from tests.server.rules.conftest import Recording, tensor

STEPS = 120
NOISE = np.random.default_rng(3)
AT = np.arange(STEPS)
BOTH = (STALE, TOO_SMALL)


def write(
    recording: Recording, bits: Any, *, age: Any = 0, history: int = 0, format: str = "E4M3", margin: float = 0,
    granularity: str = "tensor", scale_format: str = "float32", rank: int = 0, ranks: int = 1, **columns: Any,
) -> None:  # fmt: skip
    """The input of one layer is 2^`bits` times what its scale has room for; that of another fits."""
    layers = [tensor("blocks.0.up", "scaled_input", 0, "bfloat16"), tensor("blocks.1.up", "scaled_input", 1)]
    fits = np.full(STEPS, 0.9 / 2**margin)
    cells = {
        scales.PEAK: np.stack([2.0 ** np.broadcast_to(np.asarray(bits, float), STEPS), fits]),
        scales.AGE: np.stack([np.broadcast_to(np.asarray(age, float), STEPS), np.full(STEPS, float(history > 0))]),
    }
    known = ScaledOperands(tuple(
        ScaledOperand(
            each.fqn, each.kind, 0, format, granularity, scale_format, "TransformerEngine" if history else "torchao",
            "", history, margin,
        )
        for each in layers
    ))  # fmt: skip
    recording.write(layers, STEPS, cells | columns, rank=rank, world_size=ranks, events=[event(known, 1, 0)])


def test_a_scale_that_is_too_small_since_a_step_on_one_rank(recording: Recording) -> None:
    """torchtitan#3109: with tensor parallelism a rank's scale was made of its own part."""
    for rank in range(3):
        write(recording, np.where((AT >= 70) & (rank == 1), 2.5, 0), rank=rank, ranks=3)
    (found,) = recording.diagnose(*BOTH).findings
    assert (found.rule, found.tensor, found.kind) == ("scale_too_small", "blocks.0.up", "scaled_input")
    assert (found.rank, found.step) == (1, 70)
    assert found.facts["bits"] == pytest.approx(2.5, abs=1e-6)
    assert "torchtitan#3109" in " ".join(found.evidence)
    assert any("keep" in each.code for each in found.remedy)


def test_the_rank_is_named_by_a_step_that_others_have_read_too(recording: Recording) -> None:
    """Each reads at steps of its own, the one whose scale is too small more often, and worst where no other has."""
    for rank in range(3):
        is_bad = (AT >= 70) & (rank == 1)
        bits = np.where(is_bad, 2.5 + (AT == 117), np.where((rank == 1) & (AT > 1) | (AT % 16 == 0), 0.0, -np.inf))
        write(recording, bits, rank=rank, ranks=3)
    (found,) = recording.diagnose(*BOTH).findings
    assert (found.rank, found.step, found.facts["bits"]) == (1, 70, 3.5)


def test_a_delayed_scale_that_lags_behind_growth(recording: Recording) -> None:
    """The scale is no longer updated and the operand grows: NeMo Megatron-Bridge#638 diverged behind E5M2 gradients."""
    write(recording, np.maximum(0.1 * (AT - 60), 0), age=1, history=16)
    (found,) = recording.diagnose(*BOTH).findings
    assert (found.rule, found.tensor, found.rank, found.step) == ("scale_stale", "blocks.0.up", 0, 65)
    assert found.facts["steps"] == 55
    assert found.facts["ratio"] == pytest.approx(2 ** (0.1 * 59), rel=1e-6)
    assert any("Float8CurrentScaling" in each.code for each in found.remedy)
    assert found.consequences, "what is saturated follows from it"


def test_a_margin_is_taken_into_account(recording: Recording) -> None:
    """With two bits free it lags before anything saturates."""
    write(recording, np.where(AT >= 60, -0.5, -2), age=1, history=16, margin=2)
    (found,) = recording.diagnose(*BOTH).findings
    assert (found.rule, found.step) == ("scale_stale", 60)


def test_a_scale_held_by_an_old_amax(recording: Recording) -> None:
    write(recording, np.where(AT >= 40, -9, 0), age=np.maximum(AT - 38, 1), history=1024)
    (found,) = recording.diagnose(*BOTH).findings
    assert (found.rule, found.step) == ("scale_stale", 40)
    assert (found.facts["bits"], found.facts["age"]) == (9, 81)
    assert any("most_recent" in each.code for each in found.remedy)


def test_readings_of_the_process_before_say_nothing_of_a_restart(recording: Recording) -> None:
    """It was resumed with other scales, and few steps have been read since."""
    write(recording, np.where(AT % 8 == 0, 3.0, -np.inf))
    assert [each.rule for each in recording.diagnose(*BOTH).findings] == ["scale_too_small"]
    layer = tensor("blocks.0.up", "scaled_input", 0, "bfloat16")
    known = ScaledOperands((ScaledOperand(layer.fqn, layer.kind, 0, "E4M3", "row", "float32", "torchao"),), 8)
    peaks = np.where(np.arange(24) % 8 == 0, 1.0, 0.0)[None]
    recording.write(
        [layer], 24, {scales.PEAK: peaks}, first=STEPS, incarnation="second", events=[event(known, 1, STEPS)]
    )
    assert recording.diagnose(*BOTH).findings == ()


HEALTHY: dict[str, dict[str, Any]] = {
    "dynamic": {"bits": np.zeros(STEPS)},
    "rounded to powers of two": {"bits": -np.abs(NOISE.uniform(0, 1, STEPS)), "granularity": "row"},
    "MX, floor": {"bits": np.log2(512 / 448 - 1e-6), "granularity": "block 1x32", "scale_format": "e8m0"},
    "MXFP4, floor": {"bits": np.log2(8 / 6 - 1e-6), "format": "E2M1", "scale_format": "e8m0"},
    "NVFP4": {"bits": np.log2(6.4 / 6), "format": "E2M1", "granularity": "block 1x16", "scale_format": "e4m3"},
    "delayed, noise": {"bits": NOISE.normal(-0.3, 0.25, STEPS), "age": NOISE.integers(1, 16, STEPS), "history": 16},
    "delayed, a spike": {"bits": np.where(AT == 110, 5, -0.3), "age": 3, "history": 16},
    "delayed, behind a spike": {"bits": np.where(AT > 110, -5, -0.3), "age": np.maximum(AT - 108, 1), "history": 16},
    "delayed, a long history": {"bits": -4.0, "age": 600, "history": 1024},
    "delayed E5M2 of falling gradients": {
        "bits": np.maximum(-0.2 * AT, -12), "age": AT + 1.0, "history": 1024, "format": "E5M2",
    },
    "margin": {"bits": -2 + NOISE.normal(0, 0.2, STEPS), "age": 1, "history": 16, "margin": 2},
    "three bad steps long ago": {"bits": np.where(np.isin(AT, (20, 21, 22)), 4, 0)},
    "not read since": {"bits": 0.0, "call_count": 1.0},
}  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_look_alikes_are_quiet(name: str, recording: Recording) -> None:
    write(recording, **HEALTHY[name])
    assert recording.diagnose().findings == ()


@pytest.mark.parametrize(
    ("bits", "age", "margin", "text"),
    [
        (1023.9, 1, 1000.0, "2^2024 times"),
        (-1000, 5, -500.0, "2^1500 times"),
        (-1000, 5, 0.0, "1.07e+301 times"),
    ],
)
def test_no_margin_is_too_much(bits: float, age: float, margin: float, text: str, recording: Recording) -> None:
    write(recording, np.full(STEPS, bits), age=age, history=16, margin=margin)
    found = recording.diagnose(*BOTH).findings
    assert any(text in each.summary for each in found), [each.summary for each in found]
    assert all(np.isfinite(value) for each in found for value in each.facts.values() if isinstance(value, float))


def test_no_peak_is_too_much(recording: Recording) -> None:
    write(recording, 0.0, age=1, history=16, **{scales.PEAK: np.finfo(float).max})
    found = recording.diagnose(TOO_SMALL).findings + recording.diagnose(STALE).findings
    assert [each.rule for each in found] == ["scale_too_small", "scale_stale"]
    assert all("2^1024 times" in each.summary for each in found)


@pytest.mark.parametrize("third", [0.0, 2.0], ids=["the others fit", "one that is read is worse than most"])
def test_a_rank_beyond_those_that_are_named(third: float, recording: Recording) -> None:
    """What one of many ranks has is a finding, and no other one is named for it."""
    for rank in range(66):
        write(recording, {3: third, 65: 2.5}.get(rank, 0.0), rank=rank, ranks=66)
    (found,) = recording.diagnose(*BOTH).findings
    assert (found.rule, found.rank, found.facts["bits"]) == ("scale_too_small", None, pytest.approx(2.5, abs=1e-6))


@pytest.mark.parametrize("casts", [True, False])
def test_a_restart_that_casts_nothing_any_more(casts: bool, recording: Recording) -> None:
    """What the process before it has read says nothing of it."""
    write(recording, np.where(AT >= 70, 2.5, 0))
    layers = [tensor("blocks.0.up", "scaled_input", 0, "bfloat16")]
    known = ScaledOperands((ScaledOperand("blocks.0.up", "scaled_input", 0, "E4M3"),))
    said = [event(known, 1, STEPS)] if casts else []
    recording.write(layers, 20, {scales.PEAK: 6.0 * casts}, first=STEPS, incarnation="b", events=said)
    assert len(recording.diagnose(*BOTH, stop=STEPS).findings) == 1
    assert len(recording.diagnose(*BOTH).findings) == casts


def test_a_run_without_scales_is_quiet(recording: Recording) -> None:
    recording.write([tensor("blocks.0.up")], STEPS)
    assert recording.diagnose(*BOTH).findings == ()
