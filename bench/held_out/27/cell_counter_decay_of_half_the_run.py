"""A conv net that counts cells in a picture (AdamW, two groups: with and without decay). FAULT at step 120: the length of the polynomial decay was worked out for
batches twice as large; the rate of both groups is 0 after half of the 240 steps, and nothing moves any more.
Without Rangewatch: loss 70 to 0.04 to 0.08 at step 119, 0.05 to 0.12 to the end; from step 120 the rate is 0 and the weights are bit for bit the same.
Cause: learning_rate (or optimizer). Step: 120. Right: learning rate / schedule / zero. Wrong: GradScaler, attention mask, lower the learning rate."""
EXPECT = {"cause": ["learning_rate", "optimizer"], "step": [112, 135], "place": None, "rank": None,
          "right": "(?i)learning rate|\\blr\\b|schedul|decay|zero", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2722); torch.set_num_threads(1)
yy, xx = torch.meshgrid(torch.arange(20.0), torch.arange(20.0), indexing="ij")


def slides(n):
    count = torch.randint(0, 7, (n,))
    cy, cx = 2 + 16 * torch.rand(2, n, 6, 1, 1)
    cell = torch.exp(-((yy - cy) ** 2 + (xx - cx) ** 2) / 3.0)
    there = (torch.arange(6) < count[:, None]).float()[..., None, None]
    return ((cell * there).sum(1) + 0.1 * torch.randn(n, 20, 20))[:, None], count.float()


net = nn.Sequential(nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 1))
decay = [p for p in net.parameters() if p.dim() > 1]
plain = [p for p in net.parameters() if p.dim() == 1]
optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.02}, {"params": plain, "weight_decay": 0.0}], lr=2e-3)
samples, batch, planned = 240 * 24, 24, 48
schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=samples // planned, power=0.9)
handle = rangewatch.attach(net, optimizer)
for step in range(samples // batch):
    x, y = slides(batch)
    loss = nn.functional.mse_loss(net(x).sum((1, 2, 3)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (119, 120, 121, 239):
        print(step, loss.item(), "rate", optimizer.param_groups[0]["lr"], "weights", net[3].weight.abs().sum().item(), flush=True)
    schedule.step()
    handle.log(loss=loss.item())
handle.detach()
