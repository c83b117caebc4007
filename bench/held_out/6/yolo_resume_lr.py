"""A small grid detector with SGD, Nesterov momentum, warm-up and a cosine. FAULT at step 150: it is resumed, the rate is set anew from the settings (2.0
instead of the last 0.0004, and without the warm-up). All stays finite, for the gradient is clipped at 10.
Without Rangewatch: loss 1.03 to 0.036 at step 149, 0.067 at step 150 (whose update is the first at 2.0), 134 at step 151, 425 at step 152, 120 at the
end; the largest weight of the head 0.63 to 64.
Report: ultralytics/yolov5#292 (the rate is reset when resuming), pytorch/pytorch#60265, YehLi/xmodaler#15. That the rate of the settings is 2.0, larger
than before, is mine: theirs fall back to the base rate.
Cause: learning rate. Step: 150. Right: learning rate / scheduler / warm-up. Wrong: GradScaler, mask, bfloat16."""
EXPECT = {"cause": ["learning_rate"], "step": [149, 152], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "learning rate|lr|schedul|warm"}
import math
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(616); torch.set_num_threads(1)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.ReLU(),
                                      nn.Conv2d(24, 24, 3, stride=2, padding=1), nn.ReLU())
        self.detect = nn.Conv2d(24, 3, 1)  # objectness and the place within the cell

    def forward(self, x):
        return self.detect(self.backbone(x))


def batch(n=16, size=24):
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    cx, cy = torch.randint(2, size - 2, (n,)), torch.randint(2, size - 2, (n,))
    image = torch.exp(-((xx - cx[:, None, None]) ** 2 + (yy - cy[:, None, None]) ** 2) / 3.0)[:, None] + 0.2 * torch.randn(n, 1, size, size)
    return image, cx, cy


def loss_of(out, cx, cy):
    n = torch.arange(len(cx))
    there = torch.zeros_like(out[:, 0])
    there[n, cy // 4, cx // 4] = 1
    place = torch.stack([cx % 4, cy % 4], 1) / 4
    return F.binary_cross_entropy_with_logits(out[:, 0], there, pos_weight=torch.tensor(8.0)) + F.mse_loss(out[n, 1:, cy // 4, cx // 4], place)


model = Detector()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.937, nesterov=True)
warm = lambda i: min(1, (i + 1) / 20) * (0.02 + 0.98 * (1 + math.cos(math.pi * i / 150)) / 2)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warm)
handle = rangewatch.attach(model, optimizer)
for step in range(230):
    if step == 150:  # --resume with another base rate in the file of settings: the schedule starts again, without its warm-up
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] = 2.0
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1.0)
    x, cx, cy = batch()
    loss = loss_of(model(x), cx, cy)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    optimizer.step()
    scheduler.step()
    if step % 20 == 0 or 148 < step < 154 or step == 229:
        print(step, loss.item(), optimizer.param_groups[0]["lr"], model.detect.weight.abs().max().item(), flush=True)
handle.detach()
