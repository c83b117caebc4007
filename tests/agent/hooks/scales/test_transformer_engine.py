"""TransformerEngine by doubles of its modules' state, which cast and update as its sources say: delayed, current,
MXFP8, block and NVFP4 scaling. Its own modules need a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rangewatch
from rangewatch.hooks.scales.transformer_engine import NO_STATE
from rangewatch.statistics import scales
from tests.agent.hooks.scales.recorded import operands, rows
from tests.agent.ingest_double import IngestDouble

LIMITS = {"E4M3": 448.0, "E5M2": 57344.0}


class Format(Enum):
    E4M3 = "E4M3"
    HYBRID = "HYBRID"


class DType(Enum):
    kFloat8E4M3 = 4
    kFloat8E5M2 = 5


class DelayedScaling:
    def __init__(self, length: int = 4, margin: int = 0, algorithm: str = "max") -> None:
        self.fp8_format, self.margin = Format.HYBRID, margin
        self.amax_history_len, self.amax_compute_algo = length, algorithm


class Float8CurrentScaling:
    fp8_format = Format.HYBRID


class MXFP8BlockScaling:
    fp8_format = Format.E4M3


class Float8BlockScaling:
    fp8_format = Format.E4M3


class NVFP4BlockScaling:
    pass


class TransformerEngineBaseModule(nn.Module):
    """What its modules share: `fp8`, `fp8_meta`, `quantizers`."""

    def __init__(self, recipe: Any) -> None:
        super().__init__()
        self.fp8 = True
        self.fp8_meta: dict[str, Any] = {"recipe": recipe, "num_gemms": 1}
        self.quantizers: dict[str, list[Any]] = {}
        self._fp8_workspaces: dict[str, Any] = {}


class Cast(torch.autograd.Function):
    """Writes the amax of its input's gradient where the module keeps it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, module: Linear) -> Tensor:
        ctx.module = module
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        ctx.module.put("scaling_bwd", 0, grad)
        return grad, None


class Linear(TransformerEngineBaseModule):
    def __init__(self, recipe: Any) -> None:
        super().__init__(recipe)
        self.weight = nn.Parameter(torch.randn(128, 128) / 10)
        for key, count in (("scaling_fwd", 3), ("scaling_bwd", 2)):
            if isinstance(recipe, DelayedScaling):
                history = torch.zeros(recipe.amax_history_len, count)
                self.fp8_meta[key] = SimpleNamespace(scale=torch.ones(count), amax_history=history)
            elif isinstance(recipe, Float8CurrentScaling):
                dtype = DType.kFloat8E4M3 if key == "scaling_fwd" else DType.kFloat8E5M2
                self.quantizers[key] = [
                    SimpleNamespace(scale=torch.zeros(1), amax=torch.zeros(1), dtype=dtype) for _ in range(count)
                ]

    def put(self, key: str, at: int, values: Tensor) -> None:
        """As the kernels do: they cast by the scale that is there and write the amax."""
        amax = values.detach().abs().amax()
        if key in self.fp8_meta:
            history = self.fp8_meta[key].amax_history
            history[0, at] = torch.maximum(history[0, at], amax)
        elif key in self.quantizers:
            quantizer = self.quantizers[key][at]
            quantizer.amax.fill_(amax)
            quantizer.scale.fill_(LIMITS[quantizer.dtype.name[-4:]] / amax)

    def forward(self, x: Tensor) -> Tensor:
        self.put("scaling_fwd", 0, x)
        self.put("scaling_fwd", 1, self.weight)
        return Cast.apply(x @ self.weight.t(), self)  # type: ignore[no-any-return]

    def update(self, key: str) -> None:
        """Rolls the history and makes the next scale of it: when autocast or a backward ends."""
        recipe, state = self.fp8_meta["recipe"], self.fp8_meta.get(key)
        if state is None:
            return
        history = state.amax_history
        amax = history.amax(0) if recipe.amax_compute_algo == "max" else history[0].clone()
        if len(history) > 1:
            history.copy_(history.roll(-1, 0))
        history[0] = 0
        limit = LIMITS["E4M3" if key == "scaling_fwd" else "E5M2"]
        state.scale.copy_(torch.where(amax > 0, limit / amax / 2**recipe.margin, state.scale))


