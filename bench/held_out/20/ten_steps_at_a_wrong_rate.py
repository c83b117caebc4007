"""A siamese net that says whether two signatures are of one hand (contrastive loss). FAULT at steps 100 to 109: somebody tries a rate by hand in a
callback and types 0.3 for 0.001; after ten steps it is put right, but the net is in ruins.
Without Rangewatch: loss 0.29 at step 99, 1.05 at step 101, 181 at step 104, 28,859 at step 109, 1,211 at the end; without the fault 0.21.
Cause: learning_rate. Step: 100. Right: learning rate. Wrong: GradScaler, mask, bfloat16."""
EXPECT = {"cause": ["learning_rate"], "step": [99, 105], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "(?i)learning rate|rate|lr"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2030); torch.set_num_threads(1)
hands = torch.randn(40, 24)


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(24, 96), nn.PReLU(), nn.Linear(96, 96), nn.PReLU(), nn.Linear(96, 8))

    def forward(self, a, b):
        return (self.tower(a) - self.tower(b)).square().sum(1).add(1e-6).sqrt()


model = Siamese()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    for group in optimizer.param_groups:
        group["lr"] = 0.3 if 100 <= step < 110 else 1e-3
    one = torch.randint(0, 40, (64,))
    same = torch.rand(64) < 0.5
    two = torch.where(same, one, (one + torch.randint(1, 40, (64,))) % 40)
    apart = model(hands[one] + 0.5 * torch.randn(64, 24), hands[two] + 0.5 * torch.randn(64, 24))
    loss = torch.where(same, apart.square(), F.relu(2 - apart).square()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 98 < step < 113 or step == 219:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
