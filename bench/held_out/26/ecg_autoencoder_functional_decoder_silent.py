"""An autoencoder of heart beats, written in functions over a ParameterDict (F.relu, no modules). FAULT at step 96: the table of learning rates has one entry
of 2.4 where 0.20 was meant: one step of SGD throws the decoder's weights so far that its F.relu gives 0 for every beat; no gradient passes it any more.
Without Rangewatch: loss 5.82 to 0.54 at step 95, 36.9 at step 97, 1.5 at step 100 and 0.86 to 0.90 from 120; zeros behind the ReLU 0.76 at step 95, 0.98 at 100,
1.0 from 120.
Cause: dead_units, learning_rate or no_gradient. Step: 96. Right: ReLU / dead / learning rate. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["dead_units", "learning_rate", "no_gradient"], "step": [95, 130], "place": None, "rank": None,
          "right": "(?i)dead|relu|learning rate|\\blr\\b|schedul", "wrong": ["GradScaler", "attention mask", "all_reduce"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(6102); torch.set_num_threads(1)
t = torch.linspace(0, 1, 80)
RATES = {0: 0.05, 24: 0.10, 48: 0.15, 72: 0.20, 96: 2.4, 97: 0.20, 140: 0.10}


def weight(i, o):
    return nn.Parameter(torch.randn(o, i) * (2 / i) ** 0.5)


p = nn.ParameterDict({
    "enc_w1": weight(80, 64), "enc_b1": nn.Parameter(torch.zeros(64)), "enc_w2": weight(64, 6), "enc_b2": nn.Parameter(torch.zeros(6)),
    "dec_w1": weight(6, 64), "dec_b1": nn.Parameter(torch.zeros(64)), "dec_w2": weight(64, 80), "dec_b2": nn.Parameter(torch.zeros(80))})


def beats(n):
    at, width, height = 0.4 + 0.2 * torch.rand(n, 1), 0.03 + 0.04 * torch.rand(n, 1), 1 + torch.rand(n, 1)
    r = height * torch.exp(-((t - at) / width) ** 2)
    wave = 0.4 * height * torch.exp(-((t - at - 0.25) / 0.08) ** 2)
    return r + wave + 0.02 * torch.randn(n, 80)


def encode(x):
    return F.linear(F.relu(F.linear(x, p["enc_w1"], p["enc_b1"])), p["enc_w2"], p["enc_b2"])


def decode(z):
    h = F.relu(F.linear(z, p["dec_w1"], p["dec_b1"]))
    return F.linear(h, p["dec_w2"], p["dec_b2"]), h


optimizer = torch.optim.SGD(p.parameters(), lr=RATES[0])
handle = rangewatch.attach(p, optimizer)
for step in range(200):
    if step in RATES:
        optimizer.param_groups[0]["lr"] = RATES[step]
    x = beats(64)
    y, h = decode(encode(x))
    loss = 10 * F.mse_loss(y, x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (95, 96, 97, 98, 99, 199):
        print(step, loss.item(), "share of zeros", (h == 0).float().mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
