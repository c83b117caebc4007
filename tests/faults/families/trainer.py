"""Transformers' Trainer on a BERT and a GPT-2 of two layers."""

from __future__ import annotations

import logging
import tempfile
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from tests.faults.fault import USUAL, Job, Plant
from tests.faults.models import tokens

WORDS = 24


class Texts(Dataset):  # type: ignore[type-arg]
    """Chains of words of several lengths; their class is whether the first word is low."""

    def __init__(self, seed: int, size: int = 512) -> None:
        chance = torch.Generator().manual_seed(seed + 5)
        made = [tokens(seed + 31 * n, 1)(0)[0][0] for n in range(16)]
        lengths = torch.randint(4, 12, (size,), generator=chance).tolist()
        self.items = [made[n % 16].roll(n // 16)[:length] + 1 for n, length in enumerate(lengths)]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, n: int) -> dict[str, Any]:
        return {"input_ids": self.items[n], "labels": int(self.items[n][0] < 9)}


def collate(items: list[dict[str, Any]]) -> dict[str, Tensor]:
    ids = nn.utils.rnn.pad_sequence([item["input_ids"] for item in items], batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor([i["labels"] for i in items])}


def collate_causal(items: list[dict[str, Any]]) -> dict[str, Tensor]:
    batch = collate(items)
    return batch | {"labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}


def make_model(kind: str) -> nn.Module:
    import transformers

    if kind == "bert":
        config = transformers.BertConfig(
            vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
            max_position_embeddings=16, num_labels=2,
        )  # fmt: skip
        return transformers.BertForSequenceClassification(config)
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def train(
    job: Job, steps: int = 400, plant: Plant | None = None, *, model: str = "bert", lr: float = 1e-3,
    bf16: bool = False, label_smoothing: float = 0.0, schedule: str = "linear", evaluated: bool = False,
    max_grad_norm: float = 1.0, accumulate: int = 1, make: Any = None, **options: Any,
) -> None:  # fmt: skip
    import transformers

    from rangewatch.integrations.transformers import RangewatchCallback

    plant = plant or Plant()

    class Planted(transformers.TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **more: Any) -> None:
            plant.step = state.global_step
            plant.weights(model)

    class Trainer(transformers.Trainer):
        def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **more: Any) -> Any:
            found = super().compute_loss(model, plant.batch(inputs) if model.training else inputs, *args, **more)
            return plant.loss(found) if model.training else found

    made = make_model(model) if make is None else make()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        args = transformers.TrainingArguments(
            folder, max_steps=steps, per_device_train_batch_size=8, learning_rate=lr, lr_scheduler_type=schedule,
            warmup_steps=20, logging_steps=1, report_to=[], disable_tqdm=True, use_cpu=True, save_strategy="no",
            eval_strategy="steps" if evaluated else "no", eval_steps=50, max_grad_norm=max_grad_norm, bf16=bf16,
            label_smoothing_factor=label_smoothing, seed=job.seed, gradient_accumulation_steps=accumulate,
            dataloader_pin_memory=False,
        )  # fmt: skip
        watch = RangewatchCallback(url=job.url, run=job.run, **USUAL | options)
        trainer = Trainer(
            made, args, train_dataset=Texts(job.seed), eval_dataset=Texts(job.seed + 1, 64),
            data_collator=collate if model == "bert" else collate_causal, callbacks=[Planted(), watch],
        )  # fmt: skip
        trainer.remove_callback(transformers.PrinterCallback)
        with watch:
            trainer.train()


HEALTHY: dict[str, dict[str, Any]] = {
    "BERT, padding that changes, evaluated": {"evaluated": True},
    "GPT-2, cosine, label smoothing": {"model": "gpt2", "schedule": "cosine", "label_smoothing": 0.1},
    "BERT in bf16, accumulated": {"bf16": True, "accumulate": 2},
}
