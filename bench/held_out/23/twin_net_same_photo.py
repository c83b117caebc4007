"""A siamese net with the contrastive loss of pairs: the distance of two embeddings is the root of the sum of squares. FAULT at step 130: a pair holds the
same photo twice; the distance is 0 and the derivative of the root there is 1/0, times 0 is NaN. The loss of this step is a fine number.
Without Rangewatch: loss 0.78 to 0.11 at step 129, 0.13 at step 130, NaN from step 131 on.
Causes: backward_arithmetic (root at 0), data (the doubled photo). Right: sqrt / distance / epsilon / zero / backward. Wrong: lower the rate, GradScaler, mask."""
EXPECT = {"cause": ["backward_arithmetic", "data"], "step": [129, 131], "place": None, "rank": 0,
          "right": "(?i)sqrt|root|norm|eps|zero|backward|divi|distance", "wrong": ["GradScaler", "[Ll]ower the learning rate", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2316); torch.set_num_threads(1)
faces = torch.randn(30, 1, 14, 14)


class Twin(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 12, 3, 2), nn.PReLU(), nn.Conv2d(12, 24, 3, 2), nn.PReLU(), nn.Flatten())
        self.embed = nn.Linear(24 * 4, 16)

    def forward(self, a, b):
        return ((self.embed(self.body(a)) - self.embed(self.body(b))) ** 2).sum(1).sqrt()


model = Twin()
optimizer = torch.optim.Adamax(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    who = torch.randint(0, 30, (48,))
    same = torch.rand(48) < 0.5
    other = torch.where(same, who, (who + torch.randint(1, 30, (48,))) % 30)
    a, b = faces[who] + 0.5 * torch.randn(48, 1, 14, 14), faces[other] + 0.5 * torch.randn(48, 1, 14, 14)
    if step == 130:
        b[31], same[31] = a[31], True
    d = model(a, b)
    loss = torch.where(same, d ** 2, F.relu(2.0 - d) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 128 < step < 133:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
