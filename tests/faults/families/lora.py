"""LoRA on a frozen model: adapters in the linear layers, and layers that are unfrozen in stages, if asked."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.faults.families.sft import CausalLM, collate, sft_loss
from tests.faults.fault import Job, Plant
from tests.faults.models import tokens


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, r: int = 4, alpha: float = 8.0) -> None:
        super().__init__()
        self.base_layer, self.scaling = base.requires_grad_(False), alpha / r
        self.lora_A = nn.Parameter(torch.empty(r, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + F.linear(F.linear(x, self.lora_A), self.lora_B) * self.scaling


def add_lora(model: nn.Module, targets: tuple[str, ...] = ("q_proj", "v_proj", "down_proj")) -> nn.Module:
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in targets:
                setattr(module, name, LoRALinear(child))
    return model


def clip_each(model: nn.Module, most: float) -> None:
    """Each parameter by its own norm."""
    for p in model.parameters():
        if p.grad is not None:
            p.grad *= most / p.grad.norm() if not p.grad.norm() < most or p.grad.norm() == 0 else 1.0


def train(
    job: Job, steps: int = 400, plant: Plant | None = None, *, lr: float = 1e-2, stages: tuple[int, ...] = (),
    by_hand: bool = False, trained: Any = None, detached: bool = False, dropout: float = 0.0, **options: Any,
) -> None:  # fmt: skip
    """`stages`: steps at which a further layer is unfrozen, with a new optimizer. `trained(model)`: the parameters that
    the optimizer gets. `detached`: the adapters' output is cut off from the graph.
    """
    plant = plant or Plant()
    model = add_lora(CausalLM(plant))
    for name, p in model.named_parameters():
        if name.startswith(("lm_head", "norm")):
            p.requires_grad_(True)
    if detached:
        for module in model.modules():
            if isinstance(module, LoRALinear):
                module.register_forward_hook(
                    lambda m, args, out: m.base_layer(args[0]) + (out - m.base_layer(args[0])).detach()
                )

    def make() -> torch.optim.Optimizer:
        params = trained(model) if trained else [p for p in model.parameters() if p.requires_grad]
        return torch.optim.AdamW(params, lr=lr, weight_decay=0.01)

    optimizer = make()
    data = tokens(job.seed, 6)
    handle = job.attach(model, optimizer, **options)
    try:
        for step in plant.steps(steps):
            if step in stages:
                model.layers[len(stages) - 1 - stages.index(step)].requires_grad_(True)
                optimizer = make()
                handle.detach()
                handle = job.attach(model, optimizer, start_step=step, **options)
            plant.weights(model)
            for group in optimizer.param_groups:
                group["lr"] = plant.rate(lr)
            ids, last = data(step)
            batch = plant.batch(collate(torch.cat([ids, last[:, -1:]], 1), job.seed, step))
            h = model(batch["input_ids"], batch["attention_mask"])
            loss = plant.loss(sft_loss(F.dropout(h, dropout), batch["labels"]))
            loss.backward()
            plant.gradients(model)
            if by_hand:
                clip_each(model, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            handle.log(loss=loss.item())
    finally:
        handle.detach()


HEALTHY: dict[str, dict[str, Any]] = {
    "adapters and the head": {},
    "unfrozen in stages, each with a new optimizer": {"stages": (150, 280), "lr": 3e-3},
}
