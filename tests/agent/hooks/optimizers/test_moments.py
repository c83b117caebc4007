"""What optimizers keep: `exp_avg`, `exp_avg_sq` and `momentum_buffer`, and how much Adam's eps decides."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import rangewatch
from rangewatch.statistics.moments import beside_eps, bias_correction2
from rangewatch.wire.records import MOMENTS
from tests.agent.ingest_double import IngestDouble
from tests.agent.recording.rows.test_device_ring import NoSynchronisation
from tests.agent.statistics.reference import Key, assert_recorded

ADAM = ("exp_avg", "exp_avg_sq")
OPTIMIZERS: dict[str, Any] = {
    "adam": lambda parameters: torch.optim.Adam(parameters, foreach=False),
    "foreach": lambda parameters: torch.optim.AdamW(parameters, foreach=True),
    "fused": lambda parameters: torch.optim.AdamW(parameters, fused=True),
    "amsgrad": lambda parameters: torch.optim.Adam(parameters, amsgrad=True),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
}


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 4), nn.Linear(4, 1))


def backward(model: nn.Module, scale: float = 1.0) -> None:
    (model(torch.tensor([0, 2, 2])).sum() * scale).backward()


def state_of(model: nn.Module, optimizer: Any) -> dict[Key, list[Tensor]]:
    return {
        (fqn, kind, 0): [optimizer.state[parameter][kind].clone()]
        for fqn, parameter in model.named_parameters()
        for kind in MOMENTS
        if kind in optimizer.state[parameter]
    }


def counts_of(state: dict[str, Any], eps: float = 1e-8, beta2: float = 0.999) -> tuple[int, int, int]:
    """As in torch.optim.adam: denom = (exp_avg_sq.sqrt() / bias_correction2_sqrt).add_(eps), in float64."""
    square = state.get("max_exp_avg_sq", state["exp_avg_sq"]).double()
    root = (square / (1 - beta2 ** float(state["step"]))).sqrt()
    moved = state["exp_avg"].double().abs() > 0.01 * square.sqrt()
    return int(moved.sum()), int((moved & (root < eps)).sum()), int((moved & (square == 0)).sum())


def recorded_counts(cell: dict[str, float]) -> tuple[float, ...]:
    return tuple(cell[name] for name in ("moved_count", "eps_count", "lost_count"))


@pytest.mark.parametrize("backend", ["auto", "device"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_are_read_as_the_optimizer_keeps_them(ingest: IngestDouble, name: str, backend: str) -> None:
    """In full, though the full set is not due; gradients of about eps, so that it decides some elements."""
    model = net()
    optimizer = OPTIMIZERS[name](model.parameters())
    kept: dict[int, dict[Key, list[Tensor]]] = {}
    counts: dict[tuple[int, str], tuple[int, int, int]] = {}
    options: Any = {"kinds": MOMENTS, "moment_every": 2, "full_every": 100, "backend": backend}
    with rangewatch.attach(model, optimizer, url=ingest.url, **options) as handle:
        for step in range(4):
            optimizer.zero_grad()
            backward(model, 1e-8)
            optimizer.step()
            kept[step] = state_of(model, optimizer) if step % 2 == 0 else {}
            if name != "sgd":
                states = ((fqn, optimizer.state[each]) for fqn, each in model.named_parameters())
                counts |= {(step, fqn): counts_of(state) for fqn, state in states}
        assert handle.stats()["faults"] == {} and handle.stats()["not_observed"] == {}
    for step, tensors in kept.items():
        assert_recorded(ingest.tensors(), step, tensors)
        for fqn, kind, _ in tensors:
            cell = ingest.tensors()[fqn, kind, 0][step]
            assert cell["full_numel"] == cell["numel"]
            assert recorded_counts(cell) == (counts[step, fqn] if kind == "exp_avg_sq" else (0, 0, 0)), (step, fqn)
    if name != "sgd":
        assert any(eps > 0 for _, eps, _ in counts.values()), "some are below eps"
        moved, _, _ = counts[0, "0.weight"]
        assert moved == 8, "rows of the embedding that no batch has had are not counted"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_second_moments_that_underflowed(dtype: torch.dtype) -> None:
    gradient = torch.tensor([0.0, 1e-5, 1e-3, 1.0], dtype=dtype)
    exp_avg, exp_avg_sq = 0.1 * gradient, 0.001 * gradient.square()
    moved, below, lost = beside_eps(exp_avg, exp_avg_sq, 1e-8, bias_correction2(0.999, 1)).tolist()
    assert (moved, below, lost) == ((3, 2, 2) if dtype == torch.float16 else (3, 0, 0))


def test_of_large_ones_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    gradient = torch.arange(-500, 501) * 4e-11
    whole = beside_eps(0.1 * gradient, 0.001 * gradient.square(), 1e-8, 0.001)
    monkeypatch.setattr("rangewatch.core.limits.DEVICE_BLOCK_ELEMENTS", 100)
    assert torch.equal(beside_eps(0.1 * gradient, 0.001 * gradient.square(), 1e-8, 0.001), whole)
    assert whole.tolist() == [1000, 498, 0]


def test_nothing_waits_for_a_device() -> None:
    """Where the step is a tensor of the device, as `capturable` and `fused` have it there."""
    correction = 1.0 - 0.999 ** torch.ones(())
    with NoSynchronisation():
        beside_eps(torch.ones(4), torch.ones(4), 1e-8, correction)


def test_not_at_the_default_level(ingest: IngestDouble) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    with rangewatch.attach(model, optimizer, url=ingest.url, moment_every=1):
        backward(model)
        optimizer.step()
    assert {kind for _, kind, _ in ingest.tensors()}.isdisjoint(MOMENTS)


def test_what_has_no_state_is_left_out(ingest: IngestDouble) -> None:
    model = net()
    model[1].requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters())
    with rangewatch.attach(model, optimizer, url=ingest.url, kinds=ADAM, moment_every=1) as handle:
        backward(model)
        optimizer.step()
        assert handle.stats()["faults"] == {}
    assert len(optimizer.state) == 3, "reading has added none"
    assert {fqn for fqn, _, _ in ingest.tensors()} == {"0.weight", "2.weight", "2.bias"}


def test_after_a_skipped_step_the_next_is_read(ingest: IngestDouble) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
    with rangewatch.attach(model, optimizer, scaler=scaler, url=ingest.url, kinds=ADAM, moment_every=3):
        for value in (1e9, 1e-9, 1e-9, 1e-9):
            optimizer.zero_grad()
            scaler.scale(model(torch.full((2, 3), value)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert sorted(ingest.tensors()["weight", "exp_avg", 0]) == [1, 3]


def test_traced_steps(ingest: IngestDouble) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    with rangewatch.attach(model, optimizer, url=ingest.url, trace_batch_nums=[1, 3]):
        for _ in range(5):
            backward(model)
            optimizer.step()
    for kind in ADAM:
        assert sorted(ingest.tensors()["2.weight", kind, 0]) == [1, 3]


class Codes(torch.optim.SGD):
    """Keeps its state in codes, as 8-bit optimizers do."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for each in group["params"]:
                self.state[each]["state1"] = torch.zeros(each.shape, dtype=torch.uint8)


