"""A loss that jumps or does not fall, and a loop that waits for its data."""

from __future__ import annotations

import time

import torch
from torch.utils.data import DataLoader, Dataset

from tests.faults.fault import Job, fault
from tests.faults.models import MLP, cross_entropy, rows


@fault("loss_spike", words=("jumped",))
def loss_jumps_and_stays_up(job: Job) -> None:
    """The labels of another data set from some step on."""
    data = rows(job.seed, 64)

    def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = data(step)
        return x, (y + 1) % 4 if step >= 212 else y

    model = MLP()
    job.train(model, batch, cross_entropy, 220, optimizer=torch.optim.AdamW(model.parameters(), 1e-2))


@fault("loss_plateau", words=("has not fallen",))
def loss_does_not_fall(job: Job) -> None:
    """Labels that have nothing to do with the inputs."""
    data = rows(job.seed)
    chance = torch.Generator().manual_seed(job.seed)
    job.train(
        MLP(), lambda step: (data(step)[0], torch.randint(4, (16,), generator=chance)), cross_entropy, 1_300,
        kinds=("grad",),
    )  # fmt: skip


class Slow(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, place: int) -> torch.Tensor:
        time.sleep(0.005)
        return torch.full((8,), (place % 7) / 7.0)


@fault("data_bound", words=("waiting for data",), soak=True)
def loop_that_waits_for_its_data(job: Job) -> None:
    batches = iter(DataLoader(Slow(), batch_size=8))
    job.train(
        MLP(), lambda step: (next(batches), torch.zeros(8, dtype=torch.int64)), cross_entropy, 100,
        collect=("collectives",),
    )  # fmt: skip


ALL = (loss_jumps_and_stays_up, loss_does_not_fall, loop_that_waits_for_its_data)
