"""A small depthwise-separable convnet sorts 12x12 satellite tiles of three bands into ten classes, SGD with Nesterov momentum. FAULT from step 0: the net ends in a Softmax and the loss is CrossEntropyLoss, which takes log-softmax again: the
gradient is weak and the loss cannot fall below 1.46.
Without Rangewatch: loss 2.302 for 140 steps, 2.17 at the end, accuracy 0.2 (without the Softmax: 0.018 and 1.0 at step 80).
Cause: forward_arithmetic (loss of probabilities rather than logits). Step: from 0. Right: softmax twice / logits. Wrong: GradScaler, attention mask, lower the learning rate."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [0, 100], "place": None, "rank": None,
          "right": "(?i)softmax|logits|probabilit", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(411); torch.set_num_threads(1)
looks = torch.randn(10, 3, 1, 1) + 0.8 * torch.randn(10, 3, 12, 12)


def tiles(n):
    y = torch.randint(0, 10, (n,))
    return looks[y] + 0.8 * torch.randn(n, 3, 12, 12), y


def separable(i, o):
    return nn.Sequential(nn.Conv2d(i, i, 3, padding=1, groups=i), nn.Conv2d(i, o, 1), nn.GELU())


model = nn.Sequential(separable(3, 24), nn.AvgPool2d(2), separable(24, 32), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(288, 10), nn.Softmax(dim=1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
criterion = nn.CrossEntropyLoss()
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    x, y = tiles(32)
    out = model(x)
    loss = criterion(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), "accuracy", (out.argmax(1) == y).float().mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
