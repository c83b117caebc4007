"""One of two gloo ranks: trains with the agent and the reference, attached before and then after wrapping in DDP."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rangewatch
from tests.agent.statistics.reference import KeepEverything


def main(url: str, kept_path: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    sys.argv[0] = f"script_of_rank_{dist.get_rank()}.py"  # left to themselves, the ranks would not name the same run
    kept = {}
    for when in ("before", "after"):
        torch.manual_seed(1)
        inner = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 2))
        reference = KeepEverything(inner)
        handle = rangewatch.attach(inner, url=url, run=when) if when == "before" else None
        model = DistributedDataParallel(inner)
        handle = handle or rangewatch.attach(model, url=url, kinds=["output", "grad_output", "grad", "reduced_grad"])
        torch.manual_seed(100 + dist.get_rank())
        for _ in range(3):
            model(torch.randn(5, 4)).pow(2).sum().backward()
            handle.step()
            kept[when, len([key for key in kept if key[0] == when])] = dict(reference.kept)
            reference.clear()
            model.zero_grad()
        handle.detach()
    torch.save(kept, kept_path)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
