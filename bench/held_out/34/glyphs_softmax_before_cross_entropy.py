"""A small convnet reads 16 glyphs in 12x12 pictures (SGD with momentum). FAULT from step 0: the net ends in `nn.Softmax`, the loss is `nn.CrossEntropyLoss`, which takes logits:
softmax twice. Logits of the loss lie in 0..1, gradients are weak, the loss cannot fall below 1.87.
Without Rangewatch: loss 2.77 at all 300 steps, accuracy 3 to 15 % (without the softmax: loss 0.06, accuracy 97 %).
Cause: forward_arithmetic (softmax twice). Step: 0 (can't be said closely). Right: softmax / logits. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["forward_arithmetic"], "step": None, "place": None, "rank": None,
          "right": "(?i)softmax|logit|log_softmax", "wrong": ["GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(342); torch.set_num_threads(1)
glyphs = (torch.rand(16, 1, 8, 8) < 0.4).float()


def pages(n):
    y = torch.randint(0, 16, (n,))
    x = 0.2 * torch.randn(n, 1, 12, 12)
    dx, dy = torch.randint(0, 5, (n,)), torch.randint(0, 5, (n,))
    for i in range(n):
        x[i, :, dx[i]:dx[i] + 8, dy[i]:dy[i] + 8] += glyphs[y[i]]
    return x, y


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * 9, 64)
        self.fc2 = nn.Linear(64, 16)
        self.softmax = nn.Softmax(dim=1)

    def forward(self, x):
        x = nn.functional.max_pool2d(self.conv1(x).relu(), 2)
        x = nn.functional.max_pool2d(self.conv2(x).relu(), 2)
        return self.softmax(self.fc2(self.fc1(x.flatten(1)).relu()))


model = Reader()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.06, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(300):
    x, y = pages(32)
    out = model(x)
    loss = criterion(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 299:
        print(step, loss.item(), "accuracy", (out.argmax(1) == y).float().mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
