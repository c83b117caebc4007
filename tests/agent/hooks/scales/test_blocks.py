"""torchao's MX training and the fake quantization of MX and NVFP4, where their casts run on a CPU."""

from __future__ import annotations

import copy
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rangewatch
from rangewatch.statistics import scales
from tests.agent.hooks.scales.recorded import operands, rows
from tests.agent.ingest_double import IngestDouble

pytest.importorskip("torchao", reason="torchao is not installed")


def mx_linear() -> Any:
    mxfp8 = pytest.importorskip("torchao.prototype.moe_training.mxfp8_linear", reason="this torchao has no MXFP8Linear")
    from torchao.quantization.quantize_.common.kernel_preference import KernelPreference

    return mxfp8.MXFP8Linear(64, 32, kernel_preference=KernelPreference.EMULATED, wgrad_with_hp=True)


def mx_fake(dtype: torch.dtype = torch.float4_e2m1fn_x2, mode: str = "floor") -> Any:
    mx = pytest.importorskip("torchao.prototype.qat.mx", reason="this torchao has no MX fake quantization")
    from torchao.prototype.mx_formats.config import ScaleCalculationMode

    config = mx.MXFakeQuantizeConfig(dtype=dtype, scaling_mode=ScaleCalculationMode(mode))
    return mx.MXFakeQuantizedLinear(64, 32, activation_config=config, weight_config=config)


def nvfp4_fake() -> Any:
    nvfp4 = pytest.importorskip("torchao.prototype.qat.nvfp4", reason="this torchao has no NVFP4 fake quantization")
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale

    def on_host(self: Any, x: Tensor) -> Tensor:
        """Its casts, with a product that a CPU has."""
        _input, weight = x, self.weight.detach()
        scale = per_tensor_amax_to_scale(x.abs().amax())
        cast = NVFP4Tensor.to_nvfp4(_input, per_tensor_scale=scale)
        of_weight = NVFP4Tensor.to_nvfp4(weight, per_tensor_scale=per_tensor_amax_to_scale(weight.abs().amax()))
        return cast.dequantize(x.dtype) @ of_weight.dequantize(x.dtype).t() + x @ self.weight.t() * 0

    class OnHost(nvfp4.NVFP4FakeQuantizedLinear):  # type: ignore[misc, name-defined]
        # As one of torchao's own module, the locals of which are looked at.
        forward = FunctionType(on_host.__code__, {"__name__": nvfp4.__name__}, closure=on_host.__closure__)

    config = nvfp4.NVFP4FakeQuantizeConfig(use_per_tensor_scale=True, use_swizzled_scales=False)
    return OnHost(64, 32, activation_config=config, weight_config=config)


class Model(nn.Module):
    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).float()  # type: ignore[no-any-return]


def step(model: Model, x: Tensor) -> float:
    loss = model(x).square().mean()
    loss.backward()
    return loss.item()


def made(layer: Any) -> tuple[Model, Tensor]:
    torch.manual_seed(4)
    model = Model(layer).to(torch.bfloat16)
    with torch.no_grad():
        model.layer.weight.copy_(torch.randn(32, 64))
    return model, torch.randn(32, 64).to(torch.bfloat16)


def run(layer: Any, ingest: IngestDouble) -> tuple[Model, Tensor, Any]:
    """One step, whose loss is the same with and without."""
    model, x = made(layer)
    expected = step(copy.deepcopy(model), x)
    with rangewatch.attach(model, url=ingest.url, quiet=True) as handle:
        assert step(model, x) == expected
        handle.step()
        assert not handle.stats()["faults"]
    [found] = rows(ingest).values()
    return model, x, found


def powers(values: Tensor, largest_exponent: int) -> Tensor:
    """The MX specification's: of blocks of 32."""
    blocks = values.detach().float().reshape(len(values), -1, 32)
    return blocks.abs().amax(-1).log2().floor() - largest_exponent


