"""A convnet sorts leaf photos into five kinds (SGD with momentum). FAULT from step 0: the loader gives bytes 0..255 as floats, the division by 255 and the normalising were forgotten.
Without Rangewatch: loss 2.3, 76 at step 1, 143 at step 3, then 1.60 = log 5 to the end (scaled: 0.007).
Cause: data. Step: 0. Right: input / normalise / scale / 255. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["data"], "step": [0, 6], "place": None, "rank": None,
          "right": "(?i)input|normali|standardi|scal|255|preproc|data", "wrong": ["GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(345); torch.set_num_threads(1)
yy, xx = torch.meshgrid(torch.linspace(-1, 1, 20), torch.linspace(-1, 1, 20), indexing="ij")


class Leaves(torch.utils.data.Dataset):
    def __init__(self, n):
        self.y = torch.randint(0, 5, (n,))
        self.width = 0.25 + 0.15 * self.y.float() + 0.03 * torch.randn(n)
        self.light = 90 + 60 * torch.rand(n)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        leaf = ((xx / self.width[i]) ** 2 + yy ** 2 < 0.9).float()
        g = 60 + self.light[i] * leaf
        img = torch.stack([0.5 * g, g, 0.3 * g]) + 12 * torch.randn(3, 20, 20)
        return img.clamp(0, 255).to(torch.uint8), self.y[i]


loader = torch.utils.data.DataLoader(Leaves(960), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
                      nn.Flatten(), nn.Linear(32 * 25, 64), nn.ReLU(), nn.Linear(64, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
step = 0
for epoch in range(6):
    for img, y in loader:
        loss = nn.functional.cross_entropy(model(img.float()), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step < 6 or step == 179:
            print(step, loss.item(), flush=True)
        handle.log(loss=loss.item())
        step += 1
handle.detach()
