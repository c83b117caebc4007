"""One rank of the demo's training watched by nothing but forward hooks and `torch.isfinite`, to be run as a process.

    python plain_training.py OUT.json STEPS LR_FACTOR

No part of Rangewatch looks at a tensor here. Writes `{"first_bad": [step, module] or null, "loss_scales": [...]}`;
modules are looked at in the order of their calls and `loss_scales` has one value a step.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from rangewatch.commands.demo.train import StepReport, TrainOptions, train


class FirstBad:
    """Remembers the first module whose output held a NaN or an Inf."""

    def __init__(self) -> None:
        self.loss_scales: list[float] = []
        self.found: tuple[int, str] | None = None

    def hook_into(self, model: nn.Module) -> None:
        for name, module in model.named_modules():
            if name:
                module.register_forward_hook(lambda _, inputs, output, name=name: self.look(name, output))

    def look(self, name: str, output: Tensor) -> None:
        if self.found is None and not bool(torch.isfinite(output).all()):
            self.found = (len(self.loss_scales), name)

    def note(self, report: StepReport) -> None:
        self.loss_scales.append(report.loss_scale)


def main(out: str, steps: str, lr_factor: str) -> None:
    first_bad = FirstBad()
    options = TrainOptions(steps=int(steps), fresh_lr_factor=float(lr_factor), watch=False)
    train(options, on_ready=first_bad.hook_into, on_step=first_bad.note)
    found = {"first_bad": first_bad.found, "loss_scales": first_bad.loss_scales}
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
