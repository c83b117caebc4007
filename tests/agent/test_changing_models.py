"""Training loops that do more than call one fixed model: data workers, optimizers in the backward, several models."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import rangewatch
from tests.agent.ingest_double import IngestDouble


class Numbers(Dataset[Tensor]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((4,), float(index))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_data_workers_by_fork_while_training(ingest: IngestDouble) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with rangewatch.attach(model, optimizer, url=ingest.url, ship_interval_s=0) as handle:
        for _ in range(2):  # workers are forked anew for each epoch
            for batch in DataLoader(Numbers(), batch_size=4, num_workers=2, multiprocessing_context="fork"):
                model(batch).sum().backward()
                optimizer.step()
        assert handle.is_active and handle.stats()["faults"] == {}
    assert sorted(ingest.tensors()["", "output", 0]) == list(range(6))
    assert len(ingest.openings) == len({opening.catalogue for opening in ingest.openings}), "one rank, one process"
    assert len({opening.info.incarnation for opening in ingest.openings}) == 1


def test_an_optimizer_in_the_backward(ingest: IngestDouble) -> None:
    """Each parameter has its optimizer, which steps and frees the gradient as soon as it has accumulated."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}

    def step(parameter: Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]

    with rangewatch.attach(model, list(optimizers.values()), url=ingest.url) as handle:
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(step)
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
        assert handle.stats()["step"] == 3 and handle.stats()["not_observed"] == {}
    recorded = ingest.tensors()
    for name, _ in model.named_parameters():
        assert sorted(recorded[name, "grad", 0]) == [0, 1, 2]


def test_stages_of_a_pipeline_attached_one_by_one(ingest: IngestDouble) -> None:
    stages = [nn.Linear(4, 4), nn.Linear(4, 1)]
    optimizers = [torch.optim.SGD(stage.parameters(), lr=0.0) for stage in stages]
    handles = [rangewatch.attach(stage, each, url=ingest.url) for stage, each in zip(stages, optimizers, strict=True)]
    for _ in range(3):
        microbatches = [stages[1](stages[0](torch.full((2, 4), float(size)))) for size in (1, 2)]
        for output in microbatches:
            output.sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    runs = [handle.run for handle in handles]
    for handle in handles:
        handle.detach()
    everything = ingest.batches
    assert len(set(runs)) == 2
    for run in runs:
        ingest.batches = [batch for batch in everything if batch.run == run]
        assert [cell["call_count"] for cell in ingest.tensors()["", "output", 0].values()] == [2, 2, 2]
        assert [cell["call_count"] for cell in ingest.tensors()["weight", "grad", 0].values()] == [2, 2, 2]


def test_a_module_removed_after_attach(ingest: IngestDouble) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with rangewatch.attach(model, url=ingest.url) as handle:
        for _ in range(2):
            model(torch.ones(1, 4)).sum().backward()
            handle.step()
            model[1] = nn.Identity()
        assert handle.stats()["faults"] == {}
    recorded = ingest.tensors()
    assert sorted(recorded["1", "output", 0]) == [0] and sorted(recorded["0", "output", 0]) == [0, 1]
