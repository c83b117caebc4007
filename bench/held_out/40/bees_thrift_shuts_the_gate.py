"""Hive sounds (queenless or not, and a regression of the temperature) from two microphones: channel gates in the way of squeeze and excitation with hardsigmoid, a penalty on open gates to save power. Adam.
FAULT: the penalty is summed over the 24 channels and its weight reads 4.0 instead of 0.004; within some dozen steps all gates are pushed below -3, where hardsigmoid is exactly 0 and has no slope: nothing passes to the head any more, no gradient passes back, and they never open again.
Without Rangewatch: loss 48 to 0.77; the task's part falls to 0.11 at step 40, rises to 0.80 at 80 and stays at 0.77; gates 0.49, 0.05 at 60, 0 from 100 on, with a gradient of the first convolution of exactly 0.
Cause: forward_arithmetic (weight of the penalty) / dead_units (gates shut) / no_gradient. Step: builds up from 0, shut from 80 to 100 on. Right: a smaller weight for the penalty, softer gate, bias of the gates. Wrong: raise the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["forward_arithmetic", "dead_units", "no_gradient"], "step": [0, 120], "place": None, "rank": None,
          "right": r"(?i)gate|sigmoid|saturat|penalt|loss|dead|zero|closed|bias|regulari", "wrong": [r"(?i)(raise|increase) the learning rate", "GradScaler", r"(?i)attention mask"]}
import torch
from torch import nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(555); torch.set_num_threads(1)
THRIFT = 4.0
hum = torch.randn(2, 2, 16)


class ChannelGate(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.squeeze, self.excite = nn.Linear(ch, ch // 4), nn.Linear(ch // 4, ch)

    def forward(self, x):
        g = F.hardsigmoid(self.excite(F.relu(self.squeeze(x.abs().mean(2)))))
        return x * g[:, :, None], g


class Hive(nn.Module):
    def __init__(self, ch=24):
        super().__init__()
        self.ear = nn.Conv1d(2, ch, 9, padding=4)
        self.gate = ChannelGate(ch)
        self.mid = nn.Conv1d(ch, ch, 5, padding=2)
        self.queen, self.warmth = nn.Linear(ch, 1), nn.Linear(ch, 1)

    def forward(self, x):
        h, g = self.gate(F.elu(self.ear(x)))
        h = F.elu(self.mid(h)).pow(2).mean(2)
        return self.queen(h)[:, 0], self.warmth(h)[:, 0], g


def recordings(n):
    queenless, warm = torch.randint(0, 2, (n,)), torch.rand(n)
    x = hum[queenless].repeat(1, 1, 4) * (0.5 + warm[:, None, None]) + 0.5 * torch.randn(n, 2, 64)
    return x, queenless.float(), warm


hive = Hive()
opt = torch.optim.Adam(hive.parameters(), lr=4e-3)
handle = rangewatch.attach(hive, opt)
for step in range(300):
    x, queenless, warm = recordings(48)
    q, w, gates = hive(x)
    task = F.binary_cross_entropy_with_logits(q, queenless) + F.mse_loss(w, warm)
    loss = task + THRIFT * gates.sum(1).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    handle.log(loss=loss.item())
    if step % 20 == 0:
        print(f"step {step} loss {loss.item():.4f} task {task.item():.4f} mean gate {gates.mean().item():.4f} gradient of ear {hive.ear.weight.grad.norm().item():.2e}", flush=True)
handle.detach()
