"""A siamese 1-d convnet compares pen strokes by the contrastive loss, NAdam; the distance is the square root of a sum of squares. FAULT at step 130: from then on the pair sampler may draw the very same
stroke twice as a positive pair (the augmentation was switched off for the last phase): the distance is exactly 0, the loss is fine and the gradient of sqrt at 0 times 0 is NaN.
Without Rangewatch: loss 1.45 to 0.07 at step 129, 0.030 at step 130 (smallest distance 0), NaN from 131 on.
Cause: backward_arithmetic. Step: 130. Right: sqrt / eps under the root. Wrong: lower the learning rate, GradScaler."""
EXPECT = {"cause": ["backward_arithmetic"], "step": [129, 135], "place": None, "rank": None,
          "right": "(?i)sqrt|root|eps|norm|distance|derivative|clamp", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(406); torch.set_num_threads(1)
WRITERS, EACH, LEN = 12, 6, 32
base = F.interpolate(torch.randn(WRITERS, 2, 8), size=LEN, mode="linear")
strokes = base[:, None] + 0.4 * torch.randn(WRITERS, EACH, 2, LEN)


def pairs(n, augment):
    a = torch.randint(0, WRITERS, (n,))
    same = torch.rand(n) < 0.5
    b = torch.where(same, a, (a + torch.randint(1, WRITERS, (n,))) % WRITERS)
    xa, xb = strokes[a, torch.randint(0, EACH, (n,))], strokes[b, torch.randint(0, EACH, (n,))]
    if augment:
        xa, xb = xa + 0.1 * torch.randn_like(xa), xb + 0.1 * torch.randn_like(xb)
    return xa, xb, same.float()


class Strokes(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(2, 16, 5, stride=2), nn.SiLU(), nn.Conv1d(16, 24, 5, stride=2), nn.SiLU())
        self.out = nn.Linear(24 * 5, 16)

    def forward(self, x):
        return self.out(self.conv(x).flatten(1))


model = Strokes()
optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    xa, xb, same = pairs(32, augment=step < 130)
    both = model(torch.cat([xa, xb]))
    dist = ((both[:32] - both[32:]) ** 2).sum(1).sqrt()
    loss = (same * dist ** 2 + (1 - same) * F.relu(2.0 - dist) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 128 < step < 134:
        print(step, loss.item(), "smallest distance", dist.min().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