def test_a_quantised_state_is_said_to_be_unread(ingest: IngestDouble) -> None:
    model = nn.Linear(3, 1, bias=False)
    optimizer = Codes(model.parameters(), lr=0.1)
    with rangewatch.attach(model, optimizer, url=ingest.url, kinds=["grad", *ADAM], moment_every=1) as handle:
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        assert handle.stats()["not_observed"] == {"weight": "moments: Codes keeps state1 in uint8, which is not read"}


def test_shards_are_read_locally(ingest: IngestDouble) -> None:
    """FSDP2 keeps them as DTensors, whose own reductions would be collectives."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = fully_shard(nn.Linear(4, 4), mesh=init_device_mesh("cpu", (1,)))
        optimizer = torch.optim.AdamW(model.parameters())
        with rangewatch.attach(model, optimizer, url=ingest.url, kinds=ADAM, moment_every=1) as handle:
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            assert handle.stats()["faults"] == {} and handle.stats()["not_observed"] == {}
            kept = {
                key: [each.to_local() for each in tensors]  # type: ignore[attr-defined]
                for key, tensors in state_of(model, optimizer).items()
            }
        assert_recorded(ingest.tensors(), 0, kept)
        assert ingest.tensors()["weight", "exp_avg_sq", 0][0]["moved_count"] == 16
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_losses_are_equal_to_the_bit(ingest: IngestDouble, name: str) -> None:
    def train(**options: Any) -> list[float]:
        model = net()
        optimizer = OPTIMIZERS[name](model.parameters())
        losses = []
        with rangewatch.attach(model, optimizer, url=ingest.url, **options):
            for _ in range(12):
                optimizer.zero_grad()
                loss = model(torch.tensor([0, 2, 2])).square().sum()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        return losses

    assert train(kinds=MOMENTS, moment_every=1) == train(enabled=False)
