"""A small ResNet that sorts pictures of textures, SGD with momentum and StepLR(step_size=10, gamma=0.1) meant for epochs of 25 batches. FAULT from the start:
`scheduler.step()` is called in the loop over batches: the rate falls by ten every ten steps and is nothing from step 40 on.
Without Rangewatch: loss 2.09 to 1.79 at step 20, 1.68 to 1.84 from there to the end; rate 0.05, 5e-4 at step 20, 5e-6 at step 40, 5e-20 at step 180.
Cause: learning_rate (optimizer). Step: 10 to 80. Right: scheduler / per epoch / learning rate. Wrong: lower the learning rate, GradScaler."""
EXPECT = {"cause": ["learning_rate", "optimizer"], "step": [0, 90], "place": None, "rank": None,
          "right": "(?i)schedul|learning.?rate|\\blr\\b|epoch", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(11); torch.set_num_threads(1)


class Residual(nn.Module):
    def __init__(self, c_in, c_out, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False), nn.BatchNorm2d(c_out)
        self.conv2, self.bn2 = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False), nn.BatchNorm2d(c_out)
        self.short = nn.Conv2d(c_in, c_out, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.short(x))


class TinyResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, 1, 1)
        self.layer1, self.layer2, self.layer3 = Residual(12, 12, 1), Residual(12, 24, 2), Residual(24, 32, 2)
        self.fc = nn.Linear(32, 8)

    def forward(self, x):
        return self.fc(self.layer3(self.layer2(self.layer1(self.stem(x)))).mean((2, 3)))


grid = torch.stack(torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij"))
angles = torch.arange(8) * 3.14159 / 8


def make_set(n):
    y = torch.randint(0, 8, (n,))
    a, f = angles[y] + 0.12 * torch.randn(n), 0.7 + 0.5 * torch.rand(n)
    phase = 6.28 * torch.rand(n)
    wave = torch.sin(f.view(-1, 1, 1) * (grid[0] * a.cos().view(-1, 1, 1) + grid[1] * a.sin().view(-1, 1, 1)) + phase.view(-1, 1, 1))
    return wave[:, None] * torch.rand(n, 3, 1, 1) + 0.6 * torch.randn(n, 3, 16, 16), y


images, labels = make_set(800)
model = TinyResNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.1)
handle = rangewatch.attach(model, optimizer)
step = 0
for epoch in range(8):
    model.train()
    for idx in torch.randperm(800).split(32):
        loss = F.cross_entropy(model(images[idx]), labels[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        handle.log(loss=loss.item())
        if step % 20 == 0:
            print(epoch, step, loss.item(), optimizer.param_groups[0]["lr"], flush=True)
        step += 1
print(step, loss.item())
handle.detach()