class Model(nn.Module):
    def __init__(self, recipe: Any) -> None:
        super().__init__()
        self.layer, self.head = Linear(recipe), nn.Linear(128, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x))  # type: ignore[no-any-return]


@contextmanager
def fp8_autocast(model: Model) -> Iterator[None]:
    yield
    model.layer.update("scaling_fwd")


def train(model: Model, ingest: IngestDouble, sizes: list[float]) -> list[dict[str, float]]:
    """Steps whose inputs have these largest magnitudes; the amax of input, weight and gradient of each."""
    truth: list[dict[str, float]] = []
    with rangewatch.attach(model, url=ingest.url, scales_every=1, quiet=True) as handle:
        for size in sizes:
            x = torch.rand(8, 128) * size
            x[0, 0] = size
            seen: dict[str, float] = {
                "scaled_input": size,
                "scaled_weight": float(model.layer.weight.detach().abs().amax()),
            }
            with fp8_autocast(model):
                out = model(x)
            out.square().mean().backward()
            model.layer.update("scaling_bwd")
            truth.append(seen)
            handle.step()
        assert not handle.stats()["faults"]
    return truth


def test_delayed_scaling_by_the_scale_that_was_used(ingest: IngestDouble) -> None:
    torch.manual_seed(0)
    model = Model(DelayedScaling(length=4))
    sizes = [2.0, 2.0, 16.0, 2.0, 2.0, 2.0, 2.0]
    truth = train(model, ingest, sizes)
    found = rows(ingest)
    for step in range(1, len(sizes)):
        row = found[step]["layer", "scaled_input", 0]
        made_for = max(sizes[max(0, step - 4) : step])
        assert row["amax"] == sizes[step]
        assert row[scales.PEAK] == pytest.approx(sizes[step] / made_for, rel=1e-6), step
        assert row["high"] == pytest.approx(math.log2(made_for / 448), abs=1e-6)
        assert found[step]["layer", "scaled_weight", 0]["amax"] == pytest.approx(truth[step]["scaled_weight"])
    assert found[2]["layer", "scaled_input", 0][scales.PEAK] == pytest.approx(8), "the spike is 8 times too large"
    assert [found[step]["layer", "scaled_input", 0][scales.AGE] for step in (3, 4, 5)] == [1, 2, 3]
    about = operands(ingest)["layer", "scaled_input", 0]
    assert (about.format, about.granularity, about.history, about.recipe) == ("E4M3", "tensor", 4, "DelayedScaling")


def test_gradients_by_the_scale_of_their_own_backward(ingest: IngestDouble) -> None:
    torch.manual_seed(0)
    model = Model(DelayedScaling(length=8, margin=1))
    amax: list[float] = []
    put = model.layer.put

    def watched(key: str, at: int, values: Tensor) -> None:
        if key == "scaling_bwd":
            amax.append(float(values.abs().amax()))
        put(key, at, values)

    model.layer.put = watched  # type: ignore[method-assign]
    train(model, ingest, [1.0, 1.0, 30.0, 1.0, 1.0])
    found = rows(ingest)
    for step in range(1, 5):
        row = found[step]["layer", "scaled_grad_output", 0]
        made_for = max(amax[:step])
        assert row["amax"] == pytest.approx(amax[step], rel=1e-6)
        assert row[scales.PEAK] == pytest.approx(amax[step] / made_for / 2, rel=1e-5), step
    assert found[4]["layer", "scaled_grad_output", 0][scales.AGE] == 2
    about = operands(ingest)["layer", "scaled_grad_output", 0]
    assert (about.format, about.margin, about.history) == ("E5M2", 1, 8)


def test_the_most_recent_amax_is_never_old(ingest: IngestDouble) -> None:
    train(Model(DelayedScaling(length=4, algorithm="most_recent")), ingest, [2.0, 16.0, 2.0, 2.0])
    found = rows(ingest)
    assert [found[step]["layer", "scaled_input", 0].get(scales.AGE, 0) for step in range(4)] == [0, 1, 1, 1]
    assert found[2]["layer", "scaled_input", 0][scales.PEAK] == pytest.approx(1 / 8)


