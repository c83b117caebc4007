"""Strain gauges to a strain field, values of about 1e-4 in metres a metre, mean squared error over batch and field, fp16 autocast, last layer starting at
zero. FAULT from the start: there is no GradScaler. The gradients of the predictions are some 1e-9, below what fp16 holds, and become zeros in the backward:
nothing is ever trained, the loss stays that of predicting nothing and looks small; with a scaler it falls. No NaN, no warning. Report:
engichang1467/Open-Rig3R#35 (autocast to fp16 with no GradScaler, gradients underflow in silence), NVIDIA/apex#43.
Cause: loss_scale, no step. Right: a GradScaler (or bfloat16). Wrong: lower the learning rate, mask, data."""
EXPECT = {"cause": ["loss_scale"], "step": [0, 239], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "leave out samples"], "right": "GradScaler|loss scal|bfloat16"}
import math
import sys
import torch
import rangewatch

torch.manual_seed(8)
torch.set_num_threads(1)
field = torch.randn(16, 1024)


def simulate(n=64):
    load = torch.randn(n, 16)
    return load, 1e-4 * torch.tanh(load @ field / 4)


mlp = torch.nn.Sequential(
    torch.nn.Linear(16, 128), torch.nn.GELU(), torch.nn.Linear(128, 128), torch.nn.GELU(), torch.nn.Linear(128, 1024)
)
torch.nn.init.zeros_(mlp[4].weight)
torch.nn.init.zeros_(mlp[4].bias)
opt = torch.optim.Adam(mlp.parameters(), lr=1e-3)
watch = rangewatch.attach(mlp, opt)
scaler = torch.amp.GradScaler("cpu", enabled="--scaled" in sys.argv)  # python strain_fp16_no_scaler.py --scaled: how it should be
STEPS = 240
for step in range(STEPS):
    opt.param_groups[0]["lr"] = 1e-3 * 0.5 * (1 + math.cos(math.pi * step / STEPS)) + 1e-5
    load, strain = simulate()
    with torch.autocast("cpu", torch.float16):
        pred = mlp(load)
        loss = torch.nn.functional.mse_loss(pred.float(), strain)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    watch.log(loss=loss.item())
    if step % 20 == 0 or step == STEPS - 1:
        zeros = [round((p.grad == 0).float().mean().item(), 2) for p in mlp.parameters()]
        print(step, loss.item(), zeros)
