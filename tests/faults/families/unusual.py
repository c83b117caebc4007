"""Healthy trainings whose statistics look odd: most gradients 0, a rate that restarts, a dropout of 0.9, weights that
are swapped for an evaluation.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.faults.fault import Job, Plant
from tests.faults.models import CLASSES, WORDS, images, tokens


def train(
    job: Job, steps: int = 400, plant: Plant | None = None, *, script: str, **options: Any
) -> None:  # fmt: skip
    """`script`: one of `SCRIPTS`."""
    SCRIPTS[script](job, plant or Plant(), steps, **options)


def sparse_rewards(job: Job, plant: Plant, steps: int, **options: Any) -> None:
    """REINFORCE: the reward is 0 in most episodes, and then so is every gradient."""
    policy = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    with job.attach(policy, optimizer, **options) as watch:
        for step in plant.steps(steps):
            chosen = torch.distributions.Categorical(logits=policy(torch.randn(8, 6)))
            action = chosen.sample()
            reward = float(step % 7 == 0) * (action == 2).float()
            loss = plant.loss(-(chosen.log_prob(action) * reward).mean())
            optimizer.zero_grad()
            loss.backward()
            plant.gradients(policy)
            optimizer.step()
            watch.log(loss=loss.item(), reward=reward.mean().item())


class Words(nn.Module):
    """Embeddings whose rows are touched seldom, tied to the head; nearly everything is dropped out."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(40 * WORDS, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 40 * WORDS, bias=False)
        self.head.weight = self.embed.weight
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.dropout(torch.relu(self.mix(self.embed(x)))))


def lengths_that_grow(job: Job, plant: Plant, steps: int, **options: Any) -> None:
    """A curriculum: the sequences are ten times as long in the end."""
    model, data = Words(dropout=0.9), tokens(job.seed, 8)
    nn.init.normal_(model.embed.weight, std=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    with job.attach(model, optimizer, **options) as watch:
        for step in plant.steps(steps):
            x, _ = data(step)
            x = x.repeat(1, 10)[:, : 4 + 60 * step // steps]
            loss = F.cross_entropy(model(x).flatten(0, 1), x.roll(-1, 1).flatten())
            optimizer.zero_grad()
            plant.loss(loss).backward()
            plant.gradients(model)
            optimizer.step()
            watch.log(loss=loss.item())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.fc = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.bn(self.conv(x))).mean((2, 3)))


def warm_restarts(job: Job, plant: Plant, steps: int, **options: Any) -> None:
    """The rate jumps up by 1,000 times at each, in float16 with a scale that grows."""
    model, data = Net(), images(job.seed, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=40, T_mult=2, eta_min=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=40)
    with job.attach(model, optimizer, scaler, **options) as watch:
        for step in plant.steps(steps):
            x, y = plant.batch(data(step))
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            scaler.scale(plant.loss(loss)).backward()
            plant.gradients(model)
            scaler.step(optimizer)
            scaler.update()
            watch.log(loss=loss.item(), lr=schedule.get_last_lr()[0])
            schedule.step()


def average_swapped_in(job: Job, plant: Plant, steps: int, **options: Any) -> None:
    """Micro-batches of unlike sizes; for an evaluation the average's weights take the place of the model's."""
    model, data = Net(), images(job.seed, 16)
    average = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with job.attach(model, optimizer, **options) as watch:
        for step in plant.steps(steps):
            x, y = plant.batch(data(step))
            parts = [slice(0, 9), slice(9, 14), slice(14, 16)][: 1 + step % 3]
            optimizer.zero_grad()
            total = 0.0
            for part in parts:
                loss = F.cross_entropy(model(x[part]), y[part]) / len(parts)
                plant.loss(loss).backward()
                total += loss.item()
            plant.gradients(model)
            optimizer.step()
            with torch.no_grad():
                for mine, its in zip(average.parameters(), model.parameters(), strict=True):
                    mine.lerp_(its, 0.05)
            watch.log(loss=total)
            if step % 50 == 49:
                own = copy.deepcopy(model.state_dict())
                model.load_state_dict(average.state_dict())
                model.eval()
                with torch.no_grad():
                    watch.log(val_loss=F.cross_entropy(model(x), y).item())
                model.train()
                model.load_state_dict(own)


def critic_five_times(job: Job, plant: Plant, steps: int, **options: Any) -> None:
    """A critic with clipped weights that steps five times for each step of its generator."""
    gan = nn.ModuleDict({
        "critic": nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)),
        "generator": nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)),
    })  # fmt: skip
    of_critic = torch.optim.RMSprop(gan["critic"].parameters(), lr=5e-4)
    of_generator = torch.optim.RMSprop(gan["generator"].parameters(), lr=5e-4)
    with job.attach(gan, [of_critic, of_generator], **options) as watch:
        for step in plant.steps(steps):
            for _ in range(5):
                real = torch.randn(32, 2) * 0.3 + 1
                loss = gan["critic"](gan["generator"](torch.randn(32, 4)).detach()).mean() - gan["critic"](real).mean()
                of_critic.zero_grad()
                loss.backward()
                of_critic.step()
                with torch.no_grad():
                    for each in gan["critic"].parameters():
                        each.clamp_(-0.1, 0.1)
            of_generator.zero_grad()
            plant.loss(-gan["critic"](gan["generator"](torch.randn(32, 4))).mean()).backward()
            plant.gradients(gan)
            of_generator.step()
            watch.log(critic_loss=loss.item(), step=step)


def stages_of_one_optimizer(job: Job, plant: Plant, steps: int, **options: Any) -> None:
    """Embeddings stay frozen; deeper layers are unfrozen in stages, and join the optimizer as new groups."""
    model, data = Words(dropout=0.0), tokens(job.seed, 8)
    model.head = nn.Linear(16, WORDS)
    model.embed.requires_grad_(False)
    model.mix.requires_grad_(False)
    optimizer = torch.optim.Adam(model.head.parameters(), lr=3e-3)
    with job.attach(model, optimizer, **options) as watch:
        for step in plant.steps(steps):
            if step == steps // 2:
                model.mix.requires_grad_(True)
                optimizer.add_param_group({"params": list(model.mix.parameters()), "lr": 1e-4})
            x, _ = data(step)
            loss = F.cross_entropy(model(x).flatten(0, 1), x.roll(-1, 1).flatten())
            optimizer.zero_grad()
            plant.loss(loss).backward()
            plant.gradients(model)
            optimizer.step()
            watch.log(loss=loss.item())


SCRIPTS: dict[str, Any] = {
    "sparse rewards": sparse_rewards,
    "tied embeddings, dropout of 0.9, lengths that grow": lengths_that_grow,
    "warm restarts, fp16 whose scale grows": warm_restarts,
    "unlike micro-batches, average swapped in": average_swapped_in,
    "critic that steps five times, weights clipped": critic_five_times,
    "unfrozen in stages, new parameter groups": stages_of_one_optimizer,
}

HEALTHY: dict[str, dict[str, Any]] = {name: {"script": name} for name in SCRIPTS}
