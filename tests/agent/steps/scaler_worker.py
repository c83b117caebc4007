"""One of two gloo ranks: FSDP with its sharded scaler. One rank overflows, both skip, and the agent adds no collective.

Keeps, for each step, the scale before it and whether the weights stayed as they were, as the training itself shows.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

import rangewatch
from tests.agent.hooks.sharded_worker import CountCollectives

INPUTS = {0: (1.0, 1.0, 1.0, 1.0, 1.0), 1: (1.0, 1e30, 1.0, 1.0, 1.0)}
"""Times the scale of 2^100, 1e30 is beyond float32."""


def train(url: str | None) -> tuple[list[tuple[float, bool]], int]:
    """(scale, skipped) of each step, and the number of collectives."""
    torch.manual_seed(1)
    plain = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1))
    model = FullyShardedDataParallel(plain, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = ShardedGradScaler("cpu", init_scale=2.0**100, growth_interval=2)
    handle = rangewatch.attach(model, optimizer, scaler=scaler, url=url) if url else None
    steps = []
    with CountCollectives() as collectives:
        for value in INPUTS[dist.get_rank()]:
            before = [each.detach().clone() for each in model.parameters()]
            scaler.scale(model(torch.full((3, 2), value)).sum()).backward()
            scale = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            stayed = all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
            steps.append((scale, stayed))
    if handle is not None:
        assert handle.stats()["faults"] == {}
        handle.detach()
    return steps, collectives.count


def main(url: str, kept_path: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    without, with_agent = train(None), train(url)
    assert without == with_agent and without[1] > 0, (without, with_agent)
    torch.save(with_agent[0], kept_path)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
