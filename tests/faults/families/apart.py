"""Two ranks that are wrapped over a mesh or a process group of one rank each, where nothing is reduced between them:
by mistake, or since each trains a model of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.faults.fault import Job
from tests.faults.models import CLASSES, FEATURES, Convolution, images, rows


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, CLASSES))


def by_fsdp2(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Over the last dimension, which has one rank."""
    name = (mesh.mesh_dim_names or ("",))[-1]
    for each in model.children():
        if any(True for _ in each.parameters()):
            fully_shard(each, mesh=mesh[name])
    return fully_shard(model, mesh=mesh[name])


def own_group() -> Any:
    """All ranks make all groups."""
    return [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]


def by_fsdp1(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return FullyShardedDataParallel(
        model, process_group=own_group(), device_id=torch.device("cpu"), use_orig_params=True
    )


def by_ddp(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return DistributedDataParallel(model, process_group=own_group())


def train(
    job: Job, steps: int = 150, *, axes: tuple[str, str] = ("dp_replicate", "dp_shard"),
    wrap: Callable[[nn.Module, DeviceMesh], nn.Module] = by_fsdp2, pictures: bool = False, own_seed: bool = False,
    own_rate: bool = False, reduces: bool = False, averages: int = 0, **options: Any,
) -> None:  # fmt: skip
    """`own_seed`: the ranks begin unlike. `reduces`: gradients are averaged by hand; `averages`: parameters are, once
    in so many steps."""
    torch.manual_seed(job.seed + (job.rank if own_seed else 0))
    mesh = init_device_mesh("cpu", (job.ranks, 1), mesh_dim_names=axes)
    model = wrap(Convolution() if pictures else net(), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3 * (3.0 if own_rate and job.rank else 1.0))
    data = (images if pictures else rows)(job.seed * 100 + job.rank)
    with job.attach(model, optimizer, **options) as watch:
        for step in range(steps):
            x, y = data(step)
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            if reduces:
                _average(each.grad for each in model.parameters())
            optimizer.step()
            if averages and step % averages == averages - 1:
                _average(each.detach() for each in model.parameters())
            watch.log(loss=loss.item())


def _average(tensors: Iterator[Any], *, to_the_first: bool = False) -> None:
    for each in tensors:
        local: Tensor = getattr(each, "_local_tensor", each)
        dist.reduce(local, 0) if to_the_first else dist.all_reduce(local)
        local /= dist.get_world_size()


def by_hand(
    job: Job, steps: int = 150, *, own_seed: bool = False, own_clip: bool = False, skips_from: int = -1,
    alone_from: int = -1, experts: bool = False, to_the_first: bool = False, own_rate: bool = False,
    averages: int = 0, **options: Any,
) -> None:  # fmt: skip
    """A loop that reduces its gradients itself. `own_clip`: each rank clips what was reduced by the norm that its own
    gradients had. `skips_from`: from that step on each rank trains an expert of its own, and passes over gradients that
    are None. `alone_from`: from that step on nothing is reduced. `experts`: a rank's expert is never reduced.
    `to_the_first`: the first rank alone gets what is reduced. `averages`: parameters are averaged, once in so many
    steps."""
    torch.manual_seed(job.seed + (job.rank if own_seed else 0))
    model = TwoExperts() if skips_from >= 0 or experts else net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3 * (3.0 if own_rate and job.rank else 1.0))
    data = rows(job.seed * 100 + job.rank)
    with job.attach(model, optimizer, **options) as watch:
        for step in range(steps):
            x, y = data(step)
            if isinstance(model, TwoExperts):
                which = (job.rank,) if experts or step >= skips_from else (0, 1)
                loss = sum((F.cross_entropy(model(x, each), y) for each in which), torch.zeros(()))
            else:
                loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            norm = torch.stack([each.grad.norm() for each in model.parameters() if each.grad is not None]).norm()
            if not 0 <= alone_from <= step:
                reduced = (each for name, each in model.named_parameters() if not (experts and "expert" in name))
                _average((each.grad for each in reduced if each.grad is not None), to_the_first=to_the_first)
            if own_clip:
                for each in model.parameters():
                    each.grad *= min(1.0, 0.5 / norm.item())
            optimizer.step()
            if averages and step % averages == averages - 1:
                _average(each.detach() for each in model.parameters())
            watch.log(loss=loss.item())


class TwoExperts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(FEATURES, 32), nn.Linear(32, CLASSES)
        self.experts = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))

    def forward(self, x: Tensor, which: int) -> Tensor:
        h = torch.tanh(self.body(x))
        return self.head(h + torch.tanh(self.experts[which](h)))


