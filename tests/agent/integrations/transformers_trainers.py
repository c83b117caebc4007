"""A model for real Transformers trainers; importing them takes five seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments

from rangewatch.integrations.transformers import RangewatchCallback

__all__ = ["RangewatchCallback"]

ROWS, BATCH, ACCUMULATION = 24, 2, 2


class TinyConfig(PretrainedConfig):
    model_type = "rangewatch-tiny"


class Tiny(PreTrainedModel):
    """Two layers and a dropout, so that a random number drawn by anybody else would show in the losses."""

    config_class = TinyConfig
    fails_at: int | None = None

    def __init__(self, config: TinyConfig) -> None:
        super().__init__(config)
        self.first, self.drop, self.second = nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1)
        self.calls = 0
        self.post_init()

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.calls += self.training
        if self.calls == self.fails_at:
            raise ArithmeticError("the data is bad")
        prediction = self.second(self.drop(self.first(x).relu()))
        return {"loss": (prediction - labels).pow(2).mean(), "logits": prediction}


class Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        x = torch.sin(torch.arange(4) + index)
        return {"x": x, "labels": x.prod(0, keepdim=True) + 4}


def trainer(folder: Path, callbacks: list[TrainerCallback], **arguments: Any) -> Trainer:
    torch.manual_seed(0)
    defaults = {
        "num_train_epochs": 2, "per_device_train_batch_size": BATCH, "gradient_accumulation_steps": ACCUMULATION,
        "learning_rate": 0.01, "logging_steps": 1, "seed": 1, "use_cpu": True, "dataloader_pin_memory": False,
        "report_to": "none", "save_strategy": "no", "disable_tqdm": True, "output_dir": str(folder),
    }  # fmt: skip
    options = TrainingArguments(**{**defaults, **arguments})
    model = Tiny(TinyConfig())
    return Trainer(model=model, args=options, train_dataset=Rows(), eval_dataset=Rows(), callbacks=callbacks)
