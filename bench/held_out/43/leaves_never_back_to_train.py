"""Leaf diseases from small pictures (convnet with BatchNorm and Dropout, SGD with momentum), validation every 40 steps (thread: 'training gets worse / blows up after the first validation').
FAULT at step 40: validate() calls model.eval() and nobody calls model.train() again; from then on BatchNorm normalises with frozen statistics while the weights go on changing, and Dropout is off.
Without Rangewatch: loss 3.4 to 1.5 at step 30, validation 6.6, then 9.2 in training at step 40, nan by 50 (with model.train(): 1.29 at 40, 0.80 at 60, 0.23 at 190).
Cause: eval. Step: 40. Right: model.train() after the validation. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["eval"], "step": [39, 70], "place": None, "rank": None,
          "right": r"(?i)\.train\(|train(ing)? mode|eval", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)attention mask"]}
import torch
import torch.nn as nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(12); torch.set_num_threads(1)
SPOTS = torch.randn(6, 3, 5, 5) * 3


def leaves(n):
    y = torch.randint(0, 6, (n,))
    x = 3 + 1.5 * torch.randn(n, 3, 14, 14)
    for i in range(n):
        r, c = torch.randint(0, 10, (2,)).tolist()
        x[i, :, r:r + 5, c:c + 5] += SPOTS[y[i]]
    return x, y


class LeafNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16, momentum=0.01)
        self.conv2, self.bn2 = nn.Conv2d(16, 24, 3, padding=1), nn.BatchNorm2d(24, momentum=0.01)
        self.conv3, self.bn3 = nn.Conv2d(24, 32, 3, padding=1), nn.BatchNorm2d(32, momentum=0.01)
        self.drop = nn.Dropout(0.3)
        self.fc = nn.Linear(32, 6)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        x = F.relu(self.bn3(self.conv3(x)))
        return self.fc(self.drop(x.amax((2, 3))))


def validate(model):
    model.eval()
    with torch.no_grad():
        x, y = leaves(64)
        out = model(x)
    return F.cross_entropy(out, y).item(), (out.argmax(1) == y).float().mean().item()


model = LeafNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
handle = rangewatch.attach(model, optimizer)
model.train()
for step in range(200):
    x, y = leaves(24)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 10 == 0 or step == 41:
        print(f"step {step} train loss {loss.item():.4f}", flush=True)
    if step % 40 == 39:
        print("   validation: loss %.4f acc %.2f" % validate(model), flush=True)
handle.detach()
