"""A loop of your own on Accelerate with Rangewatch: python examples/accelerate_loop.py --steps 50"""

import argparse

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from rangewatch.integrations.accelerate import attach
from t5_model import SpanCorruption, build_model

ACCUMULATION = 2


def main() -> None:
    options = parse_options()
    accelerator = Accelerator(gradient_accumulation_steps=ACCUMULATION, mixed_precision="bf16")
    draw = SpanCorruption(batch=1, length=128)
    rows = [{name: tensor[0] for name, tensor in draw().items()} for _ in range(4 * ACCUMULATION * options.steps)]
    model = build_model("tiny")
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=1e-3), DataLoader(rows, batch_size=4)
    )

    with attach(model, optimizer, run="accelerate-loop") as handle:
        print(f"dashboard: {handle.url}", flush=True)
        for number, batch in enumerate(loader):
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    handle.log(loss=loss)
                optimizer.step()
                optimizer.zero_grad()
            if number % 20 == 0:
                accelerator.print(f"microbatch {number}  loss {loss.item():.3f}", flush=True)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50)
    return parser.parse_args()


if __name__ == "__main__":
    main()
