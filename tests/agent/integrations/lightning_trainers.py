"""Modules for real Lightning trainers, of both names that Lightning has; importing them takes five seconds."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import lightning.pytorch
import pytorch_lightning
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from rangewatch.integrations.lightning import RangewatchCallback

__all__ = ["MixedPrecision", "RangewatchCallback", "pytorch_lightning"]

ROWS, BATCH, ACCUMULATION = 24, 2, 2


class Tiny(lightning.pytorch.LightningModule):
    """Dropout, so that a random number drawn by anybody else would show in the losses."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
        self.losses: list[float] = []
        self.fails_at: int | None = None

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        if self.global_step == self.fails_at:
            raise ArithmeticError("the data is bad")
        loss = (self.net(batch[0]) - 20).pow(2).mean()
        self.losses.append(float(loss.detach()))
        self.log("loss", loss, on_step=True, on_epoch=True)
        if self.global_step == 1:
            self.log("rare", 7.0)
        return loss

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        self.log("val_loss", self.net(batch[0]).pow(2).mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.001)


class Old(pytorch_lightning.LightningModule):
    """For a trainer of `pytorch_lightning`, which takes its own modules only."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 1)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        loss: Tensor = self.net(batch[0]).pow(2).mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.001)


class Silent(Tiny):
    """Logs nothing: torch 2.13 cannot compile `self.log` of Lightning 2.6."""

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        return (self.net(batch[0]) - 20).pow(2).mean()


class TwoOptimizers(Tiny):
    """Manual optimization: each batch steps both."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: list[Tensor], index: int) -> None:
        for optimizer in self.optimizers():
            loss = (self.net(batch[0]) - 20).pow(2).mean()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(layer.parameters(), lr=0.001) for layer in (self.net[0], self.net[3])]


class OwnOptimizer(Tiny):
    """Manual optimization with an optimizer that Lightning knows nothing of; `configured` is what it is told of."""

    def __init__(self, configured: Any) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.automatic_optimization, self.configured = False, configured
        self.own = torch.optim.SGD(self.net.parameters(), lr=0.001)

    def training_step(self, batch: list[Tensor], index: int) -> None:
        self.own.zero_grad()
        loss = super().training_step(batch, index)
        self.manual_backward(loss)
        self.own.step()
        for optimizer in self.trainer.optimizers:
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return self.configured


def elsewhere() -> torch.optim.Optimizer:
    """One of parameters that are not the module's."""
    return torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.001)


class AndAnother(TwoOptimizers):
    """The second optimizer has none of the module's parameters; Lightning counts its steps all the same."""

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(self.net.parameters(), lr=0.001), elsewhere()]


def rows() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.sin(torch.arange(ROWS * 4.0)).view(ROWS, 4)), batch_size=BATCH)


def trainer(callbacks: list[Any], library: ModuleType = lightning.pytorch, **arguments: Any) -> Any:
    defaults = {
        "max_epochs": 2, "accumulate_grad_batches": ACCUMULATION, "accelerator": "cpu", "logger": False,
        "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
    }  # fmt: skip
    return library.Trainer(callbacks=callbacks, **{**defaults, **arguments})


def fit(callbacks: list[Any], module: Any = None, ckpt_path: Path | None = None, **arguments: Any) -> Any:
    torch.manual_seed(0)
    trained = trainer(callbacks, **arguments)
    trained.fit(Tiny() if module is None else module, rows(), rows(), ckpt_path=ckpt_path)
    return trained
