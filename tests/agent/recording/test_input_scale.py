"""The size of what a model is given, by a sample."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rangewatch
from rangewatch.recording.input_scale import sampled
from tests.agent.ingest_double import IngestDouble


class Odd(Tensor):
    """Counts what is asked of it, as another may draw random numbers or raise."""

    asked = 0

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.asked += 1
        return super().__torch_function__(function, types, args, kwargs or {})


class Takes(nn.Module):
    """Whatever it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, *values: Any, **named: Any) -> Tensor:
        return self.layer(torch.ones(2, 4)).mean()


def trained(ingest: IngestDouble, arguments: Callable[[int], tuple[Any, ...]], **named: Any) -> list[dict[int, float]]:
    model = Takes()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with rangewatch.attach(model, optimizer, url=ingest.url, run="given", full_every=1000, **named):
        for step in range(6):
            optimizer.zero_grad()
            model(*arguments(step)).backward()
            with torch.no_grad():
                model(torch.full((2, 4), 1e6))  # an evaluation is not counted
            optimizer.step()
    return [ingest.series(name) for name in ("input_rms", "input_rms_1", "input_rms_2")]


def test_of_each_floating_tensor(ingest: IngestDouble) -> None:
    def arguments(step: int) -> tuple[Any, ...]:
        tokens, half = torch.arange(12), torch.full((3, 5), 2.0, dtype=torch.float16)
        return (
            tokens,
            {"values": torch.full((2, 4), float(step), dtype=(torch.float32, torch.float64)[step % 2]), "half": half},
            torch.full((2, 2), math.nan),
        )

    first, second, third = trained(ingest, arguments)
    assert first == pytest.approx({step: float(step) for step in range(6)})  # float32 and float64
    assert set(second.values()) == {2.0} and all(map(math.isnan, third.values()))


@pytest.mark.parametrize(
    "given",
    [
        lambda: (torch.ones(2, 4, requires_grad=True),),
        lambda: (torch.ones(0, 4), torch.ones(3, 3).to_sparse()),
        lambda: (torch.ones(2, 4, device="meta"), "text", None),
        lambda: (torch.ones(2, 4, dtype=torch.complex64), torch.arange(3)),
        lambda: (torch.ones(2, 4).to(torch.float8_e4m3fn),),
        lambda: (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),),
    ],
    ids=["with a gradient", "empty or sparse", "on no device", "not floating", "in 8 bits", "nested"],
)
def test_what_is_not_read(ingest: IngestDouble, given: Callable[[], tuple[Any, ...]]) -> None:
    assert trained(ingest, lambda step: given()) == [{}, {}, {}]


def test_without_gradients_or_on_a_device(ingest: IngestDouble) -> None:
    first, *others = trained(ingest, lambda step: (torch.full((2, 4), 3.0),), backend="device")
    assert first == {0: 3.0, 4: 3.0} and others == [{}, {}]


def test_nothing_is_asked_of_a_subclass(ingest: IngestDouble) -> None:
    given = torch.full((2, 4), 3.0).as_subclass(Odd)
    Odd.asked = 0
    assert set(trained(ingest, lambda step: (given,))[0].values()) == {3.0}
    assert not Odd.asked


@pytest.mark.parametrize("shape", [(5,), (4096,), (64, 65), (7, 3, 33, 31), (3, 100_000)])
def test_a_sample_is_of_all_of_it(shape: tuple[int, ...]) -> None:
    tensor = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape)
    part = sampled(tensor)
    assert part is not None and part.data_ptr() == tensor.data_ptr() and part.numel() <= 4096
    assert part.min() == 0 and part.max() > tensor.max() - 64
    assert part.mean().item() == pytest.approx(tensor.mean().item(), rel=0.02)


def test_other_layouts_are_not_copied() -> None:
    pictures = torch.randn(4, 3, 64, 64).contiguous(memory_format=torch.channels_last)
    part = sampled(pictures)
    assert part is not None and part.data_ptr() == pictures.data_ptr() and part.shape == (64, 64)
    turned = torch.randn(50, 8).t()
    first = sampled(turned)
    assert first is not None and torch.equal(first, turned[0])
    assert sampled(torch.ones(1, 1).expand(2, 1 << 20)) is None
    assert sampled(torch.ones(2)[None].expand(3, 2)) is not None
