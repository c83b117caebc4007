"""torch.compile over a small ResNet with an activation of its own; `aot_eager` traces as inductor does and needs no
C++ compiler.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.faults.fault import Job, Plant
from tests.faults.models import CLASSES, images


class ScaledNorm(torch.autograd.Function):
    """x / |x|, with a backward by hand. `eps` 0 is the bug that it may have."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        norm = x.norm(dim=1, keepdim=True)
        ctx.save_for_backward(x, norm)
        ctx.eps = eps
        return x / norm.clamp(min=1e-6)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        x, norm = ctx.saved_tensors
        norm = norm + ctx.eps
        return grad / norm - x * (grad * x).sum(1, keepdim=True) / norm**3, None


class BasicBlock(nn.Module):
    def __init__(self, planes: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(planes, planes, 3, padding=1, bias=False) for _ in range(2))
        self.bn1, self.bn2 = nn.BatchNorm2d(planes), nn.BatchNorm2d(planes)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(out)))


class ResNet(nn.Module):
    def __init__(self, plant: Plant, cosine: bool, eps: float) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.layer1, self.layer2 = BasicBlock(8), BasicBlock(8)
        self.fc, self.aux = nn.Linear(8, CLASSES), nn.Linear(8, CLASSES)  # aux is not used any more
        self.cosine, self.eps, self.plant = cosine, eps, plant

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(F.relu(self.bn(self.stem(x)))))
        x = x.mean((2, 3))
        x = self.plant.inside("features", x)
        if self.cosine:
            x = ScaledNorm.apply(x, self.eps) * 4
        return self.fc(x)


def train(
    job: Job, steps: int = 400, plant: Plant | None = None, *, lr: float = 0.05, cosine: bool = False,
    eps: float = 1e-6, dtype: torch.dtype | None = None, compiled: bool = True, noise: float = 0.0, evaluated: str = "",
    **options: Any,
) -> None:  # fmt: skip
    """`noise`: share of labels that are drawn anew. `evaluated`: "eval", or "train mode" as who forgets `eval()`."""
    plant = plant or Plant()
    model = ResNet(plant, cosine, eps)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4, nesterov=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps + 1)
    data, held_out = images(job.seed, 16), images(job.seed + 77, 16)
    with job.attach(model, optimizer, **options) as watch:
        step_fn = torch.compile(model, backend="aot_eager") if compiled else model
        for step in plant.steps(steps):
            plant.weights(model)
            inputs, targets = plant.batch(data(step))
            if noise:
                targets = torch.where(torch.rand(targets.shape) < noise, torch.randint_like(targets, CLASSES), targets)
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                loss = F.cross_entropy(step_fn(inputs), targets)
            loss = plant.loss(loss)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            plant.gradients(model)
            for group in optimizer.param_groups:
                group["lr"] = plant.rate(group["lr"])
            optimizer.step()
            watch.log(loss=loss.item(), lr=scheduler.get_last_lr()[0])
            scheduler.step()
            if evaluated and step % 40 == 39:
                model.train(evaluated == "train mode")
                with torch.no_grad():
                    x, y = plant.held_out(held_out(step))
                    watch.log(val_loss=F.cross_entropy(model(x), y).item())
                model.train()
    torch.compiler.reset()


HEALTHY: dict[str, dict[str, Any]] = {
    "one cycle, evaluated": {"evaluated": "eval"},
    "own autograd function": {"cosine": True},
    "bf16, a tenth of the labels wrong": {"dtype": torch.bfloat16, "noise": 0.1},
    "not compiled": {"compiled": False, "evaluated": "eval"},
}
