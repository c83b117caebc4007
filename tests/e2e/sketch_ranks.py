"""One of two gloo ranks, or the one process of "one", that trains the model of `layout_ranks` with sketches.

    sketch_ranks.py URL RUN...

RUN is "LAYOUT PLANTED STEP". LAYOUT is one, ddp, fsdp2, tp2, tp2-said, which says that plain tensors are replicated, or
tp2-dtensor, whose activations are such; or of four ranks hsdp or fsdp2tp2-said. PLANTED at STEP is "none", "units" (two
hidden units of blocks.1 change places, with their weights: the function stays what it is), or "element" (one element of
blocks.2.up's weight changes places with its neighbour, on the first rank).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

sys.path.insert(0, str(Path(__file__).parents[2]))

import rangewatch
from tests.e2e.layout_ranks import BATCH, WIDTH, Net, laid_out, run_each, take_step

STEPS, RATE = 6, 0.05


def local(parameter: Tensor) -> Any:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


@torch.no_grad()
def swap(values: Any, dim: int) -> None:
    """The first two of a dimension."""
    values.copy_(values.index_select(dim, torch.tensor([1, 0, *range(2, values.shape[dim])])))


def plant(model: Any, planted: str) -> None:
    up, down = model.blocks["1"].up, model.blocks["1"].down
    is_first = not dist.is_initialized() or dist.get_rank() == 0
    if planted == "element" and is_first:
        swap(local(model.blocks["2"].up.weight)[0], 0)
    elif planted == "units":
        is_cut_along = isinstance(down.weight, DTensor) and down.weight.placements[0] == Shard(1)
        if is_first:
            swap(local(up.weight), 0)
            swap(local(up.bias), 0)
        if is_first or not is_cut_along:
            swap(local(down.weight), 1)


def with_dtensors(model: Any) -> nn.Module:
    """Tensor parallelism whose activations say how they lie."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    for block in model.blocks.values():
        plan = {"up": ColwiseParallel(use_local_output=False), "down": RowwiseParallel()}
        parallelize_module(block, mesh, plan)  # type: ignore[arg-type]
    return model


def over_four(model: Any, layout: str) -> nn.Module:
    """On a mesh of two dimensions."""
    names = ("dp_replicate", "dp_shard") if layout == "hsdp" else ("dp", "tp")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
    shards = mesh if layout == "hsdp" else mesh["dp"]
    for block in model.blocks.values():
        if layout != "hsdp":
            parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=shards)
    return fully_shard(model, mesh=shards)


def train(url: str, run: str) -> None:
    layout, planted, first = run.split()
    layout, _, said = layout.partition("-")
    torch.manual_seed(1)
    is_over_four = layout in ("hsdp", "fsdp2tp2")
    if said == "dtensor":
        model: nn.Module = with_dtensors(Net())
    else:
        model = over_four(Net(), layout) if is_over_four else laid_out(Net(), layout)
    called = nn.parallel.DistributedDataParallel(model) if layout == "ddp" else model
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    updated = take_step(called, "one" if is_over_four else "fsdp2" if layout == "ddp" else layout)
    more = {"replicated": "tp"} if said == "said" else {}
    handle = rangewatch.attach(called, optimizer, url=url, run=run, sketch_every=1, full_every=1, collect=(), **more)
    with handle:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(step)
            if planted != "none" and step == int(first):
                plant(model, planted)
            updated(torch.randn(BATCH, WIDTH, generator=generator), torch.randn(BATCH, 2, generator=generator))
            optimizer.step()
            optimizer.zero_grad()
    assert not handle.stats().get("faults"), handle.stats()


if __name__ == "__main__":
    run_each(train, *sys.argv[1:])
