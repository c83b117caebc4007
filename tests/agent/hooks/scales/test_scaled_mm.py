"""Direct calls of `torch._scaled_mm`: the scales that arrive are its arguments, and nothing is wrapped unasked."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import rangewatch
from rangewatch.hooks.scales.scaled_mm import BLOCKED
from rangewatch.statistics import scales
from tests.agent.hooks.scales.recorded import operands, rows
from tests.agent.ingest_double import IngestDouble

_OWN = torch._scaled_mm
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def cast(values: Tensor, dtype: torch.dtype, scale: Tensor) -> Tensor:
    largest = torch.finfo(dtype).max
    return (values / scale).clamp(-largest, largest).to(dtype)


class Product(torch.autograd.Function):
    """Input by row, weight by column, the gradient by tensor in E5M2."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Any:
        of_x, of_weight = x.abs().amax(1, keepdim=True) / 448, weight.abs().amax(1, keepdim=True) / 448
        ctx.save_for_backward(x, weight)
        return torch._scaled_mm(
            cast(x, E4M3, of_x), cast(weight, E4M3, of_weight).t(), scale_a=of_x, scale_b=of_weight.t(),
            out_dtype=torch.bfloat16,
        ).float()  # fmt: skip

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        of_grad, of_weight = grad.abs().amax() / 57344, weight.abs().amax() / 448
        of_x = torch._scaled_mm(
            cast(grad, E5M2, of_grad), cast(weight.t().contiguous(), E4M3, of_weight).t(), of_grad, of_weight,
            out_dtype=torch.bfloat16,
        )  # fmt: skip
        return of_x.float(), grad.t() @ x


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 16))

    def forward(self, x: Tensor) -> Tensor:
        return Product.apply(x, self.weight)  # type: ignore[no-any-return]


class Model(nn.Module):
    def __init__(self, *, holds_small: bool = False) -> None:
        super().__init__()
        self.embed, self.layer = nn.Linear(16, 16), Layer()
        if holds_small:
            self.register_buffer("codes", torch.zeros(4, dtype=E4M3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.embed(x))  # type: ignore[no-any-return]


def step(model: nn.Module, x: Tensor) -> float:
    loss = model(x).square().mean()
    loss.backward()
    return loss.item()  # type: ignore[no-any-return]


def test_scales_of_a_direct_call_are_its_arguments(ingest: IngestDouble) -> None:
    torch.manual_seed(0)
    model, x = Model(), torch.randn(16, 16)
    weight, hidden = model.layer.weight.detach(), model.embed(x).detach()
    with rangewatch.attach(model, url=ingest.url, scales="all", quiet=True) as handle:
        step(model, x)
        handle.step()
        assert not handle.stats()["faults"]
    found = rows(ingest)[0]
    of_x = found["layer", "scaled_input", 0]
    row_scales = (hidden.abs().amax(1) / 448).log2()
    assert (of_x["low"], of_x["high"]) == pytest.approx((float(row_scales.min()), float(row_scales.max())), abs=1e-6)
    assert of_x[scales.PEAK] == 1
    assert of_x["amax"] == pytest.approx(float(hidden.abs().amax()), rel=1e-6)
    of_weight = found["layer", "scaled_weight", 0]
    assert of_weight["high"] == pytest.approx(math.log2(float(weight.abs().amax()) / 448), abs=1e-6)
    known = operands(ingest)
    assert known["layer", "scaled_input", 0].granularity == "row"
    gradient = known["layer backward", "scaled_grad_output", 0]
    assert (gradient.format, gradient.granularity) == ("E5M2", "tensor")
    assert known["layer backward", "scaled_grad_output", 1].format == "E4M3"


@pytest.mark.parametrize(("mode", "holds_small"), [("auto", True), ("all", False)])
def test_wrapped_where_asked_for_or_where_the_model_holds_8_bits(
    mode: str, holds_small: bool, ingest: IngestDouble
) -> None:
    with rangewatch.attach(Model(holds_small=holds_small), url=ingest.url, scales=mode, quiet=True):
        assert torch._scaled_mm is not _OWN
    assert torch._scaled_mm is _OWN


def test_not_wrapped_for_a_model_without_8_bits(ingest: IngestDouble) -> None:
    with rangewatch.attach(Model(), url=ingest.url, quiet=True):
        assert torch._scaled_mm is _OWN


def test_the_function_of_torch_nn_functional_is_read(ingest: IngestDouble) -> None:
    if not hasattr(F, "scaled_mm"):
        pytest.skip("this torch has no torch.nn.functional.scaled_mm")
    codes, one = torch.zeros(16, 16).to(E4M3), torch.ones(())
    try:
        F.scaled_mm(codes, codes.t(), one, F.ScalingType.TensorWise, one, F.ScalingType.TensorWise)
    except NotImplementedError as error:
        pytest.skip(f"not on a CPU: {error}")

    class Public(Layer):
        def forward(self, x: Tensor) -> Tensor:
            of_x, of_weight = x.detach().abs().amax() / 448, self.weight.detach().abs().amax() / 448
            with torch.no_grad():
                out = F.scaled_mm(
                    cast(x, E4M3, of_x), cast(self.weight, E4M3, of_weight).t(), of_x, F.ScalingType.TensorWise,
                    of_weight, F.ScalingType.TensorWise, output_dtype=torch.bfloat16,
                )  # fmt: skip
            return out.float() + x @ self.weight.t()

    model = Model()
    model.layer = Public()
    with rangewatch.attach(model, url=ingest.url, scales="all", quiet=True) as handle:
        step(model, torch.randn(16, 16))
        handle.step()
    assert set(rows(ingest)[0]) == {("layer", "scaled_input", 0), ("layer", "scaled_weight", 0)}


def test_products_of_one_forward_have_rows_of_their_own(ingest: IngestDouble) -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor) -> Any:
            ctx.save_for_backward(x, weight)
            one = torch.ones(())
            halves = [
                torch._scaled_mm(x.to(E4M3), half.to(E4M3).t(), one, one, out_dtype=torch.bfloat16)
                for half in weight.chunk(2)
            ]
            return torch.cat(halves, 1).float()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            x, weight = ctx.saved_tensors
            return grad @ weight, grad.t() @ x

    class Gated(Layer):
        def forward(self, x: Tensor) -> Tensor:
            return Twice.apply(x, self.weight)  # type: ignore[no-any-return]

    model = Model()
    model.layer = Gated()
    with rangewatch.attach(model, url=ingest.url, scales="all", quiet=True) as handle:
        for _ in range(2):
            checkpoint(model, torch.randn(16, 16), use_reentrant=False).square().mean().backward()
            handle.step()
    for found in rows(ingest).values():
        assert set(found) == {("layer", kind, at) for kind in ("scaled_input", "scaled_weight") for at in (0, 1)}
        assert {row["call_count"] for row in found.values()} == {1}


