"""One of four gloo ranks that train a small model on a mesh, once for each run.

    mesh_ranks.py URL RUN...

RUN is "LAYOUT TROUBLE SEED": `LAYOUTS` says how the model is laid out, TROUBLE what goes wrong from a step on that the
seed chooses, "none" for nothing.
"""

from __future__ import annotations

import datetime
import random
import sys
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

import rangewatch

RANKS, STEPS, WIDTH, LENGTH = 4, 12, 8, 4
PLANTED = ("0.norm.weight", "1.norm.bias", "1.down.bias")
"""Of these every rank along "tp" holds all."""


class Planted(NamedTuple):
    """Where a seed has its trouble, from `step` on."""

    rank: int
    step: int
    parameter: str


def planted(seed: str) -> Planted:
    """The same on every rank, and in the test."""
    chance = random.Random(seed)
    return Planted(chance.randrange(RANKS), chance.randrange(2, STEPS - 1), chance.choice(PLANTED))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, values: Tensor) -> Tensor:
        return values + self.down(torch.tanh(self.up(self.norm(values))))


def fsdp_tp(model: nn.Sequential) -> nn.Module:
    """FSDP2 x TP with sequence parallelism."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for block in model:
        plan = {
            "norm": SequenceParallel(), "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1)),
        }  # fmt: skip
        parallelize_module(block, mesh["tp"], plan)
        fully_shard(block, mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])


def hsdp(model: nn.Sequential) -> nn.Module:
    """HSDP: two groups of replicas, each sharded over two ranks."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    for block in model:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def ddp_groups(model: nn.Sequential) -> nn.Module:
    """DDP along one axis of a declared mesh, as beside tensor parallelism by hand."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    return DistributedDataParallel(model, process_group=groups[dist.get_rank() % 2])


LAYOUTS: dict[str, Any] = {"fsdp_tp": fsdp_tp, "hsdp": hsdp, "ddp_groups": ddp_groups}
MESHES = {
    "fsdp_tp": {"dp": 2, "tp": 2}, "hsdp": {"dp_replicate": 2, "dp_shard": 2}, "ddp_groups": {"dp": 2, "tp": 2},
}  # fmt: skip
ALIKE = {"fsdp_tp": "tp", "hsdp": "dp_replicate", "ddp_groups": "dp"}
"""The axis along which the planted parameters are replicated."""


class CountCollectives(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.namespace in {"c10d", "_c10d_functional"}
        return func(*args, **(kwargs or {}))


def main(url: str, *runs: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=5))
    for run in runs:
        layout, trouble, seed = run.split()
        counts = [train(url, run, layout, trouble, planted(seed), is_watched=each) for each in (False, True)]
        assert counts[0] == counts[1] > 0, f"{run}: {counts} collectives without and with the agent"
    dist.barrier()  # the first rank holds the store


def train(url: str, run: str, layout: str, trouble: str, where: Planted, *, is_watched: bool) -> int:
    torch.manual_seed(1)
    model = LAYOUTS[layout](nn.Sequential(Block(), Block()))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(trouble, where, step))
    declared = {"mesh": MESHES[layout]} if layout == "ddp_groups" else {}
    kinds = ["grad", "reduced_grad"]
    handle = rangewatch.attach(
        model, optimizer, url=url, run=run, replica_every=1, kinds=kinds, enabled=is_watched, **declared
    )
    with handle, CountCollectives() as collectives:
        for step in range(STEPS):
            model(values(layout, step)).square().mean().backward()
            damage(model, trouble, where, step)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    assert not handle.stats().get("faults")
    return collectives.count


def values(layout: str, step: int) -> Tensor:
    """Each data-parallel rank its own; with sequence parallelism this rank's part of the sequence."""
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(1000 * step + (rank // 2 if layout != "hsdp" else rank))
    whole = torch.randn(3, LENGTH, WIDTH, generator=generator)
    return whole.chunk(2, 1)[rank % 2] if layout == "fsdp_tp" else whole


def rate(trouble: str, where: Planted, step: int) -> float:
    """One rank's learning rate is another from a step on."""
    is_odd = trouble == "rate" and dist.get_rank() == where.rank and step >= where.step
    return 0.5 if is_odd else 1.0


def damage(model: nn.Module, trouble: str, where: Planted, step: int) -> None:
    if step < where.step or (trouble == "flip" and step > where.step) or dist.get_rank() != where.rank:
        return
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    parameter: Any = dict(inner.named_parameters())[where.parameter]
    of = {"flip": parameter, "gradient": parameter.grad}.get(trouble)
    if of is not None:
        local = of.to_local() if isinstance(of, DTensor) else of
        local.detach().view(-1).view(torch.int32)[0] ^= 1 << 10


if __name__ == "__main__":
    main(*sys.argv[1:])
