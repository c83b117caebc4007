"""Small CNN on 16x16 pictures of crosses, squares, stripes and discs (class Trainer, SGD with momentum, two epochs).
FAULT at step 1: the Trainer never calls optimizer.zero_grad(): every backward adds to all gradients before.
Without Rangewatch: loss 1.39, 0.86 at step 30, 3.6 at 45, 15 at 90, NaN by 135; the gradient of fc2 is 0.1 at step 0, 2.5 at 15, 30 at 90, 1e4 at 120 (with zero_grad: loss 0.057 at 120, gradient 0.4).
Cause: optimizer (gradients never cleared). Step: from 1. Right: optimizer.zero_grad() each step. Wrong: GradScaler, attention mask, raise the learning rate."""
EXPECT = {"cause": ["optimizer"], "step": [1, 40], "place": None, "rank": None,
          "right": r"(?i)zero_grad|accumulat|clear(ed)?|set_to_none|not (been )?(zeroed|reset)|stale grad", "wrong": ["GradScaler", r"(?i)attention mask", r"(?i)raise the learning rate"]}
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader
import rangewatch

torch.manual_seed(4)
torch.set_num_threads(1)


class Shapes(Dataset):
    def __init__(self, n):
        self.n = n
        self.labels = torch.randint(0, 4, (n,))
        self.pictures = torch.stack([self.draw(int(k)) for k in self.labels])

    @staticmethod
    def draw(kind):
        img = 0.35 * torch.randn(1, 16, 16)
        r, c = (int(v) for v in torch.randint(3, 10, (2,)))
        if kind == 0:
            img[0, r, :] += 1.0
            img[0, :, c] += 1.0
        elif kind == 1:
            img[0, r:r + 5, c:c + 5] += 1.0
            img[0, r + 1:r + 4, c + 1:c + 4] -= 1.0
        elif kind == 2:
            img[0, ::3, :] += 0.8
        else:
            yy, xx = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
            img[0] += (((yy - r) ** 2 + (xx - c) ** 2) < 12).float()
        return img

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.pictures[i], self.labels[i]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 3, padding=1)
        self.conv2 = nn.Conv2d(12, 24, 3, padding=1)
        self.fc1 = nn.Linear(24 * 16, 48)
        self.fc2 = nn.Linear(48, 4)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class Trainer:
    def __init__(self, net, data, epochs):
        self.net, self.epochs = net, epochs
        self.loader = DataLoader(data, batch_size=32, shuffle=True)
        self.opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
        self.criterion = nn.CrossEntropyLoss()
        self.handle = rangewatch.attach(net, self.opt)
        self.step = 0

    def training_step(self, x, y):
        loss = self.criterion(self.net(x), y)
        loss.backward()
        self.opt.step()
        return loss.item()

    def fit(self):
        for epoch in range(self.epochs):
            for x, y in self.loader:
                value = self.training_step(x, y)
                if self.step % 15 == 0:
                    g = self.net.fc2.weight.grad.norm().item()
                    print(f"[{epoch}] step {self.step} loss {value:.4f} grad fc2 {g:.2e}", flush=True)
                self.handle.log(loss=value)
                self.step += 1
        self.handle.detach()


Trainer(Net(), Shapes(2560), epochs=2).fit()
