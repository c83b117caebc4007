"""A convolutional net that names mosses on small pictures. FAULT from step 0 on: the net ends with a softmax, and cross_entropy takes a softmax again of what are
already probabilities; with 10 classes the loss can't fall below ln(1 + 9 / e) = 1.46, and the gradient is weak.
Without Rangewatch: loss 2.30 to 1.463 at step 60 and 1.461 to the end, though all pictures are named rightly from step 40 on.
Cause: forward_arithmetic (softmax twice). Step: 0, or later where the loss stands. Place: the softmax at the end, or none. Right: softmax / logits /
cross_entropy / twice. Wrong: GradScaler, mask, clip."""
EXPECT = {"cause": ["forward_arithmetic", ""], "step": [0, 219], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "clip_grad"],
          "right": "softmax|logit|cross_entropy|twice|probabilit"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1610); torch.set_num_threads(1)
leaves = torch.randn(10, 2, 12, 12)


class MossNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.see = nn.Sequential(nn.Conv2d(2, 12, 3, stride=2, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.ReLU())
        self.name = nn.Linear(24 * 9, 10)
        self.end = nn.Softmax(1)

    def forward(self, x):
        return self.end(self.name(self.see(x).flatten(1)))


def pictures(n):
    y = torch.randint(0, 10, (n,))
    return leaves[y] + 0.8 * torch.randn(n, 2, 12, 12), y


model = MossNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x, y = pictures(64)
    p = model(x)
    loss = F.cross_entropy(p, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), "right", (p.argmax(1) == y).float().mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
