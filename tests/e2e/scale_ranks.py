"""One of four gloo ranks that train with torchao's float8, once for each run, each on rows of its own.

    scale_ranks.py URL FOLDER RUN...

In the run `partial` one rank makes its scales of a part of each tensor, from a step on, as ranks did that saw only
their shard (torchtitan#3109). The largest input of the first layer at each step is written to FOLDER/RUN.RANK.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchao.float8 import Float8LinearConfig, convert_to_float8_training, float8_scaling_utils

import rangewatch

STEPS, FROM, BAD_RANK = 24, 10, 2
_own = float8_scaling_utils.tensor_to_scale


def partial(values: torch.Tensor, *args: Any) -> torch.Tensor:
    """The scale for an eighth of what the tensor holds at most."""
    return _own(values / 8, *args)


def train(url: str, folder: Path, run: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
    convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name("tensorwise"))
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), 1e-2)
    largest = []
    with rangewatch.attach(wrapped, optimizer, url=url, run=run, quiet=True, watcher=False, collect=(), scales_every=1):
        for step in range(STEPS):
            is_bad = run == "partial" and step >= FROM and dist.get_rank() == BAD_RANK
            float8_scaling_utils.tensor_to_scale = partial if is_bad else _own
            torch.manual_seed(100 * dist.get_rank() + step)
            rows = torch.randn(16, 32)
            largest.append(float(rows.abs().amax()))
            wrapped(rows).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    (folder / f"{run}.{dist.get_rank()}.json").write_text(json.dumps(largest))


def main() -> None:
    url, folder, *runs = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for run in runs:
        train(url, Path(folder), run)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