def pipelined(job: Job, steps: int = 150, **options: Any) -> None:
    """A stage a rank, whose parameters have the same names; each is wrapped over its one data-parallel rank."""
    torch.manual_seed(job.seed + job.rank)
    mesh = init_device_mesh("cpu", (job.ranks, 1), mesh_dim_names=("pp", "dp"))
    stage = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Tanh())
    by_fsdp2(stage, mesh)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=2e-3)
    data = rows(job.seed)
    with job.attach(stage, optimizer, **options) as watch:
        for step in range(steps):
            x, y = data(step)
            if job.rank == 0:
                out = stage(x)
                dist.send(out.detach(), 1)
                gradient = torch.empty_like(out)
                dist.recv(gradient, 1)
                out.backward(gradient)
            else:
                given = torch.empty_like(x)
                dist.recv(given, 0)
                given.requires_grad_()
                loss = F.cross_entropy(stage(given)[:, :CLASSES], y)
                loss.backward()
                dist.send(given.grad, 0)
                watch.log(loss=loss.item())
            optimizer.step()
            optimizer.zero_grad()


class Routed(nn.Module):
    """Ranks share everything but their experts, and each row goes to its own rank's."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.expert, self.head = nn.Linear(FEATURES, 32), nn.Linear(32, 32), nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.body(x))
        return self.head(h + torch.tanh(self.expert(h)))


def experts(job: Job, steps: int = 150, **options: Any) -> None:
    """Experts are wrapped over the one rank that has them, all else over both."""
    mesh = init_device_mesh("cpu", (job.ranks, 1), mesh_dim_names=("dp", "dp_of_expert"))
    model = Routed()
    fully_shard(model.expert, mesh=mesh["dp_of_expert"])
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    data = rows(job.seed * 100 + job.rank)
    with job.attach(model, optimizer, **options) as watch:
        for step in range(steps):
            x, y = data(step)
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.log(loss=loss.item())


def roles(job: Job, steps: int = 150, **options: Any) -> None:
    """A policy on one rank and its critic on the other."""
    mesh = init_device_mesh("cpu", (job.ranks, 1), mesh_dim_names=("dp", "shard"))
    model = net() if job.rank == 0 else nn.Sequential(nn.Linear(FEATURES, 24), nn.Tanh(), nn.Linear(24, 1))
    by_fsdp2(model, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    data = rows(job.seed * 100 + job.rank)
    with job.attach(model, optimizer, **options) as watch:
        for step in range(steps):
            x, y = data(step)
            out = model(x)
            loss = F.cross_entropy(out, y) if job.rank == 0 else F.mse_loss(out[:, 0], y.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.log(loss=loss.item())


def any_of_them(job: Job, steps: int = 150, *, kind: str = "train", **options: Any) -> None:
    {"train": train, "pipelined": pipelined, "experts": experts, "roles": roles, "by hand": by_hand}[kind](
        job, steps, **options
    )


PLAIN: dict[str, Any] = {"kind": "by hand", "collect": ("collectives",)}

HEALTHY: dict[str, dict[str, Any]] = {
    "an ensemble": {"axes": ("member", "dp"), "own_seed": True},
    "an ensemble along an axis called replicate": {"own_seed": True},
    "a sweep of rates": {"axes": ("trial", "dp"), "own_rate": True},
    "a sweep in wrappers of its own": {"wrap": by_ddp, "own_rate": True, "axes": ("trial", "dp")},
    "gradients are averaged by hand": {"reduces": True},
    "parameters are averaged every ten steps": {"averages": 10},
    "stages of a pipeline": {"kind": "pipelined"},
    "experts of each rank": {"kind": "experts"},
    "a policy and its critic": {"kind": "roles"},
    "a loop that reduces by hand": {"kind": "by hand"},
    "a loop that reduces by hand and then trains alone": {"kind": "by hand", "alone_from": 60},
    "local steps of plain models, averaged every forty": {"alone_from": 0, "averages": 40} | PLAIN,
    "an ensemble of plain models": {"alone_from": 0, "own_seed": True} | PLAIN,
    "a sweep of plain models that begin alike": {"alone_from": 0, "own_rate": True} | PLAIN,
    "experts of each rank and a body that is reduced by hand": {"kind": "by hand", "experts": True},
}
