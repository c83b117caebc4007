"""A matrix factorisation with an MLP on ratings, Adam. FAULT from step 0 on: the settings give the betas as decay rates of second and first moment,
so that betas is (0.999, 0.9): the direction is a mean over a thousand steps, the scale one over ten. The loss swings and comes down late.
Without Rangewatch: loss 1.3 to 0.85 at step 60, 0.40 at step 200, 0.26 at the end; with (0.9, 0.999) it is 0.03.
Report: mila-iqia/blocks#1159 (Adam's betas the other way round), Lightning-AI/pytorch-lightning#4714 (betas mixed up in the help).
Cause: optimizer. Step: 0, or later when it is sure. Right: beta / Adam / optimizer / momentum. Wrong: GradScaler, mask, bfloat16."""
EXPECT = {"cause": ["optimizer"], "step": [0, 150], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "beta|Adam|optimi[sz]er|momentum"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(815); torch.set_num_threads(1)
USERS, ITEMS = 60, 40
taste, kind = torch.randn(USERS, 5), torch.randn(ITEMS, 5)
config = {"lr": 1e-2, "beta_slow": 0.999, "beta_fast": 0.9}


class Ratings(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(USERS, 16), nn.Embedding(ITEMS, 16)
        self.mlp = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, u, i):
        u, i = self.users(u), self.items(i)
        return self.mlp(torch.cat([u, i, u * i], 1)).squeeze(1)


model = Ratings()
optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"], betas=(config["beta_slow"], config["beta_fast"]))
handle = rangewatch.attach(model, optimizer)
for step in range(300):
    u, i = torch.randint(0, USERS, (256,)), torch.randint(0, ITEMS, (256,))
    loss = F.mse_loss(model(u, i), (taste[u] * kind[i]).sum(1) / 2.2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0:
        print(step, loss.item(), flush=True)
handle.detach()