def test_mx_training_by_blocks_of_32(ingest: IngestDouble) -> None:
    model, x, found = run(mx_linear(), ingest)
    assert {("layer", "scaled_input", 0), ("layer", "scaled_weight", 0), ("layer", "scaled_grad_output", 0)} <= set(
        found
    )
    about = operands(ingest)["layer", "scaled_input", 0]
    assert (about.format, about.granularity, about.scale_format) == ("E4M3", "block 1x32", "e8m0")
    assert about.recipe == "MX, rceil"
    for kind, values in (("scaled_input", x), ("scaled_weight", model.layer.weight)):
        amax = values.detach().float().reshape(len(values), -1, 32).abs().amax(-1)
        expected = (amax / 448).log2().ceil()  # rounded up, so that the largest fits
        row = found["layer", kind, 0]
        assert (row["low"], row["high"]) == (float(expected.min()), float(expected.max()))
        assert 0.5 < row[scales.PEAK] <= 1


@pytest.mark.parametrize(("dtype", "format", "exponent"), [
    (torch.float4_e2m1fn_x2, "E2M1", 2), (torch.float8_e4m3fn, "E4M3", 8), (torch.float8_e5m2, "E5M2", 15),
])  # fmt: skip
def test_mx_rounded_down_goes_beyond_the_limit_by_less_than_too_small(
    dtype: torch.dtype, format: str, exponent: int, ingest: IngestDouble
) -> None:
    _, x, found = run(mx_fake(dtype), ingest)
    row = found["layer", "scaled_input", 0]
    expected = powers(x, exponent)
    assert (row["low"], row["high"]) == (float(expected.min()), float(expected.max()))
    largest = scales.ELEMENTS[format].largest
    blocks = x.float().reshape(len(x), -1, 32).abs().amax(-1) / torch.exp2(expected)
    assert row[scales.PEAK] == pytest.approx(float(blocks.max()) / largest, rel=1e-6)
    assert 1 < row[scales.PEAK] < scales.TOO_SMALL
    assert operands(ingest)["layer", "scaled_input", 0].format == format


def test_nvfp4_has_scales_of_two_levels(ingest: IngestDouble) -> None:
    _, x, found = run(nvfp4_fake(), ingest)
    about = operands(ingest)["layer", "scaled_input", 0]
    assert (about.format, about.granularity, about.scale_format) == ("E2M1", "block 1x16", "e4m3")
    assert about.recipe == "NVFP4, two-level"
    amax = x.float().reshape(len(x), -1, 16).abs().amax(-1)
    of_tensor = float(x.float().abs().amax()) / (448 * 6)
    blocks = (amax / 6 / of_tensor).clamp(2**-6, 448).to(torch.float8_e4m3fn).float() * of_tensor
    row = found["layer", "scaled_input", 0]
    assert row["high"] == pytest.approx(float(blocks.log2().max()), abs=1e-5)
    assert row["low"] == pytest.approx(float(blocks.log2().min()), abs=1e-5)
    assert row[scales.PEAK] == pytest.approx(float((amax / blocks).max()) / 6, rel=1e-5)
    assert row[scales.PEAK] < scales.TOO_SMALL


def test_another_release_whose_results_are_others_is_trained(
    ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tensor has neither `scale` nor `elem_dtype`."""
    module = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")

    class Other:
        @staticmethod
        def to_mx(data_hp: Tensor, elem_dtype: torch.dtype, block_size: int = 32) -> Any:
            return object()

    monkeypatch.setattr(module, "MXTensor", Other)

    class MXLinear(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            module.MXTensor.to_mx(x, torch.float8_e4m3fn)
            return super().forward(x)

    MXLinear.__module__ = "torchao.prototype.mx_formats.mx_linear"
    model = Model(MXLinear(64, 32))
    with rangewatch.attach(model, url=ingest.url, quiet=True) as handle:
        model(torch.randn(8, 64)).square().mean().backward()
        handle.step()
        assert not handle.stats()["faults"]
    assert not rows(ingest)
