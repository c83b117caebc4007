"""Odd entries in ledgers (tables of 40 columns): a stem of three Linear layers and a LayerNorm, then two residual blocks; the stem runs in float16 by autocast on the CPU, no GradScaler. Adam with two groups.
FAULT builds up from step 0: the stem has a learning rate of its own of 0.12 ("the LayerNorm behind it makes the scale irrelevant"); its weights grow step by step and with them its output, until that passes 65504 in float16: inf, which the LayerNorm turns into NaN.
Without Rangewatch: loss 0.85 to 0.63-0.70 and no further; the largest output of the stem is 1 at step 0, 4,500 at 20, 28,500 at 100, 48,000 at 133, inf at 134, and the loss NaN from there.
Cause: learning_rate (of the stem's group) / forward_arithmetic (float16 overflow before the norm). Step: builds up from 0, overflow at 134. Right: a smaller rate or weight decay for the stem, bfloat16 or float32 for it. Wrong: raise the learning rate, attention mask."""
EXPECT = {"cause": ["learning_rate", "forward_arithmetic"], "step": [0, 150], "place": None, "rank": None,
          "right": r"(?i)learning rate|\blr\b|overflow|float16|fp16|half|bfloat16|float32|65504|weight decay|grow", "wrong": [r"(?i)(raise|increase) the learning rate", r"(?i)attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(64); torch.set_num_threads(1)
COLUMNS = 40
mix = torch.randn(COLUMNS, COLUMNS) / COLUMNS ** 0.5
rule = torch.randn(COLUMNS, 2) / COLUMNS ** 0.5


def entries(n):
    x = torch.randn(n, COLUMNS) @ mix
    z = x @ rule
    return x, (z[:, 0] * z[:, 1] > 0.1).float()


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, h):
        return h + self.down(nn.functional.mish(self.up(self.norm(h))))


class LedgerNet(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(COLUMNS, d, bias=False), nn.ReLU(), nn.Linear(d, d, bias=False), nn.ReLU(), nn.Linear(d, d, bias=False))
        self.stem_norm = nn.LayerNorm(d)
        self.blocks = nn.Sequential(Block(d), Block(d))
        self.flag = nn.Linear(d, 1)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.float16):
            h = self.stem(x)
        self.largest = h.detach().abs().max().item()
        return self.flag(self.blocks(self.stem_norm(h.float()))).squeeze(1)


net = LedgerNet()
slow = [p for n, p in net.named_parameters() if not n.startswith("stem.")]
opt = torch.optim.Adam([{"params": net.stem.parameters(), "lr": 0.12}, {"params": slow, "lr": 1e-3}])
handle = rangewatch.attach(net, opt)
for step in range(300):
    x, y = entries(96)
    loss = nn.functional.binary_cross_entropy_with_logits(net(x), y)
    opt.zero_grad(); loss.backward(); opt.step()
    if step % 20 == 0 or 120 < step < 140:
        print(f"step {step} loss {loss.item():.4f} largest of the stem {net.largest:.0f} stem weight {net.stem[2].weight.abs().mean().item():.1f}", flush=True)
handle.detach()
