"""Lightning's Trainer with Rangewatch: python examples/lightning_trainer.py --steps 50"""

import argparse
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from rangewatch.integrations.lightning import RangewatchCallback
from t5_model import SpanCorruption, build_model


class FineTuning(pl.LightningModule):
    """T5 on spans cut out of text."""

    def __init__(self) -> None:
        super().__init__()
        self.t5 = build_model("tiny")

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        loss: Tensor = self.t5(**batch).loss
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: dict[str, Tensor], index: int) -> None:
        self.log("val_loss", self.t5(**batch).loss)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    options = parse_options()
    callback = RangewatchCallback(run="lightning-trainer")
    print(f"dashboard: {callback.url}", flush=True)
    trainer = pl.Trainer(
        max_steps=options.steps,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        precision="bf16-mixed",
        callbacks=[callback],
        enable_checkpointing=False,
        logger=False,
    )
    trainer.fit(FineTuning(), rows(240), rows(16))


def rows(count: int) -> DataLoader[Any]:
    draw = SpanCorruption(batch=1, length=128, seed=count)
    return DataLoader([{name: tensor[0] for name, tensor in draw().items()} for _ in range(count)], batch_size=4)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50)
    return parser.parse_args()


if __name__ == "__main__":
    main()
