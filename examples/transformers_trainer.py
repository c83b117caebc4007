"""Transformers' Trainer with Rangewatch: python examples/transformers_trainer.py --steps 50"""

import argparse
import tempfile

import torch
from transformers import Trainer, TrainingArguments

from rangewatch.integrations.transformers import RangewatchCallback
from t5_model import SpanCorruption, build_model


def main() -> None:
    options = parse_options()
    draw = SpanCorruption(batch=1, length=128)
    rows = [{name: tensor[0] for name, tensor in draw().items()} for _ in range(256)]
    callback = RangewatchCallback(run="transformers-trainer")
    print(f"dashboard: {callback.url}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=options.steps,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            learning_rate=1e-3,
            bf16=True,
            use_cpu=not torch.cuda.is_available(),
            logging_steps=1,
            eval_strategy="steps",
            eval_steps=20,
            save_strategy="no",
            report_to="none",
        )
        trainer = Trainer(
            model=build_model("tiny"),
            args=arguments,
            train_dataset=rows[16:],
            eval_dataset=rows[:16],
            callbacks=[callback],
        )
        trainer.train()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50)
    return parser.parse_args()


if __name__ == "__main__":
    main()
