"""Training loops that do more than call one fixed model: data workers, optimizers in the backward, several models."""

from __future__ import annotations

import time

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
        for step in range(2):
            model(torch.ones(1, 4)).sum().backward()
            handle.step()
            if step == 0:
                del model[1]
        assert handle.stats()["faults"] == {}
    recorded = ingest.tensors()
    assert sorted(recorded["1", "output", 0]) == [0] and sorted(recorded["0", "output", 0]) == [0, 1]


def train(model: nn.Module, handle: rangewatch.Handle, steps: int = 1) -> None:
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        handle.step()


def test_modules_added_and_replaced_after_attach(ingest: IngestDouble) -> None:
    """Seen from their first forward on, with all that is in them."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with rangewatch.attach(model, url=ingest.url) as handle:
        train(model, handle)
        model.append(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)))
        model[1] = nn.Identity()
        train(model, handle, 2)
        assert handle.stats()["faults"] == {}
    recorded = ingest.tensors()
    assert sorted(recorded["2.1", "output", 0]) == sorted(recorded["2", "grad_output", 0]) == [1, 2]
    assert sorted(recorded["1", "output", 0]) == [0, 1, 2], "the new module has the old one's name"
    # Which parameters there are is looked up at the end of the step.
    assert sorted(recorded["2.1.weight", "grad", 0]) == [2] and sorted(recorded["1.weight", "grad", 0]) == [0]


class Adapter(nn.Module):
    """Takes a layer's place and holds it, as adapters for fine-tuning do."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.extra = nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.extra(x)


def test_a_module_renamed(ingest: IngestDouble) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with rangewatch.attach(model, url=ingest.url) as handle:
        train(model, handle)
        model[0] = Adapter(model[0])  # type: ignore[arg-type]
        train(model, handle, 2)
        assert handle.stats()["faults"] == {} and handle.stats()["not_observed"] == {}
    recorded = ingest.tensors()
    assert sorted(recorded["0.extra", "output", 0]) == [1, 2]
    assert sorted(recorded["0.base", "output", 0]) == sorted(recorded["0.base.weight", "grad", 0]) == [2]
    assert sorted(recorded["0.weight", "grad", 0]) == [0, 1], "it had that name until the step ended"


def test_an_optimizer_in_the_backward_that_was_there_first(ingest: IngestDouble) -> None:
    """Its hook frees the gradient: ours must come before it."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", None))
    with rangewatch.attach(model, optimizer, url=ingest.url) as handle:
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        assert handle.stats()["not_observed"] == {}
    assert sorted(ingest.tensors()["weight", "grad", 0]) == [0, 1]


def test_modules_of_others_are_left_alone(ingest: IngestDouble) -> None:
    model = nn.Linear(4, 1)
    with rangewatch.attach(model, url=ingest.url) as handle:
        other = nn.Sequential(nn.Linear(4, 4))
        other(torch.ones(1, 4))
        train(model, handle)
    assert {fqn for fqn, _, _ in ingest.tensors()} == {"", "weight", "bias"}
    module = torch.nn.modules.module
    assert not module._global_module_registration_hooks and not module._global_parameter_registration_hooks


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("way", ["replaced", "inserted"])
def test_layers_that_shift_have_their_own_gradients(ingest: IngestDouble, way: str) -> None:
    """Each takes the name of the one behind it; `ModuleList.insert` tells torch's hooks nothing."""
    torch.manual_seed(0)
    model = Stack()
    wanted: dict[tuple[int, str], float] = {}
    with rangewatch.attach(model, url=ingest.url) as handle:
        for step in range(6):
            if step == 1 and way == "replaced":
                model.layers = nn.ModuleList([nn.Linear(4, 4), *model.layers])
            if step == 1 and way == "inserted":
                model.layers.insert(0, nn.Linear(4, 4))
                time.sleep(0.1)  # it is seen at the next look
            model.zero_grad()
            model(torch.randn(2, 4)).square().sum().backward()
            wanted |= {(step, name): float(value.grad.abs().max()) for name, value in model.named_parameters()}  # type: ignore[union-attr]
            handle.step()
        assert handle.stats()["faults"] == {} and handle.stats()["not_observed"] == {}
    for step in range(3, 6):
        for number in range(4):
            name = f"layers.{number}.weight"
            assert ingest.tensors()[name, "grad", 0][step]["amax"] == pytest.approx(wanted[step, name])
            assert ingest.tensors()[f"layers.{number}", "output", 0][step]["call_count"] == 1


def test_what_becomes_trainable_is_read_in_its_first_backward(ingest: IngestDouble) -> None:
    model = nn.Linear(4, 1)
    model.bias.requires_grad_(False)
    with rangewatch.attach(model, url=ingest.url, ship_interval_s=3600) as handle:
        train(model, handle, 2)
        model.bias.requires_grad_(True)
        train(model, handle, 3)
    assert sorted(ingest.tensors()["bias", "grad", 0]) == [2, 3, 4]


def test_weights_of_lazy_modules(ingest: IngestDouble) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(2), nn.Linear(2, 1))
    with rangewatch.attach(model, url=ingest.url, level="frames", weight_every=1) as handle:
        train(model, handle, 2)
        assert handle.stats()["faults"] == {}
    recorded = ingest.tensors()
    assert sorted(recorded["2.weight", "weight", 0]) == sorted(recorded["", "input", 0]) == [0, 1]
    assert sorted(recorded["1.weight", "weight", 0]) == [1]


def test_a_module_of_two_attached_models_is_read_for_the_first(ingest: IngestDouble) -> None:
    shared = nn.Linear(4, 4)
    models = [nn.Sequential(shared, nn.Linear(4, 1)) for _ in range(2)]
    first = rangewatch.attach(models[0], url=ingest.url, run="first")
    second = rangewatch.attach(models[1], url=ingest.url, run="second")
    with pytest.raises(ValueError, match="part of one that is attached"):
        rangewatch.attach(shared, url=ingest.url)
    train(models[1], second)
    second.detach()
    train(models[0], first)
    first.detach()
    assert second.stats() == {} and "0" in ingest.events("not_observed")[0].data
    of_first = [batch for batch in ingest.batches if batch.run == "first" and batch.ranges is not None]
    entries = ingest.catalogues[of_first[-1].catalogue]
    assert any((entry.fqn, entry.kind) == ("0", "output") for entry in entries)
