"""One of two gloo ranks: trains sharded models with and without the agent, and keeps what the agent should have seen.

Both trainings must be equal to the bit, and in the number of collectives: the agent issues none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils._python_dispatch import TorchDispatchMode

import rangewatch
from tests.agent.statistics.reference import KeepEverything, Key

SharedState = dict[Key, list[Tensor]]


class CountCollectives(TorchDispatchMode):
    """How many operators of torch.distributed are called."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.namespace in {"c10d", "_c10d_functional"}
        return func(*args, **(kwargs or {}))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.act(self.up(x)))


def fsdp2(model: nn.Sequential, mesh: DeviceMesh) -> nn.Module:
    for block in model:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def fsdp1(model: nn.Sequential, mesh: DeviceMesh, *, use_orig_params: bool) -> nn.Module:
    for index, block in enumerate(model):
        model[index] = FullyShardedDataParallel(block, device_id=torch.device("cpu"), use_orig_params=use_orig_params)
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=use_orig_params)


def tensor_parallel(model: nn.Sequential, mesh: DeviceMesh) -> nn.Module:
    plan = {f"{index}.{name}": style() for index in range(2) for name, style in _STYLES.items()}
    return parallelize_module(model, mesh, plan)


_STYLES: dict[str, Any] = {"up": ColwiseParallel, "down": RowwiseParallel}

SHARDINGS: dict[str, Callable[[nn.Sequential, DeviceMesh], nn.Module]] = {
    "fsdp2": fsdp2,
    "fsdp1": lambda model, mesh: fsdp1(model, mesh, use_orig_params=True),
    "fsdp1_flat": lambda model, mesh: fsdp1(model, mesh, use_orig_params=False),
    "tensor_parallel": tensor_parallel,
}


def train(sharding: str, url: str, kept: list[SharedState] | None) -> list[Tensor]:
    """Losses, final local weights and the number of collectives. With `kept`: attach, and keep the gradients there."""
    torch.manual_seed(1)
    model = SHARDINGS[sharding](nn.Sequential(Block(), Block()), init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    handle = rangewatch.attach(model, optimizer, url=url, run=sharding, full_every=1) if kept is not None else None
    results = []
    with CountCollectives() as collectives:
        for value in inputs(sharding):
            loss = model(value).pow(2).mean()
            loss.backward()
            results.append(loss.detach())
            if kept is not None:
                kept.append(gradients(model))
            optimizer.step()
            optimizer.zero_grad()
    if handle is not None:
        assert handle.stats()["faults"] == {}
        handle.detach()
    return [*results, *(local(p).detach().clone() for p in model.parameters()), torch.tensor(collectives.count)]


def gradients(model: nn.Module) -> SharedState:
    named = model.named_parameters()
    return {(name, "grad", 0): [local(p.grad).clone()] for name, p in named if p.grad is not None}


def inputs(sharding: str) -> list[Tensor]:
    """Each rank its own; under tensor parallelism all the same."""
    generator = torch.Generator().manual_seed(7 if sharding == "tensor_parallel" else 100 + dist.get_rank())
    return [torch.randn(5, 4, generator=generator) for _ in range(3)]


def first_step_unsharded(sharding: str) -> SharedState:
    """What there is to see in the first step of the plain model on this rank's data, and its gradients unreduced."""
    torch.manual_seed(1)
    model = nn.Sequential(Block(), Block())
    reference = KeepEverything(model)
    model(inputs(sharding)[0]).pow(2).mean().backward()
    return dict(reference.kept)


def local(tensor: Any) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def main(url: str, kept_path: str, *shardings: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    kept = {}
    for sharding in shardings:
        steps: list[SharedState] = []
        without, with_agent = train(sharding, url, None), train(sharding, url, steps)
        assert all(torch.equal(a, b) for a, b in zip(without, with_agent, strict=True)), f"{sharding} trained otherwise"
        assert without[-1] > 0, "the collectives were counted"
        kept[sharding] = steps, first_step_unsharded(sharding)
    torch.save(kept, kept_path)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
