"""`detect_overflow` inside a forward: eager, compiled, nested, in evaluation, detached."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import rangewatch
from tests.agent.ingest_double import IngestDouble


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x) * 3.0
        rangewatch.detect_overflow(x, "after norm")
        return self.linear(x)


def model() -> nn.Sequential:
    return nn.Sequential(Block(), nn.Sequential(Block()))


@pytest.mark.parametrize("backend", ["auto", "device"])
def test_is_recorded_under_the_module_that_calls(ingest: IngestDouble, backend: str) -> None:
    watched = model()
    with rangewatch.attach(watched, url=ingest.url, backend=backend) as handle:
        for _ in range(2):
            watched(torch.randn(3, 4)).sum().backward()
            handle.step()
    recorded = ingest.tensors()
    for fqn in ("0", "1.0"):
        for kind in ("output", "grad_output"):
            assert [cell["call_count"] for cell in recorded[f"{fqn} after norm", kind, 0].values()] == [1, 1]
        amax = recorded[f"{fqn} after norm", "output", 0][0]["amax"]
        assert amax == pytest.approx(3.0 * recorded[f"{fqn}.norm", "output", 0][0]["amax"], rel=1e-6)
    assert ingest.entry("0 after norm", "output").shape == (3, 4)


@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.slow)])
def test_in_a_compiled_region_it_has_its_own_name_alone(ingest: IngestDouble, backend: str) -> None:
    watched = model()
    plain = torch.compile(watched, backend=backend, fullgraph=True)(torch.ones(3, 4))
    torch._dynamo.reset()
    with rangewatch.attach(watched, url=ingest.url) as handle:
        compiled = torch.compile(watched, backend=backend, fullgraph=True)
        for _ in range(2):
            output = compiled(torch.ones(3, 4))
            assert torch.equal(output, plain)
            output.sum().backward()
            handle.step()
        assert handle.stats()["faults"] == {}
    torch._dynamo.reset()
    for kind in ("output", "grad_output"):
        assert [cell["call_count"] for cell in ingest.tensors()["after norm", kind, 0].values()] == [2, 2]


def test_outside_any_module(ingest: IngestDouble) -> None:
    with rangewatch.attach(watched := model(), url=ingest.url) as handle:
        rangewatch.detect_overflow(torch.tensor([1.0, float("inf")]), "loss")
        handle.step()
        del watched
    assert ingest.tensors()["loss", "output", 0][0]["inf_count"] == 1


def test_evaluation_is_kept_apart(ingest: IngestDouble) -> None:
    watched = model().eval()
    with rangewatch.attach(watched, url=ingest.url) as handle:
        with torch.no_grad():
            watched(torch.randn(3, 4))
        handle.step()
    assert ingest.tensors() == {}


def test_of_two_models_each_has_its_own(ingest: IngestDouble) -> None:
    first, second = model(), Block()
    with rangewatch.attach(first, url=ingest.url, run="first"), rangewatch.attach(second, url=ingest.url, run="b") as b:
        second(torch.randn(3, 4))
        rangewatch.detect_overflow(torch.ones(1), "whose?")
        b.step()
    assert {key[0] for key in ingest.tensors()} == {"norm", "after norm", "linear", ""}


def test_without_an_agent_it_does_nothing() -> None:
    assert Block()(torch.ones(1, 4)).shape == (1, 4)


@pytest.mark.allow_faults
def test_what_is_no_tensor_is_not_watched(ingest: IngestDouble) -> None:
    with rangewatch.attach(model(), url=ingest.url):
        rangewatch.detect_overflow("text", "a text")  # type: ignore[arg-type]
