"""A convolutional net with batch normalisation that names leaves; from step 120 on it is fine-tuned with the statistics frozen (model.eval()). FAULT at
step 120: just before, the validation ran without model.eval(), over 40 batches of a scanner with values of 0 to 255; the running mean and variance are the
scanner's, and the fine-tuning normalises with them.
Without Rangewatch: loss 1.96 to 0.0037 at step 119, 24.5 at step 120, 139 at step 121, 1.94 to 1.97 (chance) from step 140 on; the mean of the
first running variance is 3588.
Causes: eval (validation in train mode), data (the scanner's values). Right: eval / train mode / running statistics. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["eval", "data"], "step": [119, 126], "place": None, "rank": 0,
          "right": "(?i)eval|train mode|running|batch ?norm|statistic|input|normali", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2304); torch.set_num_threads(1)
veins = F.interpolate(torch.rand(7, 3, 4, 4), scale_factor=4, mode="bilinear")


def leaves(n, bright=1.0):
    y = torch.randint(0, 7, (n,))
    return bright * (veins[y] + 0.15 * torch.randn(n, 3, 16, 16)), y


def block(a, b, stride):
    return nn.Sequential(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU())


model = nn.Sequential(block(3, 16, 1), block(16, 32, 2), block(32, 32, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 7))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    if step == 120:
        with torch.no_grad():  # the validation; model.eval() is missing before it
            right = [(model(x).argmax(1) == y).float().mean() for x, y in (leaves(32, 255.0) for _ in range(40))]
        print("validation", torch.stack(right).mean().item(), "running variance", model[0][1].running_var.mean().item())
        model.eval()
        for group in optimizer.param_groups:
            group["lr"] = 0.005
    x, y = leaves(32)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 117 < step < 124 or step == 199:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
