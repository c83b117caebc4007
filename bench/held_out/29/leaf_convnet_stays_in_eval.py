"""A conv net with batch norm and dropout that sorts leaves. FAULT at step 60: the first validation calls eval() and nobody calls train() again: the batch
norms use the averages of the first steps for good, the dropout is off.
Without Rangewatch: loss 1.58 to 1.42 (step 40), 0.92 at step 60 (the dropout is off), 0.27 at the end; the mean of bn1 stands at -1.67107
from step 60 on; validation 0.94, 0.39, 0.20: it does little harm.
Cause: eval. Step: 60. Right: train() / eval. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["eval"], "step": [59, 70], "place": None, "rank": None, "least": "info",
          "right": "(?i)\\.train\\(|train\\(\\)|eval|training mode|train mode", "wrong": ["GradScaler", "attention mask", "all_?reduce"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2911); torch.set_num_threads(1)
yy, xx = torch.meshgrid(torch.linspace(-1, 1, 20), torch.linspace(-1, 1, 20), indexing="ij")


def leaves(n, g=None):
    y = torch.randint(0, 4, (n,), generator=g)
    a = torch.atan2(yy, xx) + 6.28 * torch.rand(n, 1, 1, generator=g)
    edge = 0.6 + 0.18 * torch.cos((2 + y).view(-1, 1, 1) * a)
    leaf = torch.sigmoid(12 * (edge - (xx ** 2 + yy ** 2).sqrt()))
    return (leaf + 0.3 * torch.randn(n, 20, 20, generator=g))[:, None], y


class LeafNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 16, 5, 2), nn.BatchNorm2d(16)
        self.conv2, self.bn2 = nn.Conv2d(16, 32, 3, 2), nn.BatchNorm2d(32)
        self.drop, self.fc = nn.Dropout(0.4), nn.Linear(32 * 9, 4)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        return self.fc(self.drop(x.flatten(1)))


val_x, val_y = leaves(256, torch.Generator().manual_seed(1))


def validate(model):
    model.eval()
    with torch.no_grad():
        logits = model(val_x)
    return F.cross_entropy(logits, val_y).item()


net = LeafNet()
optimizer = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9, weight_decay=5e-4)
handle = rangewatch.attach(net, optimizer)
net.train()
for step in range(200):
    x, y = leaves(48)
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), "training", net.training, "bn1 mean", net.bn1.running_mean.sum().item(), flush=True)
    handle.log(loss=loss.item())
    if step >= 59 and (step + 1) % 60 == 0:
        print("validation", validate(net), flush=True)
handle.detach()
