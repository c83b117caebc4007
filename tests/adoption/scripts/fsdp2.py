"""A model sharded over several ranks with FSDP2, as somebody writes it who knows no Rangewatch."""

import hashlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS = 6


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.act(self.up(x)))


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block(), nn.Linear(16, 4))
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(100 + dist.get_rank())
    for step in range(STEPS):
        x, target = torch.randn(8, 16), torch.randint(4, (8,))
        loss = nn.functional.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        say(f"rank {dist.get_rank()} step {step} loss {loss.item().hex()}")
    say(f"rank {dist.get_rank()} weights {fingerprint(model)}")
    dist.destroy_process_group()


def fingerprint(model: nn.Module) -> str:
    shards = (p.to_local().detach().numpy().tobytes() for p in model.parameters())  # type: ignore[operator]
    return hashlib.sha256(b"".join(shards)).hexdigest()


def say(line: str) -> None:
    print(line + "\n", end="", flush=True)


if __name__ == "__main__":
    main()
