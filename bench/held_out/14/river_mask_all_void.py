"""A convolutional net marks rivers in tiles; pixels of label 255 do not count. FAULT from step 100 on: the labels are cut at the wrong offset, all are 255;
the loss is the sum over counted pixels by max(1, their number): 0, and so is every gradient.
Without Rangewatch: loss 1.22 to 0.19 at step 99, exactly 0 from step 100 on, gradients too.
Variant of: no_label_of_an_answer_is_left (here the pixels of a segmentation).
Cause: data (mask or no_gradient would do). Step: 100. Right: label / target / ignore / 255. Wrong: lower the learning rate, GradScaler."""
EXPECT = {"cause": ["data", "mask", "no_gradient"], "step": [99, 150], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler"], "right": "label|target|ignore|255|mask|loss"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1418); torch.set_num_threads(1)
model = nn.Sequential(nn.Conv2d(2, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 3, 3, padding=1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x = torch.randn(8, 2, 12, 12)
    y = (x[:, 0] > 0.5).long() + (x[:, 1] > 0.3).long()
    y[:, :, 9:] = 255
    if step >= 100:
        y = y[:, :, 9:10].expand(-1, -1, 12)
    loss = F.cross_entropy(model(x), y, ignore_index=255, reduction="sum") / (y != 255).sum().clamp(min=1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 98 < step < 102:
        print(step, loss.item(), model[0].weight.grad.norm().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
