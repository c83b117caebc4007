"""A DeepSpeed engine with Rangewatch: python examples/deepspeed_loop.py --steps 50, or deepspeed examples/THIS_FILE"""

import argparse
import os

import deepspeed
import torch

from rangewatch.integrations.deepspeed import attach
from t5_model import SpanCorruption, build_model

ACCUMULATION = 2
CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": ACCUMULATION,
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
}


def main() -> None:
    options = parse_options()
    model = build_model("tiny")
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    draw = SpanCorruption(batch=4, length=128, seed=engine.global_rank)

    with attach(engine, run="deepspeed-loop") as handle:
        print(f"dashboard: {handle.url}", flush=True)
        for number in range(options.steps * ACCUMULATION):
            batch = {name: tensor.to(engine.device) for name, tensor in draw().items()}
            loss = engine(**batch).loss
            engine.backward(loss)
            if engine.is_gradient_accumulation_boundary():
                handle.log(loss=loss)
            engine.step()
            if number % 20 == 0:
                print(f"microbatch {number}  loss {loss.item():.3f}", flush=True)
    torch.distributed.destroy_process_group()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--local_rank", type=int, default=0, help="from DeepSpeed's launcher")
    return parser.parse_args()


if __name__ == "__main__":
    # Without a launcher, one rank.
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in alone.items():
        os.environ.setdefault(name, value)
    main()
