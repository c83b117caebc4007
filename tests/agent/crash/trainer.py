"""A small training that ends as it is told to: `trainer.py END URL RUN`. Each step that is closed is a line it prints.

With WORLD_SIZE above 1 it is a rank of a gloo job.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import rangewatch

END_STEP = int(os.environ.get("END_STEP", "7"))
STEP_S = float(os.environ.get("STEP_S", "0.002"))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.out_proj = nn.Linear(8, 8), nn.Linear(8, 8)
        self.fails: list[str] = []

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        values = self.q_proj(values)
        if self.fails:
            fail(self.fails[0])
        return self.out_proj(values)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attn, self.mlp = nn.LayerNorm(8), Attention(), nn.Linear(8, 8)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        values = values + self.attn(self.norm(values))
        return values + self.mlp(values)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(8, 1)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            values = block(values)
        return self.head(values)


def fail(how: str) -> None:
    if how == "segfault":
        ctypes.string_at(0)
    elif how == "exit":
        os._exit(3)
    elif how == "memory":
        held = []
        while True:
            held.append(bytearray(16 << 20))
    elif how == "error":
        raise ValueError("planted <b>error</b>")
    elif how.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, how))
        time.sleep(60)


def main(how: str, url: str, run: str) -> None:
    if "TEST_CONTROL_GROUP" in os.environ:
        (Path(os.environ["TEST_CONTROL_GROUP"]) / "cgroup.procs").write_text(str(os.getpid()))
    torch.set_num_threads(1)
    torch.manual_seed(1)
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size > 1:
        dist.init_process_group("gloo")
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    is_ours = int(os.environ.get("RANK", "0")) == world_size - 1
    handle = rangewatch.attach(model, optimizer, url=url, run=run, allow_inf=("nothing",))
    for step in range(10**9):
        if step == END_STEP and how == "detach":
            handle.detach()
            return
        if step == END_STEP and is_ours and how != "collective":
            model.blocks[1].attn.fails.append(how)
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        if world_size > 1:
            if step == END_STEP and is_ours and how == "collective":
                dist.all_reduce(torch.ones(4), async_op=True)
                ctypes.string_at(0)
            dist.all_reduce(torch.ones(4))
        optimizer.step()
        optimizer.zero_grad()
        handle.log(loss=float(loss.detach()))
        os.write(1, b"%d\n" % step)  # one call, so that a line is there whole or not at all
        time.sleep(STEP_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
