"""Trains a tiny model with real DeepSpeed engines of each ZeRO stage: deepspeed_worker.py URL

Prints one line of JSON: for each engine the losses of its microbatches without and with Rangewatch attached, and the
engine's own `global_steps`, `skipped_steps` and loss scales.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from torch import nn

from rangewatch.core.guard import Guard
from rangewatch.integrations.deepspeed import attach

ENGINES = {
    "fp32": (0, "float32"), "bf16": (0, "bfloat16"), "fp16": (0, "float16"), "zero1_fp16": (1, "float16"),
    "zero2_bf16": (2, "bfloat16"), "zero3_bf16": (3, "bfloat16"),
}  # fmt: skip
FIRST_STEP, ACCUMULATION, MICROBATCHES = 10, 2, 12


def make_engine(stage: int, dtype: str) -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": ACCUMULATION,
        "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
        "bf16": {"enabled": dtype == "bfloat16"},
        # The first scale is beyond float16, so that some steps are skipped, and hysteresis is 1, so that it falls then.
        "fp16": {"enabled": dtype == "float16", "initial_scale_power": 14, "hysteresis": 1},
    }
    engine, _, _, _ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
    engine.global_steps = FIRST_STEP  # as after load_checkpoint
    return engine


def train(name: str, url: str | None) -> dict[str, Any]:
    stage, dtype = ENGINES[name]
    engine, losses, scales = make_engine(stage, dtype), [], {}
    handle = attach(engine, url=url, run=name) if url else None
    with handle or contextlib.nullcontext():
        for number in range(MICROBATCHES):
            x = torch.sin(torch.arange(8.0) + number).view(2, 4).to(getattr(torch, dtype))
            scales[engine.global_steps] = float(getattr(engine.optimizer, "loss_scale", 1.0))
            loss = (engine(x) - 4).float().pow(2).mean()
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
            if handle is not None and number % ACCUMULATION == 1:
                handle.log(loss=loss)
    hooks = [each for module in engine.module.modules() for each in module._forward_hooks]
    left = {"hooks": len(hooks), "is_watched": hasattr(type(engine.optimizer).step, "__wrapped__")}
    return {"losses": losses, "steps": engine.global_steps, "skips": engine.skipped_steps, "scales": scales, **left}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    Guard.fatal = True
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    get_accelerator().is_fp16_supported = lambda: True  # slow on a CPU, not wrong
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # a minute of compiling; gloo reduces as well
    reported = {name: [train(name, url) for url in (None, sys.argv[1])] for name in ENGINES}
    torch.distributed.destroy_process_group()
    print(json.dumps(reported))
