"""A small VGG-like net (no norms) on patterns, SGD with momentum, MultiStepLR. FAULT at step 140: gamma stands in the configuration as 10 ("decay
by a factor of 10") and not as 0.1, so that the milestone raises the rate from 0.02 to 0.2.
Without Rangewatch: loss 2.7 to 0.03 at step 100, 0.2 at step 140, 7.1 at step 143, 487 at step 148, 1e25 at step 151, NaN from step 152 on.
Report: DeepLabCut/DeepLabCut#267 (a multi_step list that raises the rate), pytorch/pytorch#20486 and #31828 (MultiStepLR and its gamma).
Cause: learning_rate. Step: 140. Right: learning rate / schedule / milestone. Wrong: GradScaler, mask, bfloat16."""
EXPECT = {"cause": ["learning_rate"], "step": [139, 160], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "learning rate|lr\\b|schedul|step size"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(802); torch.set_num_threads(1)
CLASSES = 8
patterns = torch.randn(CLASSES, 3, 12, 12)
config = {"lr": 0.02, "milestones": [140], "gamma": 10}

model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(288, 64), nn.ReLU(), nn.Linear(64, CLASSES))
for m in model:
    if isinstance(m, (nn.Conv2d, nn.Linear)):
        nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9, weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, config["milestones"], gamma=config["gamma"])
handle = rangewatch.attach(model, optimizer)
for step in range(260):
    y = torch.randint(0, CLASSES, (32,))
    x = patterns[y] + 1.0 * torch.randn(32, 3, 12, 12)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or 138 < step < 150:
        print(step, loss.item(), "lr", optimizer.param_groups[0]["lr"], flush=True)
handle.detach()