def test_nothing_of_ours_is_on_what_the_user_calls_ctx(ingest: IngestDouble) -> None:
    seen: list[Any] = []

    class Watched(Product):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor) -> Any:
            seen.append(ctx)
            return Product.forward(ctx, x, weight)

    class Own(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.buffer = nn.Buffer(torch.zeros(4)) if hasattr(nn, "Buffer") else torch.zeros(4)

        def forward(self, x: Tensor) -> Tensor:
            ctx, one = self.buffer, torch.ones(())
            torch._scaled_mm(torch.ones(16, 16).to(E4M3), torch.ones(16, 16).to(E4M3).t(), one, one)
            return Watched.apply(x, self.weight) + ctx.sum()  # type: ignore[no-any-return]

    model = Model()
    model.layer = Own()
    with rangewatch.attach(model, url=ingest.url, scales="all", quiet=True) as handle:
        step(model, torch.randn(16, 16))
        handle.step()
    assert ("layer", "scaled_input", 0) in operands(ingest)
    for each in (model.layer.buffer, *seen):
        assert not [name for name in vars(each) if "range" in name]


def test_losses_are_bit_equal(ingest: IngestDouble) -> None:
    torch.manual_seed(0)
    model, batches = Model(), [torch.randn(16, 16) for _ in range(3)]
    expected = [step(model, x) for x in batches]
    with rangewatch.attach(model, url=ingest.url, scales="all", quiet=True) as handle:
        found = []
        for x in batches:
            found.append(step(model, x))
            handle.step()
    assert found == expected


def test_scales_in_a_layout_of_the_kernel_are_unknown(ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of MX they come in 128 by 4 pieces, flat."""
    monkeypatch.setattr(torch, "_scaled_mm", lambda a, b, scale_a, scale_b, **kwargs: torch.ones(16, 32))

    class Blocked(Layer):
        def forward(self, x: Tensor) -> Tensor:
            flat = torch.ones(512).to(torch.float8_e8m0fnu)
            out = torch._scaled_mm(x.to(E4M3), self.weight.to(E4M3).t(), flat, flat)
            return out + x @ self.weight.t()

    model = Model()
    model.layer = Blocked()
    with rangewatch.attach(model, url=ingest.url, scales="all", quiet=True) as handle:
        step(model, torch.randn(16, 16))
        handle.step()
        assert handle.stats()["not_observed"]["layer"] == BLOCKED
    assert not rows(ingest)
