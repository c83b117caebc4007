"""A training loop of one process in fp16 with a loss scaler, as somebody writes it who knows no Rangewatch."""

import hashlib

import torch
from torch import nn

STEPS = 8


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    for step in range(STEPS):
        x, target = torch.randn(8, 16), torch.randint(4, (8,))
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.cross_entropy(model(x), target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item().hex()}")
    print("weights", fingerprint(model))


def fingerprint(model: nn.Module) -> str:
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


if __name__ == "__main__":
    main()
