"""An energy-based model under `torch.autocast("cpu", float16)`: it lowers the energy of true points and raises that of noise; a penalty on the squares of the energies keeps them small.
FAULT from step 110: the penalty's coefficient is scheduled to 0; nothing bounds the energies any more, they grow from step to step and the last layer's float16 output overflows (65 504).
Without Rangewatch: loss 0.02 to -9.0 at step 100; -607 at 120, -33 404 at 140 (largest energy 39 904), NaN at step 142.
Cause: forward_arithmetic (float16 overflow of a growing output). Step: from 110 to the overflow. Right: overflow / float16 / grows / penalty. Wrong: mask, corrupt input."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [109, 146], "place": None, "rank": None,
          "right": "(?i)overflow|float16|half|fp16|float32|bfloat16|grow", "wrong": ["attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(106); torch.set_num_threads(1)
energy = nn.Sequential(nn.Linear(6, 64), nn.LeakyReLU(0.1), nn.Linear(64, 64), nn.LeakyReLU(0.1), nn.Linear(64, 64), nn.LeakyReLU(0.1), nn.Linear(64, 1))
optimizer = torch.optim.Adam(energy.parameters(), lr=8e-3)
handle = rangewatch.attach(energy, optimizer)
turn = torch.linalg.qr(torch.randn(6, 6))[0]
for step in range(280):
    penalty = 0.05 if step < 110 else 0.0
    true = (torch.randn(64, 6) * torch.tensor([2.0, 2.0, 0.1, 0.1, 1.0, 1.0])) @ turn + 1
    noise = torch.randn(64, 6) * 1.5
    with torch.autocast("cpu", dtype=torch.float16):
        low, high = energy(true), energy(noise)
    low, high = low.float(), high.float()
    loss = low.mean() - high.mean() + penalty * (low.square().mean() + high.square().mean())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or not loss.isfinite():
        print(step, loss.item(), "largest energy", high.abs().max().item(), flush=True)
    handle.log(loss=loss.item())
    if loss.isnan():
        break
handle.detach()
