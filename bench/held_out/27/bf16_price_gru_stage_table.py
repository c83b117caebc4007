"""A GRU that foretells prices, bf16 autocast, SGD with Nesterov momentum, a table of stages for the rate. FAULT at step 85: the third stage reads 3.0 where 0.03
was meant; the rate goes from 0.03 to 3.
Without Rangewatch: loss 4.11 to 0.05 at step 85, 18.6 at step 86, 74000 at step 87, NaN before step 100.
Cause: learning_rate. Step: 85. Right: learning rate / schedule. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["learning_rate"], "step": [84, 92], "place": None, "rank": None,
          "right": "(?i)learning rate|\\blr\\b|schedul|step size", "wrong": ["GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2726); torch.set_num_threads(1)
STAGES = {0: 0.02, 40: 0.03, 85: 3.0, 140: 0.01}


def prices(n):
    trend, wave = 0.1 * torch.randn(n, 1), 6.28 * torch.rand(n, 1)
    t = torch.arange(19.0)
    p = trend * t + torch.sin(0.7 * t + wave) + 0.1 * torch.randn(n, 19)
    return p[:, :18, None], p[:, 18:]


class Price(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(1, 40, batch_first=True)
        self.out = nn.Linear(40, 1)

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            h = self.gru(x)[0][:, -1]
        return self.out(h)


net = Price()
optimizer = torch.optim.SGD(net.parameters(), lr=STAGES[0], momentum=0.9, nesterov=True)
handle = rangewatch.attach(net, optimizer)
for step in range(180):
    if step in STAGES:
        for group in optimizer.param_groups:
            group["lr"] = STAGES[step]
    x, y = prices(64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = net(x)
    loss = nn.functional.mse_loss(out.float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (84, 85, 86, 87, 90, 179):
        print(step, loss.item(), "rate", optimizer.param_groups[0]["lr"], flush=True)
    handle.log(loss=loss.item())
handle.detach()
