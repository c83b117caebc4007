"""torchao's float8 training, MX and NVFP4 on a CPU: every scale that arrives is the one its own cast has made."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import rangewatch
from rangewatch.hooks.scales.casts import NEVER_READ
from rangewatch.statistics import scales
from rangewatch.wire.events import ScaledOperands
from rangewatch.wire.events import read as read_event
from tests.agent.hooks.scales.recorded import operands, rows
from tests.agent.ingest_double import IngestDouble

float8 = pytest.importorskip("torchao.float8", reason="torchao is not installed")

STEPS = 3
SPIKE = 50.0


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, 64), nn.Linear(64, 32)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu()
        if not torch.compiler.is_compiling():
            self.seen.append(hidden.detach().clone())
        return self.last(hidden)  # type: ignore[no-any-return]


def model_of(recipe: str) -> Any:
    torch.manual_seed(3)
    return float8.convert_to_float8_training(Model(), config=float8.Float8LinearConfig.from_recipe_name(recipe))


def batch_of(step: int) -> Tensor:
    x = torch.randn(16, 32, generator=torch.Generator().manual_seed(step))
    x[3, 5] *= SPIKE
    x[4, :8] *= 1e-5
    return x


def train(
    model: Any, options: dict[str, Any] | None, steps: int = STEPS, call: Callable[..., Any] | None = None
) -> list[float]:
    """The losses. `options` None: nobody is attached."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    every = {"scales_every": 1} | (options or {})
    handle = rangewatch.attach(model, optimizer, quiet=True, **every) if options is not None else None
    call = call or model
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = call(batch_of(step)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if handle is not None:
        handle.detach()
    return losses


def log2_scale(amax: Tensor, largest: float) -> list[float]:
    """As torchao: in float64, rounded once to float32."""
    return [-math.log2(float(torch.tensor(largest / float(each), dtype=torch.float32))) for each in amax.reshape(-1)]


@pytest.mark.parametrize("backend", ["auto", "device"])
def test_tensorwise_scales_are_those_computed_by_hand(backend: str, ingest: IngestDouble) -> None:
    model = model_of("tensorwise")
    weights = [model.first.weight.detach().clone()]
    train(model, {"url": ingest.url, "full_every": 1, "backend": backend}, steps=1)
    [found] = rows(ingest).values()
    assert {each for each in found if each[0] == "first"} == {
        ("first", kind, 0) for kind in ("scaled_input", "scaled_weight", "scaled_grad_output")
    }
    for kind, values in (("scaled_input", batch_of(0)), ("scaled_weight", weights[0])):
        row = found["first", kind, 0]
        [expected] = log2_scale(values.abs().amax(), 448.0)
        assert row["high"] == row["low"] == pytest.approx(expected, abs=1e-9)
        assert row["amax"] == float(values.abs().amax())
        assert row[scales.PEAK] == pytest.approx(1.0, abs=1e-6)
        assert row[scales.COUNT] == int((values != 0).sum())
        scale = 2.0**-expected
        stored = (values * scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        assert row.get(scales.FLUSHED, 0) == int(((stored.float() == 0) & (values != 0)).sum())
        assert row.get(scales.SATURATED, 0) == 0
    about = operands(ingest)["first", "scaled_input", 0]
    assert (about.format, about.granularity, about.recipe) == ("E4M3", "tensor", "dynamic, tensorwise")
    assert operands(ingest)["first", "scaled_grad_output", 0].format == "E5M2"


def test_rowwise_scales_have_a_range_and_both_directions(ingest: IngestDouble) -> None:
    model = model_of("rowwise")
    weight = model.first.weight.detach().clone()
    train(model, {"url": ingest.url}, steps=1)
    [found] = rows(ingest).values()
    assert len([each for each in found if each[0] == "first"]) == 6
    x = batch_of(0)
    expected = {
        ("scaled_input", 0): x.abs().amax(1), ("scaled_input", 1): x.abs().amax(0),
        ("scaled_weight", 0): weight.abs().amax(1), ("scaled_weight", 1): weight.abs().amax(0),
    }  # fmt: skip
    for (kind, index), amax in expected.items():
        # Rounded down to a power of two, as the recipe has it: so that what is multiplied by it is no larger.
        powers = [math.ceil(each) for each in log2_scale(amax, 448.0)]
        row = found["first", kind, index]
        assert (row["low"], row["high"]) == (min(powers), max(powers)), (kind, index)
        assert 0.5 < row[scales.PEAK] <= 1
    assert operands(ingest)["first", "scaled_input", 0].granularity == "row"
    assert operands(ingest)["first", "scaled_weight", 0].granularity == "row"


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp"])
def test_losses_are_bit_equal_with_and_without(recipe: str, ingest: IngestDouble) -> None:
    model = model_of(recipe)
    expected = train(copy.deepcopy(model), None)
    assert train(copy.deepcopy(model), {"url": ingest.url}) == expected
    assert len(rows(ingest)) == STEPS
    assert train(copy.deepcopy(model), {"url": "http://127.0.0.1:9"}) == expected, "the server is down"
    assert torch._scaled_mm.__class__.__name__ == "builtin_function_or_method"


def test_checkpointed_layers_are_read_once(ingest: IngestDouble) -> None:
    model = model_of("rowwise")
    train(model, {"url": ingest.url}, 1, lambda x: checkpoint(model, x, use_reentrant=False))
    [found] = rows(ingest).values()
    assert {row["call_count"] for row in found.values()} == {1}
    assert len([each for each in found if each[0] == "first"]) == 6


def test_evaluation_is_not_read(ingest: IngestDouble) -> None:
    model = model_of("tensorwise")
    handle = rangewatch.attach(model, quiet=True, url=ingest.url)
    model.eval()
    with torch.no_grad():
        model(batch_of(0))
    handle.step()
    handle.detach()
    assert not rows(ingest)


def test_what_is_compiled_is_said_to_be_unknown(ingest: IngestDouble) -> None:
    model = model_of("tensorwise")
    handle = rangewatch.attach(model, quiet=True, url=ingest.url)
    call = torch.compile(model, backend="aot_eager")
    call(batch_of(0)).square().mean().backward()
    handle.step()
    handle.detach()
    assert not rows(ingest)
    assert {each.unknown for each in operands(ingest).values()} == {NEVER_READ}


def test_what_is_not_asked_for_is_not_said_to_be_unseen(ingest: IngestDouble) -> None:
    train(model_of("tensorwise"), {"url": ingest.url, "level": "grads"}, steps=2)
    model = model_of("tensorwise")
    handle = rangewatch.attach(model, quiet=True, url=ingest.url)
    model.eval()
    with torch.no_grad():
        model(batch_of(0))
    handle.step()
    assert not any("scales" in each for each in handle.stats()["not_observed"].values())
    handle.detach()
    assert not operands(ingest)


def test_modules_that_become_float8_after_attach_are_read(ingest: IngestDouble) -> None:
    torch.manual_seed(3)
    model = Model()
    handle = rangewatch.attach(model, quiet=True, url=ingest.url)
    model(batch_of(0)).square().mean().backward()
    handle.step()
    float8.convert_to_float8_training(model, config=float8.Float8LinearConfig.from_recipe_name("tensorwise"))
    for step in (1, 2):
        model(batch_of(step)).square().mean().backward()
        handle.step()
    handle.detach()
    assert 0 not in rows(ingest) and ("first", "scaled_input", 0) in rows(ingest)[2]


def test_none_reads_none(ingest: IngestDouble) -> None:
    train(model_of("tensorwise"), {"url": ingest.url, "scales": "none"}, steps=1)
    assert not rows(ingest) and not operands(ingest)


def test_a_stale_scale_shows_as_saturated(ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    """A factor of before a spike, as of a cache: the peak says how far beyond the limit, exactly."""
    from torchao.float8 import float8_scaling_utils

    fixed = torch.tensor(448.0 / 4)
    monkeypatch.setattr(float8_scaling_utils, "tensor_to_scale", lambda *args: fixed)
    train(model_of("tensorwise"), {"url": ingest.url, "full_every": 1}, steps=1)
    [found] = rows(ingest).values()
    x = batch_of(0)
    row = found["first", "scaled_input", 0]
    assert row[scales.PEAK] == pytest.approx(float(x.abs().amax()) / 4, rel=1e-6)
    assert row[scales.SATURATED] == int((x.abs() * 112 > 464).sum()) > 0


def test_emulated_products_are_read_too(ingest: IngestDouble) -> None:
    config = dataclasses.replace(float8.Float8LinearConfig.from_recipe_name("tensorwise"), emulate=True)
    model = float8.convert_to_float8_training(Model(), config=config)
    train(model, {"url": ingest.url}, steps=1)
    assert ("last", "scaled_weight", 0) in rows(ingest)[0]


def test_by_default_few_steps_are_read_and_losses_are_equal(ingest: IngestDouble) -> None:
    model = model_of("tensorwise")
    expected = train(copy.deepcopy(model), None, steps=40)
    assert train(copy.deepcopy(model), {"url": ingest.url, "scales_every": 0}, steps=40) == expected
    read = sorted(rows(ingest))
    assert read[0] == 0 and len(read) < 10
    events = [each for batch in ingest.batches for each in batch.events if each.kind == ScaledOperands.KIND]
    details: Any = read_event(ScaledOperands, events[-1].data)
    assert details.every > 4, "how often is said"


def test_a_scale_that_is_no_number_is_not_missed_between_readings(
    ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of("tensorwise")
    handle = rangewatch.attach(model, quiet=True, url=ingest.url, scales_every=0)
    agent = handle._agent
    assert agent is not None
    for step in range(6):
        agent.scale_schedule.is_due &= step in (0, 5)
        monkeypatch.setattr(agent.scale_schedule, "_may_go_ahead", lambda: True)
        x = batch_of(step)
        x[0, 0] = math.inf if step == 3 else 0.0
        model(x).square().mean().backward()
        handle.step()
    handle.detach()
    assert ("first", "scaled_input", 0) in rows(ingest)[3], "its scale was 0"
    assert set(rows(ingest)) == {0, 3, 5}
