"""A loss that jumps or does not fall, and a loop that waits for its data."""

from __future__ import annotations

import signal
import time

import torch
from torch.utils.data import DataLoader, Dataset

from tests.faults.families import nanogpt, sft
from tests.faults.fault import Job, Plant, fault, planted
from tests.faults.models import MLP, WORDS, cross_entropy, rows


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


SPIKE = {
    "against": (r"[Mm]ask", "GradScaler", "tensors of the checkpoint"),
    "also": ("exploding_gradient", "update_ratio", "headroom_trend"),
}


@planted("data", "loss_spike", step=range(250, 253), **SPIKE)
def shuffled_labels_for_ten_steps(job: Job) -> None:
    def batch(step: int, batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        return (batch[0], (batch[1] + 5) % WORDS) if 250 <= step < 262 else batch

    nanogpt.train(job, 300, plant=Plant(batch=batch))


@planted("learning_rate", "loss_spike", "exploding_gradient", "update_ratio", step=range(250, 258), **SPIKE)
def rate_is_300_times_as_high_for_ten_steps(job: Job) -> None:
    nanogpt.train(job, 300, plant=Plant(rate=lambda step, lr: lr * 300 if 250 <= step < 260 else lr))


@planted(
    "learning_rate",
    "attention_logits",
    "loss_spike",
    "saturated_activation",
    least="info",
    place=r"h\.[01].*",
    against=(r"[Mm]ask is", "GradScaler", "tensors of the checkpoint"),
    also=("loss_spike", "exploding_gradient", "headroom_trend"),
)
def attention_logits_of_a_gpt_grow(job: Job) -> None:
    """Its softmax is a function: nothing but the projection before it is a module."""

    def weights(step: int, model: torch.nn.Module) -> None:
        if step > 150:
            with torch.no_grad():
                model.h[0].attn.c_attn.weight[:64] *= 1.03  # type: ignore[index, union-attr]

    nanogpt.train(job, plant=Plant(weights=weights))


@planted("data", "loss_spike", least="info", step=range(200, 204), **SPIKE)
def one_batch_of_noise_in_a_fine_tuning(job: Job) -> None:
    """Eight batches of tokens that mean nothing: the loss is high while they come, and falls again."""

    def batch(step: int, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if 200 <= step < 212:
            noise = torch.randint(WORDS, batch["labels"].shape)
            batch["labels"] = noise.masked_fill(batch["labels"] < 0, -100)
        return batch

    sft.train(job, 300, plant=Plant(batch=batch))


@planted("crash", least="info", against=("died", "out of memory", "learning rate"))
def user_ends_a_training_with_ctrl_c(job: Job) -> None:
    """It was meant: nothing is wrong with the run."""

    def batch(step: int, batch: object) -> object:
        if step == 100:
            signal.raise_signal(signal.SIGINT)
        return batch

    try:
        nanogpt.train(job, 200, plant=Plant(batch=batch))
    except KeyboardInterrupt:
        return


SCRIPTS = (
    shuffled_labels_for_ten_steps, rate_is_300_times_as_high_for_ten_steps, attention_logits_of_a_gpt_grow,
    one_batch_of_noise_in_a_fine_tuning, user_ends_a_training_with_ctrl_c,
)  # fmt: skip
