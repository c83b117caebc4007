"""A language model trained with Transformers' Trainer, as somebody writes it who knows no Rangewatch."""

import hashlib
import tempfile

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

STEPS = 6


def main() -> None:
    set_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2
    )
    texts = torch.randint(64, (64, 16))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=STEPS,
            per_device_train_batch_size=4,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=LlamaForCausalLM(config),
            args=arguments,
            train_dataset=[{"input_ids": text, "labels": text} for text in texts],
        )
        trainer.train()
    for row in trainer.state.log_history:
        if "loss" in row:
            print(f"step {row['step']} loss {float(row['loss']).hex()}")
    print("weights", fingerprint(trainer.model))


def fingerprint(model: nn.Module) -> str:
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


if __name__ == "__main__":
    main()
