"""One of two gloo ranks, or the one process, that trains a small model once for each run.

    ranks.py URL RUN...

RUN is "LAYOUT PRECISION MODE HOW FACTOR PLACE STEP SEED": LAYOUT is one, fsdp2, tp2 or pp2; HOW, by FACTOR in the
module PLACE from STEP on, is what is planted (`plants.py`), "none" for nothing; SEED is that of the data and its order.
"""

from __future__ import annotations

import datetime
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

sys.path.insert(0, str(Path(__file__).parents[1]))

import rangewatch
from diff_trainings.plants import Plant

BLOCKS, STEPS, BATCH, WIDTH, RATE = 4, 8, 8, 16, 0.05
KINDS = ("input", "output", "grad_output", "grad", "weight")
"""As docs/diff.md advises. Without inputs 39 of the 40 were right: of a batch that differs in one row a LayerNorm
leaves the largest magnitude and the mean square what they were, so that the module after it was named.
"""

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, values: Tensor) -> Tensor:
        return values + self.down(torch.tanh(self.up(self.norm(values))))


class Net(nn.Module):
    """A stage of a pipeline has the whole's names, and some of its blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleDict({str(place): Block() for place in range(BLOCKS)})
        self.head: nn.Linear | None = nn.Linear(WIDTH, 2)

    def forward(self, values: Tensor) -> Tensor:
        for block in self.blocks.values():
            values = block(values)
        return values if self.head is None else self.head(values)


def laid_out(model: Net, layout: str) -> nn.Module:
    """The same, over two ranks."""
    if layout == "fsdp2":
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
        for block in model.blocks.values():
            fully_shard(block, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    if layout == "tp2":
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        for block in model.blocks.values():
            parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if layout == "pp2":
        is_first = dist.get_rank() == 0
        for place in range(BLOCKS):
            if (place < BLOCKS // 2) != is_first:
                del model.blocks[str(place)]
        if is_first:
            model.head = None
    return model


def train(url: str, run: str) -> None:
    layout, precision, mode, how, factor, place, first, seed = run.split()
    torch.manual_seed(1)
    torch.compiler.reset()
    plant, whole = Plant(how, float(factor), place, int(first)), Net()
    plant.before_layout(whole)
    dtype = DTYPES[precision]
    model = laid_out(whole.to(dtype), layout)
    plant.hook(model)
    optimizer = torch.optim.SGD(plant.groups(model, RATE), RATE)
    handle = rangewatch.attach(
        model, optimizer, url=url, run=run, kinds=KINDS, weight_every=1, full_every=1, collect=()
    )
    updated = take_step(torch.compile(model) if mode == "compiled" else model, layout)
    with handle:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(1000 * int(seed) + step)
            data, target = (torch.randn(BATCH, each, generator=generator) for each in (WIDTH, 2))
            plant.begin(step, optimizer, RATE)
            updated(plant.data(step, data).to(dtype), target.to(dtype))
            optimizer.step()
            optimizer.zero_grad()
    assert not handle.stats().get("faults")


def take_step(model: Any, layout: str) -> Any:
    """A forward and a backward of the whole batch, as the layout has them."""
    loss_of = nn.MSELoss()
    if layout == "pp2":
        stage = PipelineStage(model, dist.get_rank(), 2, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=loss_of)
        is_first = dist.get_rank() == 0
        return lambda data, target: schedule.step(data) if is_first else schedule.step(target=target)

    def whole(data: Tensor, target: Tensor) -> None:
        if layout == "fsdp2":
            data, target = (each.chunk(2)[dist.get_rank()] for each in (data, target))
        loss_of(model(data), target).backward()

    return whole


def main(url: str, *runs: str) -> None:
    torch.set_num_threads(1)
    if not runs[0].startswith("one"):
        dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=5))
    for run in runs:
        train(url, run)
    if dist.is_initialized():
        dist.barrier()  # the first rank holds the store


if __name__ == "__main__":
    main(*sys.argv[1:])
