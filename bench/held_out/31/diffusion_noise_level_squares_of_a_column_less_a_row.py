"""A net that estimates the noise level of a diffused 1-D signal (bfloat16 autocast, four microbatches of 16 a step, Lion-like sign updates by hand in an own optimizer). FAULT from step 0: the net gives [16, 1], the levels are [16]; (out - level) ** 2 is
[16, 16], and the mean draws every estimate to the mean level.
Without Rangewatch: loss 0.41 to 0.07 to 0.1, the variance of the levels, from step 60 on (0.008 with the shapes right); the spread of the estimates is 0.01 to 0.03.
Cause: forward_arithmetic (wrong broadcasting). Step: 0. Right: shape / broadcast / squeeze. Wrong: mask, GradScaler, lower the learning rate."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [-1, 5], "place": None, "rank": None,
          "right": "(?i)broadcast|shape|squeeze|view|unsqueeze|\\[16", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(124); torch.set_num_threads(1)


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=5e-4, betas=(0.9, 0.98)):
        super().__init__(params, dict(lr=lr, betas=betas))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.add_((b1 * m + (1 - b1) * p.grad).sign(), alpha=-group["lr"])
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


net = nn.Sequential(nn.Conv1d(1, 16, 5), nn.SiLU(), nn.Conv1d(16, 16, 5, stride=2), nn.SiLU(), nn.Flatten(), nn.Linear(16 * 12, 48), nn.SiLU(), nn.Linear(48, 1))
optimizer = Lion(net.parameters())
handle = rangewatch.attach(net, optimizer)
for step in range(220):
    optimizer.zero_grad()
    total = 0.0
    for micro in range(4):
        level = torch.rand(16)
        clean = torch.sin(0.4 * torch.arange(32.0) + 6.28 * torch.rand(16, 1))
        x = (1 - level[:, None]) * clean + level[:, None] * torch.randn(16, 32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(x[:, None])
        loss = ((out.float() - level) ** 2).mean() / 4
        loss.backward()
        total += loss.item()
    optimizer.step()
    if step % 20 == 0 or step == 219:
        true = (out.float()[:, 0] - level).square().mean().item()
        print(step, total, "true error", true, "spread", out.float().std().item(), flush=True)
    handle.log(loss=total)
handle.detach()