def test_current_scaling_always_fits(ingest: IngestDouble) -> None:
    train(Model(Float8CurrentScaling()), ingest, [2.0, 64.0])
    for step, size in enumerate((2.0, 64.0)):
        found = rows(ingest)[step]
        assert found["layer", "scaled_input", 0]["high"] == pytest.approx(math.log2(size / 448), abs=1e-6)
        for kind in ("scaled_input", "scaled_weight", "scaled_grad_output"):
            assert found["layer", kind, 0][scales.PEAK] == pytest.approx(1, rel=1e-6)
    assert operands(ingest)["layer", "scaled_grad_output", 0].format == "E5M2"


def padded(scale: Tensor) -> Tensor:
    """As kernels want them, with numbers of nobody's around."""
    whole = torch.full((-(-scale.shape[0] // 128) * 128, -(-scale.shape[1] // 4) * 4), 200, dtype=scale.dtype)
    whole[: scale.shape[0], : scale.shape[1]] = scale
    return whole


def held(kind: str, weight: Tensor) -> Any:
    """A weight as its quantized tensors hold it, cast by hand."""
    if kind == "mxfp8":
        blocks = weight.reshape(len(weight), -1, 32)
        power = blocks.abs().amax(-1).log2().floor() - 8
        codes = (blocks / torch.exp2(power)[..., None]).clamp(-448, 448).reshape(weight.shape).to(torch.float8_e4m3fn)
        return SimpleNamespace(
            _rowwise_data=codes.view(torch.uint8), _rowwise_scale_inv=padded((power + 127).to(torch.uint8)),
            _fp8_dtype=DType.kFloat8E4M3,
        )  # fmt: skip
    if kind == "block":
        scale = weight.abs().amax().reshape(1, 1) / 448
        codes = (weight / scale).to(torch.float8_e4m3fn)
        return SimpleNamespace(
            _rowwise_data=codes.view(torch.uint8), _rowwise_scale_inv=torch.nn.functional.pad(scale, (0, 3)),
            _fp8_dtype=DType.kFloat8E4M3, _is_2D_scaled=True,
        )  # fmt: skip
    # NVFP4: all magnitudes 3 (code 5), each block's scale 1.5 in E4M3 below one of the tensor's.
    codes = torch.full((128, 64), 5 | 5 << 4, dtype=torch.uint8)
    blocks = torch.full((128, 8), 1.5).to(torch.float8_e4m3fn).view(torch.uint8)
    return SimpleNamespace(
        _rowwise_data=codes, _rowwise_scale_inv=padded(blocks), _amax_rowwise=torch.tensor([2688.0]),
    )  # fmt: skip


RECIPES: dict[str, Any] = {"mxfp8": MXFP8BlockScaling, "block": Float8BlockScaling, "nvfp4": NVFP4BlockScaling}


@pytest.mark.parametrize("kind", RECIPES)
def test_block_scaling_is_read_of_weights_and_unknown_of_all_else(kind: str, ingest: IngestDouble) -> None:
    torch.manual_seed(0)
    model = Model(RECIPES[kind]())
    weight = model.layer.weight.detach()
    model.layer._fp8_workspaces["weight"] = held(kind, weight)
    train(model, ingest, [2.0])
    [found] = rows(ingest).values()
    assert set(found) == {("layer", "scaled_weight", 0)}
    row = found["layer", "scaled_weight", 0]
    if kind == "mxfp8":
        powers = weight.reshape(128, -1, 32).abs().amax(-1).log2().floor() - 8
        assert (row["low"], row["high"]) == (float(powers.min()), float(powers.max()))
        assert row[scales.PEAK] == 1
    elif kind == "block":
        assert row["high"] == row["low"] == pytest.approx(math.log2(float(weight.abs().amax()) / 448), abs=1e-6)
    else:
        assert row["high"] == pytest.approx(math.log2(1.5), abs=1e-6)
        assert row[scales.PEAK] == pytest.approx(0.5) and row["amax"] == pytest.approx(4.5)
    known = operands(ingest)
    assert known["layer", "scaled_input", 0].unknown == NO_STATE
    assert not known["layer", "scaled_weight", 0].unknown


def test_without_autocast_nothing_is_said(ingest: IngestDouble) -> None:
    model = Model(DelayedScaling())
    model.layer.fp8 = False
    train(model, ingest, [2.0])
    assert not rows(ingest) and not operands(ingest)


def test_a_recipe_of_later_releases_is_unknown(ingest: IngestDouble) -> None:
    train(Model(SimpleNamespace()), ingest, [2.0])
    assert not rows(ingest)
    assert operands(ingest)["layer", "scaled_input", 0].unknown
