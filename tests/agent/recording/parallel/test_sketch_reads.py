"""What is sketched, at which steps, and by which rank. Everything is real but that there is another rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rangewatch
from rangewatch.core.guard import logger
from rangewatch.core.options import OBSERVED_KINDS
from rangewatch.recording.parallel.placements import Layout
from rangewatch.recording.tensor_names import clean_parameters
from rangewatch.statistics import sketch, sketches, sparse
from rangewatch.statistics.sketches import ALL, NUMEL, WHOLE
from tests.agent.ingest_double import IngestDouble

SUMS = [each.name for each in sketches.SUMS]
Cells = dict[tuple[str, str], dict[int, dict[str, float]]]


def sketched(ingest: IngestDouble) -> Cells:
    """(fqn, kind) -> step -> the values of a sketch, where there is one."""
    found: Cells = {}
    for batch in ingest.batches:
        ranges = batch.ranges
        if ranges is None or NUMEL not in ranges.columns:
            continue
        for row, number in enumerate(ranges.tensors.tolist()):
            entry = ingest.catalogues[batch.catalogue][number]
            for column, step in enumerate(ranges.steps.tolist()):
                cell = {each.name: 0.0 for each in ALL} | {
                    each.name: float(ranges.columns[each.name][row, column])
                    for each in ALL
                    if each.name in ranges.columns
                }
                if cell[NUMEL]:
                    found.setdefault((entry.fqn, entry.kind), {})[step] = cell
    return found


def expected(*readings: Tensor, step: int) -> dict[str, float]:
    total = sum(
        (sketch.measure(each, [None] * each.dim(), each.shape, step, at) for at, each in enumerate(readings)),
        torch.zeros(len(SUMS), dtype=torch.float64),
    )
    return {WHOLE: float(readings[0].numel())} | dict(zip(SUMS, total.tolist(), strict=True))


def attached(ingest: IngestDouble, model: nn.Module, optimizer: Any, **options: Any) -> Any:
    return rangewatch.attach(model, optimizer, url=ingest.url, **({"sketch_every": 2, "ship_interval_s": 0} | options))


@pytest.mark.parametrize("backend", ["auto", "device"])
@pytest.mark.parametrize("kinds", [("output", "grad_output", "grad"), OBSERVED_KINDS])
def test_weights_gradients_and_activations_at_their_steps(
    ingest: IngestDouble, backend: str, kinds: tuple[str, ...]
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    wanted: Cells = {}
    outputs: list[Tensor] = []
    model[0].register_forward_hook(lambda _, __, output: outputs.append(output.detach().clone()))
    with attached(ingest, model, optimizer, start_step=1, backend=backend, kinds=kinds) as handle:
        for step in range(1, 6):
            outputs.clear()
            for _ in range(2):  # microbatches: readings of one step are one after the other
                model(torch.randn(5, 3)).square().sum().backward()
            if step % 2 == 0:
                for name, each in model.named_parameters():
                    assert each.grad is not None
                    wanted.setdefault((name, "weight"), {})[step] = expected(each.detach(), step=step)
                    wanted.setdefault((name, "reduced_grad"), {})[step] = expected(each.grad, step=step)
                wanted.setdefault(("0", "output"), {})[step] = expected(*outputs, step=step)
            optimizer.step()
            optimizer.zero_grad()
        assert not handle.stats()["faults"]
    found = sketched(ingest)
    assert {step for steps in found.values() for step in steps} == {2, 4}
    usual = {"weight", "reduced_grad", "output", "grad_output", "grad"}
    assert {kind for _, kind in found} == usual | ({"input"} & set(kinds))
    for place, steps in wanted.items():
        for step, cell in steps.items():
            assert found[place][step] == pytest.approx(cell, rel=1e-9, abs=1e-12), (place, step)
    for kind in ("weight", "reduced_grad"):
        cells = ingest.tensors()["0.weight", kind, 0]
        assert {2, 4} <= set(cells) and all(cell["call_count"] == 1 for cell in cells.values()), "read once"


def test_without_the_option_nothing_is_different(ingest: IngestDouble) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with attached(ingest, model, optimizer, sketch_every=0):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert sketched(ingest) == {}
    assert all(each.catalogue.statistics == sparse.of_catalogue(histograms=False) for each in ingest.openings)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_no_bit_of_the_training_changes(ingest: IngestDouble, dtype: torch.dtype) -> None:
    after = []
    for every in (0, 1):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(dtype)
        optimizer = torch.optim.AdamW(model.parameters(), 0.1)
        with attached(ingest, model, optimizer, sketch_every=every, run=f"{every}", kinds=OBSERVED_KINDS):
            for step in range(4):
                model(torch.full((5, 3), float(step) if step else float("nan"), dtype=dtype)).sum().backward()
                if step:
                    optimizer.step()
                optimizer.zero_grad()
        after.append([each.detach().view(torch.uint8).clone() for each in model.parameters()])
    assert all(map(torch.equal, *after))


def test_a_step_without_an_update_is_sketched_at_its_end(ingest: IngestDouble) -> None:
    model = nn.Linear(2, 2)
    with attached(ingest, model, None, kinds=("output",), sketch_every=1) as handle:
        model(torch.ones(1, 2)).sum().backward()
        handle.step()
    assert {kind for _, kind in sketched(ingest)} == {"output", "weight", "reduced_grad"}


def test_optimizers_that_step_one_after_the_other(ingest: IngestDouble) -> None:
    """Gradients of the second are there once it steps, and weights are read before the first."""
    model = nn.ModuleDict({"one": nn.Linear(2, 2, bias=False), "two": nn.Linear(2, 2, bias=False)})
    optimizers = [torch.optim.SGD(model[name].parameters(), 0.1) for name in ("one", "two")]
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    with attached(ingest, model, optimizers, sketch_every=1):
        for name, optimizer in zip(("one", "two"), optimizers, strict=True):
            model[name](torch.ones(1, 2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    found = sketched(ingest)
    for name, each in before.items():
        assert found[name, "weight"][0] == pytest.approx(expected(each, step=0))
        assert found[name, "reduced_grad"][0] == pytest.approx(expected(torch.ones(2, 2), step=0))


def test_a_model_is_gone_through_twice_a_step_however_many_optimizers_it_has(
    ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with one a parameter, which steps in the backward pass."""
    looks: list[nn.Module] = []

    def counted(model: nn.Module) -> Any:
        looks.append(model)
        return clean_parameters(model)

    monkeypatch.setattr("rangewatch.recording.parallel.sketch_reads.clean_parameters", counted)
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))
    optimizers = [torch.optim.SGD([each], 0.1) for each in model.parameters()]
    with attached(ingest, model, optimizers, sketch_every=1):
        model(torch.ones(1, 2)).sum().backward()
        for each in optimizers:
            each.step()
    found = sketched(ingest)
    assert len([kind for _, kind in found if kind == "weight"]) == len(optimizers)
    assert len([kind for _, kind in found if kind == "reduced_grad"]) == len(optimizers)
    assert len(looks) == 2


@pytest.mark.parametrize(("rank", "said"), [(0, True), (1, True), (0, False)])
def test_plain_parameters_of_several_ranks(
    ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, rank: int, said: bool
) -> None:
    """One of those that hold the same counts; where nobody says so, none, which is said."""
    monkeypatch.setattr(Layout, "world_size", 2)
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(logger, "propagate", True)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with attached(ingest, model, optimizer, replicated=said, run="r"):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    found = sketched(ingest)
    kinds = {kind for _, kind in found}
    assert kinds == ({"weight", "reduced_grad"} if said and rank == 0 else set()), "of half a batch nothing is said"
    assert ("there are no sketches of 2 parameters" in caplog.text) is not said
    observed = {kind for _, kind, _ in ingest.tensors(rank)}
    assert ("weight" in observed) is said, "every copy has its statistics"
