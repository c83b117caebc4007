"""One of two gloo ranks that train one small model in several layouts, once for each run; or the one process of "one".

    layout_ranks.py URL RUN...

RUN is "LAYOUT PLACE STEP SEED": LAYOUT is fsdp2, tp2, pp2 or one; from STEP on the output of the module PLACE is 1 %
too large, "none" for no module; SEED is that of the data.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import rangewatch

BLOCKS, STEPS, BATCH, WIDTH = 4, 10, 8, 16
KINDS = ("output", "grad_output", "grad", "weight")


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


def plant(model: nn.Module, place: str, first: int, step: list[int]) -> None:
    module = dict(model.named_modules()).get(place)
    if module is not None:
        module.register_forward_hook(lambda _, __, output: output * 1.01 if step[0] >= first else output)


def train(url: str, run: str) -> None:
    layout, place, first, seed = run.split()
    torch.manual_seed(1)
    model, step = laid_out(Net(), layout), [0]
    plant(model, place, int(first), step)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    updated = take_step(model, layout)
    handle = rangewatch.attach(
        model, optimizer, url=url, run=run, kinds=KINDS, weight_every=1, full_every=1, collect=()
    )
    with handle:
        for step[0] in range(STEPS):
            generator = torch.Generator().manual_seed(1000 * int(seed) + step[0])
            updated(torch.randn(BATCH, WIDTH, generator=generator), torch.randn(BATCH, 2, generator=generator))
            optimizer.step()
            optimizer.zero_grad()
    assert not handle.stats().get("faults")


def take_step(model: nn.Module, layout: str) -> Any:
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


def run_each(train: Callable[[str, str], None], url: str, *runs: str) -> None:
    """Train each of the runs, on all ranks of the group but where they are of one process."""
    torch.set_num_threads(1)
    if not runs[0].startswith("one"):
        dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=5))
    for run in runs:
        train(url, run)
    if dist.is_initialized():
        dist.barrier()  # the first rank holds the store


if __name__ == "__main__":
    run_each(train, *sys.argv[1:])
