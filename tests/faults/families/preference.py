"""DPO against a frozen reference, and GRPO with groups of samples whose rewards are compared."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.faults.families.sft import CausalLM
from tests.faults.fault import Job, Plant
from tests.faults.models import WORDS, tokens

GROUP, PROMPTS, NEW = 4, 2, 6


def sequence_logps(model: nn.Module, ids: Tensor, start: int) -> Tensor:
    """(n, t) log-probabilities of the tokens from `start` on."""
    logits = model(ids[:, :-1], torch.ones_like(ids[:, :-1]))
    return F.log_softmax(logits.float(), -1).gather(-1, ids[:, 1:, None]).squeeze(-1)[:, start - 1 :]


def dpo_batch(data: Any, seed: int, step: int) -> dict[str, Tensor]:
    chosen = data(step)[0]
    chance = torch.Generator().manual_seed(seed * 31 + step)
    rejected = chosen.clone()
    rejected[:, 4:] = torch.randint(WORDS, rejected[:, 4:].shape, generator=chance)
    return {"chosen": chosen, "rejected": rejected}


def dpo_loss(policy: nn.Module, reference: nn.Module, batch: dict[str, Tensor], beta: float, form: str) -> Tensor:
    ids = torch.cat([batch["chosen"], batch["rejected"]])
    logps = sequence_logps(policy, ids, 4).sum(-1)
    with torch.no_grad():
        ref = sequence_logps(reference, ids, 4).sum(-1)
    chosen, rejected = (logps - ref).chunk(2)
    if form == "log of a sigmoid":
        return -torch.log(torch.sigmoid(beta * (chosen - rejected))).mean()
    if form == "ratio in fp16":
        return -torch.log(1 / (1 + torch.exp((beta * (rejected - chosen)).half()).float())).mean()
    return -F.logsigmoid(beta * (chosen - rejected)).mean()


def train_dpo(
    job: Job, steps: int = 400, plant: Plant | None = None, *, lr: float = 1e-3, beta: float = 0.1,
    form: str = "logsigmoid", **options: Any,
) -> None:  # fmt: skip
    plant = plant or Plant()
    policy = CausalLM(plant)
    reference = copy.deepcopy(policy).eval().requires_grad_(False)
    optimizer = torch.optim.RMSprop(policy.parameters(), lr=lr)
    data = tokens(job.seed, 6)
    with job.attach(policy, optimizer, **options) as watch:
        for step in plant.steps(steps):
            plant.weights(policy)
            for group in optimizer.param_groups:
                group["lr"] = plant.rate(lr * min(1.0, (step + 1) / 50))
            batch = plant.batch(dpo_batch(data, job.seed, step))
            loss = plant.loss(dpo_loss(policy, reference, batch, beta, form))
            optimizer.zero_grad()
            loss.backward()
            plant.gradients(policy)
            nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
            watch.log(loss=loss.item())


@torch.no_grad()
def sample(model: nn.Module, prompts: Tensor, top_k: int) -> Tensor:
    ids = prompts.repeat_interleave(GROUP, 0)
    for _ in range(NEW):
        logits = model(ids, torch.ones_like(ids))[:, -1, :WORDS]
        if top_k:
            least = logits.topk(top_k, dim=-1).values[:, -1:]
            logits = torch.where(logits < least, torch.full_like(logits, float("-inf")), logits)
        probs = torch.nan_to_num(F.softmax(logits, -1), nan=1.0 / WORDS)
        ids = torch.cat([ids, torch.multinomial(probs, 1)], 1)
    return ids


def train_grpo(
    job: Job, steps: int = 400, plant: Plant | None = None, *, lr: float = 5e-4, beta: float = 0.04, eps: float = 1e-4,
    top_k: int = 8, **options: Any,
) -> None:  # fmt: skip
    """`eps`: beside the standard deviation of a group's rewards. A word is paid that is even."""
    plant = plant or Plant()
    policy = CausalLM(plant)
    reference = copy.deepcopy(policy).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=lr)
    data = tokens(job.seed, PROMPTS)
    with job.attach(policy, optimizer, **options) as watch:
        for step in plant.steps(steps):
            plant.weights(policy)
            for group in optimizer.param_groups:
                group["lr"] = plant.rate(lr)
            ids = sample(policy, data(step)[0][:, :4], top_k)
            rewards = plant.batch((ids[:, 4:] % 2 == 0).float().mean(1) + 0.01 * torch.rand(len(ids)))
            grouped = rewards.view(PROMPTS, GROUP)
            advantages = ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + eps)).view(-1, 1)
            logps = sequence_logps(policy, ids, 4)
            with torch.no_grad():
                ref = sequence_logps(reference, ids, 4)
            kl = torch.exp(ref - logps) - (ref - logps) - 1
            ratio = torch.exp(logps - logps.detach())
            loss = plant.loss(-(ratio * advantages - beta * kl).mean())
            optimizer.zero_grad()
            loss.backward()
            plant.gradients(policy)
            nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
            watch.log(loss=loss.item(), reward=rewards.mean().item(), kl=kl.mean().item())


HEALTHY_DPO: dict[str, dict[str, Any]] = {"against a frozen reference": {}}
HEALTHY_GRPO: dict[str, dict[str, Any]] = {"top-k of -inf when sampling": {}}
