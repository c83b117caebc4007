"""A key-value memory answers queries: 32 noisy keys are matched with an encoder and the stored value of the right key is named; float16 autocast with a GradScaler, RAdam. The match is sharpened as training goes on (beta += 30 each step).
FAULT from step 0, felt at some step 105 to 120: the anneal has no upper end; the float16 product of beta and the scores grows in a straight line until it passes 65504 and is inf; softmax makes inf - inf = NaN of it.
Without Rangewatch: loss 1.84 to 1.35 at step 100 (right 0.73), NaN by step 120 and nearly always after; the scaler skips these steps and halves its scale from 512 to 16 (step 120), 6e-5 (step 140) and in the end to 0; right falls to 0.2 to 0.3.
Cause: forward_arithmetic. Step: some tens of steps before the overflow at best, at the overflow at the latest. Right: cap beta / compute the scores in float32. Wrong: lower the learning rate, look for NaN in the data."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [20, 122], "place": r"sharpen", "rank": None,
          "right": r"(?i)overflow|65504|fp16|float16|float32|range|bf16|bfloat16|bound|cap\b|clamp", "wrong": ["[Ll]ower the learning rate", "[Mm]issing values", "ignore_index"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(9101)
torch.set_num_threads(1)
SLOTS, DIM, VALUES = 32, 20, 6


def episode(n):
    keys = F.normalize(torch.randn(n, SLOTS, DIM), dim=2)
    values = torch.randint(0, VALUES, (n, SLOTS))
    wanted = torch.randint(0, SLOTS, (n,))
    query = keys[torch.arange(n), wanted] + 0.08 * torch.randn(n, DIM)
    return keys, values, query, values[torch.arange(n), wanted]


class Sharpen(nn.Module):
    """Anneals soft attention towards a hard choice."""

    def __init__(self, rate):
        super().__init__()
        self.rate = rate
        self.register_buffer("beta", torch.tensor(1.0, dtype=torch.float16))

    def forward(self, scores):
        if self.training:
            self.beta += self.rate
        return scores * self.beta


class Memory(nn.Module):
    def __init__(self):
        super().__init__()
        self.address = nn.Linear(DIM, 24)
        self.content = nn.Embedding(VALUES, 24)
        self.sharpen = Sharpen(30.0)
        self.answer = nn.Sequential(nn.Linear(24, 32), nn.SiLU(), nn.Linear(32, VALUES))

    def forward(self, keys, values, query):
        scores = (self.address(keys) @ self.address(query)[:, :, None])[..., 0] / 0.07
        weights = self.sharpen(scores).softmax(1)
        return self.answer((weights[..., None] * self.content(values)).sum(1))


net = Memory()
opt = torch.optim.RAdam(net.parameters(), lr=4e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
handle = rangewatch.attach(net, opt, scaler=scaler)
for it in range(300):
    keys, values, query, y = episode(40)
    opt.zero_grad(set_to_none=True)
    with torch.autocast("cpu", dtype=torch.float16):
        out = net(keys, values, query)
    loss = F.cross_entropy(out.float(), y)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if it % 20 == 0:
        print(f"{it} loss {loss.item():.4f} right {(out.argmax(1) == y).float().mean().item():.2f} beta {net.sharpen.beta.item():.0f} scale {scaler.get_scale()}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
