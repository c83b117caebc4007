"""`attach` for what a real Accelerator has prepared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DynamoBackend, TorchDynamoPlugin
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from rangewatch.integrations.accelerate import attach
from tests.agent.ingest_double import IngestDouble

pytestmark = pytest.mark.filterwarnings("ignore")  # the library's own

ROWS, BATCH, ACCUMULATION = 24, 2, 2
STEPS = ROWS // BATCH // ACCUMULATION


@pytest.fixture(autouse=True)
def one_accelerator_each() -> Iterator[None]:
    """Accelerate keeps what the first Accelerator of a process was told."""
    AcceleratorState._reset_state(True)
    yield
    AcceleratorState._reset_state(True)


def train(url: str | None, *, scaler: Any = None, compiled: bool = False, **options: Any) -> list[float]:
    """One epoch; the losses of all microbatches. `url` None: nothing is attached."""
    torch.manual_seed(0)
    dynamo = TorchDynamoPlugin(backend=DynamoBackend.AOT_EAGER) if compiled else None
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATION, dynamo_plugin=dynamo)
    accelerator.scaler = scaler  # mixed_precision="fp16" refuses a CPU
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
    data = TensorDataset(torch.sin(torch.arange(ROWS * 4.0)).view(ROWS, 4))
    model, optimizer, loader = accelerator.prepare(
        net, torch.optim.SGD(net.parameters(), lr=0.01), DataLoader(data, batch_size=BATCH)
    )
    handle = None if url is None else attach(model, optimizer, url=url, **options)
    losses = []
    for (x,) in loader:
        with accelerator.accumulate(model):
            loss: Tensor = (model(x) - 4).pow(2).mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        if handle is not None and accelerator.sync_gradients:
            handle.log(loss=loss)
    if handle is not None:
        handle.detach()
    return losses


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_step_is_all_the_microbatches_of_accumulate(ingest: IngestDouble, compiled: bool) -> None:
    losses = train(ingest.url, compiled=compiled)
    for fqn, kind in (("0", "output"), ("0", "grad_output"), ("3.weight", "grad")):
        cells = ingest.tensors()[fqn, kind, 0]
        assert sorted(cells) == list(range(STEPS))
        assert {cell["call_count"] for cell in cells.values()} == {ACCUMULATION}
    assert sorted(ingest.series("wall_time_s")) == list(range(STEPS))
    assert list(ingest.series("loss").items()) == list(enumerate(losses[1::ACCUMULATION]))


def test_training_is_the_same_to_the_last_bit(ingest: IngestDouble) -> None:
    away = IngestDouble()
    away.stop()
    assert train(None) == train(ingest.url, full_every=1) == train(away.url)


def test_the_accelerators_scaler_is_found_in_the_optimizer(ingest: IngestDouble) -> None:
    train(ingest.url, scaler=torch.amp.GradScaler("cpu", init_scale=2.0**127), start_step=100)
    scales, found_inf = ingest.series("loss_scale"), ingest.series("found_inf")
    assert sorted(scales) == sorted(ingest.series("wall_time_s")) == list(range(100, 100 + STEPS))
    assert scales[100] == 2.0**127 and found_inf[100] == 1.0 and found_inf[100 + STEPS - 1] == 0.0


def test_twice_is_refused(ingest: IngestDouble) -> None:
    model = nn.Linear(1, 1)
    optimizer = Accelerator(cpu=True).prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    with attach(model, optimizer, url=ingest.url), pytest.raises(ValueError, match="attached already"):
        attach(model, optimizer, url=ingest.url)
