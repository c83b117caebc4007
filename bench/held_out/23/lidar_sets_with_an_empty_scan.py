"""A net on sets of laser points (a small PointNet): each point through an MLP, missing points are set to -inf, then the maximum over the set. FAULT at
step 105 (and every 40 steps after it): one scan of the batch has no point at all, its maximum is -inf and the classifier makes NaN of it.
Without Rangewatch: loss 1.79 to 0.31 at step 104, NaN at step 105 and at each step after it.
Causes: mask (a row all masked), data (the empty scan), forward_arithmetic. Right: mask / empty / -inf / row. Wrong: lower the rate, GradScaler."""
EXPECT = {"cause": ["mask", "data", "forward_arithmetic"], "step": [104, 106], "place": None, "rank": 0,
          "right": "(?i)mask|empty|inf|row|input|batch", "wrong": ["GradScaler", "[Ll]ower the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2302); torch.set_num_threads(1)
shapes = torch.randn(6, 24, 3)


class ScanNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.point = nn.Sequential(nn.Linear(3, 32), nn.GELU(), nn.Linear(32, 64))
        self.whole = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 6))

    def forward(self, points, seen):
        h = self.point(points).masked_fill(~seen[..., None], float("-inf"))
        return self.whole(h.max(dim=1).values)


model = ScanNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    y = torch.randint(0, 6, (32,))
    points = shapes[y] + 0.15 * torch.randn(32, 24, 3)
    seen = torch.rand(32, 24) < 0.7
    seen[:, 0] = True
    if step >= 105 and (step - 105) % 40 == 0:
        seen[9] = False  # the mirror of the scanner was covered
    loss = criterion(model(points, seen), y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 103 < step < 108 or step == 199:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
