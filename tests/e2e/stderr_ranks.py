"""Two DistributedDataParallel ranks that write to stderr: `stderr_ranks.py URL RUN`. They train until killed."""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rangewatch


def main(url: str, run: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    rangewatch.attach(model, optimizer, url=url, run=run, stderr_tail=True)
    for step in range(10**9):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"rank {rank} at step {step}, password=hunter{step}", file=sys.stderr)
        os.write(2, b"from C of rank %d\n" % rank)
        os.write(1, b"%d\n" % step)
        time.sleep(0.01)


if __name__ == "__main__":
    main(*sys.argv[1:])
