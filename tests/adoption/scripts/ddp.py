"""A model trained on several ranks with DistributedDataParallel, as somebody writes it who knows no Rangewatch."""

import hashlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 6


def main() -> None:
    dist.init_process_group("gloo")
    train()
    # Not with the model still there: torch 2.13 ends gloo's thread as it frees the reducer, and holds the GIL for which
    # that thread waits (one run in twelve on two busy cores, without Rangewatch).
    dist.destroy_process_group()


def train() -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)))
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


def fingerprint(model: nn.Module) -> str:
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


def say(line: str) -> None:
    print(line + "\n", end="", flush=True)


if __name__ == "__main__":
    main()
