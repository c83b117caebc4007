"""Weights that torchao holds in low precision: LoRA beside a frozen `Float8Tensor`, `MXTensor` or `NVFP4Tensor`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rangewatch
from rangewatch.hooks.scales.scaled_mm import _has_small
from rangewatch.hooks.scales.torchao_weights import NOT_BY_ROWS, TorchaoWeights
from rangewatch.statistics import scales
from tests.agent.hooks.scales.recorded import operands, rows
from tests.agent.ingest_double import IngestDouble

pytest.importorskip("torchao", reason="torchao is not installed")


class Lora(nn.Module):
    """Its product is that of the weight as it is decoded: a CPU has none in all formats."""

    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.down, self.up = nn.Linear(64, 4), nn.Linear(4, 32)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.dequantize().t() + self.up(self.down(x))  # type: ignore[operator, no-any-return]


class Model(nn.Module):
    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.layer = Lora(weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)  # type: ignore[no-any-return]


def run(weight: Any, ingest: IngestDouble, steps: int = 1) -> dict[Any, Any]:
    model = Model(weight)
    with rangewatch.attach(model, url=ingest.url, quiet=True) as handle:
        for _ in range(steps):
            model(torch.randn(8, 64)).square().mean().backward()
            handle.step()
        assert not handle.stats()["faults"]
    return rows(ingest)


def float8(values: Tensor) -> Any:
    module = pytest.importorskip("torchao.quantization.quantize_.workflows.float8.float8_tensor")
    from torchao.quantization import PerRow

    return module.Float8Tensor.from_hp(values, torch.float8_e4m3fn, granularity=PerRow())


def test_float8_by_row_with_each_full_set(ingest: IngestDouble) -> None:
    torch.manual_seed(0)
    values = torch.randn(32, 64)
    found = run(float8(values), ingest, steps=3)
    assert list(found) == [0], "it is frozen"
    row = found[0]["layer", "scaled_weight", 0]
    expected = (values.abs().amax(1) / 448).log2()
    assert (row["low"], row["high"]) == pytest.approx((float(expected.min()), float(expected.max())), abs=1e-5)
    assert row[scales.PEAK] == 1
    about = operands(ingest)["layer", "scaled_weight", 0]
    assert (about.format, about.granularity) == ("E4M3", "row")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float4_e2m1fn_x2])
def test_mx_by_blocks(dtype: torch.dtype, ingest: IngestDouble) -> None:
    mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    torch.manual_seed(0)
    values = torch.randn(32, 64)
    row = run(mx.MXTensor.to_mx(values, dtype), ingest)[0]["layer", "scaled_weight", 0]
    exponent = 8 if dtype is torch.float8_e4m3fn else 2
    powers = values.reshape(32, 2, 32).abs().amax(-1).log2().floor() - exponent
    assert (row["low"], row["high"]) == (float(powers.min()), float(powers.max()))
    assert row[scales.PEAK] == 1, "the largest are stored as the largest number"
    assert operands(ingest)["layer", "scaled_weight", 0].granularity == "block 1x32"


@pytest.mark.parametrize("is_swizzled", [False, True])
def test_nvfp4_of_two_levels_unless_a_kernel_has_its_scales_elsewhere(is_swizzled: bool, ingest: IngestDouble) -> None:
    nvfp4 = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")
    torch.manual_seed(0)
    values = torch.randn(32, 64)
    of_tensor = nvfp4.per_tensor_amax_to_scale(values.abs().amax())
    weight = nvfp4.NVFP4Tensor.to_nvfp4(values, per_tensor_scale=of_tensor, is_swizzled_scales=is_swizzled)
    found = run(weight, ingest)
    if is_swizzled:
        assert not found
        assert operands(ingest)["layer", "scaled_weight", 0].unknown == NOT_BY_ROWS
        return
    row = found[0]["layer", "scaled_weight", 0]
    expected = weight.get_hp_scales().log2()
    assert row["high"] == pytest.approx(float(expected.max()), abs=1e-5)
    assert row["low"] == pytest.approx(float(expected.min()), abs=1e-5)
    assert row["amax"] == pytest.approx(float(weight.dequantize().abs().amax()), rel=1e-6)


def test_a_subclass_that_raises_at_what_it_is_asked_is_left_alone(ingest: IngestDouble) -> None:
    class Shy(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if getattr(func, "__self__", None) in (torch.Tensor.data, torch.Tensor.dtype):
                raise RuntimeError("not this one")
            return super().__torch_function__(func, types, args, kwargs or {})

    held = Shy(torch.zeros(2, 2))
    layer = nn.Linear(2, 2)
    layer._parameters["weight"] = held  # type: ignore[assignment]
    assert TorchaoWeights.of(None, layer) is None  # type: ignore[arg-type]
    assert not _has_small(layer)
