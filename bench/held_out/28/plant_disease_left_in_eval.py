"""A conv net with batch norm and dropout for leaves, with a validation each 50 steps. FAULT at step 50: `validate` calls model.eval() and the loop calls model.train() only once, before it: from
step 50 on the net trains in eval mode, with running statistics that stay those of the first steps and no dropout.
Without Rangewatch: loss 1.65 to 1.37 at step 49, 10.9 at step 50, 3.4 at step 53, 1.66 at step 60, 1.33 at step 180; model.training is False from step 50 on.
Cause: eval. Step: 50. Right: model.train() / eval mode. Wrong: lower the learning rate, GradScaler."""
EXPECT = {"cause": ["eval"], "step": [49, 60], "place": None, "rank": None,
          "right": "(?i)\\.train\\(|eval|train mode|running|batch.?norm|dropout", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(415); torch.set_num_threads(1)


class Leaf(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2), nn.BatchNorm2d(16, momentum=0.01), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.BatchNorm2d(32, momentum=0.01), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.drop, self.fc = nn.Dropout(0.3), nn.Linear(128, 5)

    def forward(self, x):
        return self.fc(self.drop(self.features(x)))


patterns = torch.randn(5, 3, 4, 4)


def leaves(n):
    y = torch.randint(0, 5, (n,))
    x = 3 + 0.7 * torch.randn(n, 3, 16, 16)
    for i in range(n):
        r, c = torch.randint(0, 12, (2,)).tolist()
        x[i, :, r:r + 4, c:c + 4] += 2.5 * patterns[y[i]]
    return x, y


@torch.no_grad()
def validate(model):
    model.eval()
    losses = [F.cross_entropy(model(x), y).item() for x, y in (leaves(32) for _ in range(3))]
    return sum(losses) / 3


model = Leaf()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
model.train()
for step in range(200):
    if step % 50 == 0 and step:
        print("val", validate(model))
    x, y = leaves(32)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 48 < step < 54:
        print(step, loss.item(), model.training, flush=True)
    handle.log(loss=loss.item())
handle.detach()
