"""A recommender (two embeddings and an MLP) that predicts ratings; the last layer has a ReLU because ratings are not negative, but the targets were
standardised. FAULT at step 1: large steps of SGD push the output below zero for every pair, the ReLU gives 0 for all and no gradient flows any
more: the loss stays at the variance of the ratings.
Without Rangewatch: no prediction is above zero from step 1 on; the loss is 0.75 to 1.3 without a trend.
Report: ProteomicsML/ProteomicsML#203 (ReLU on the final regression layer: constant 0), keras-team/keras#3687 (predictions all zero),
jvargasmu/population_estimation#68.
Cause: dead_units (or no_gradient). Step: 1, or later when it is sure. Right: ReLU / dead / activation / output / gradient zero. Wrong: GradScaler,
mask, bfloat16."""
EXPECT = {"cause": ["dead_units", "no_gradient"], "step": [0, 120], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "ReLU|dead|activation|negative|zero|no gradient|initiali|learning rate|output"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(716); torch.set_num_threads(1)
USERS, ITEMS = 300, 200
taste, kind = torch.randn(USERS, 6), torch.randn(ITEMS, 6)


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(USERS, 16), nn.Embedding(ITEMS, 16)
        self.hidden = nn.Linear(32, 48)
        self.rating = nn.Linear(48, 1)

    def forward(self, u, i):
        h = F.relu(self.hidden(torch.cat([self.users(u), self.items(i)], 1)))
        return F.relu(self.rating(h)).squeeze(-1)


model = Recommender()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(260):
    u, i = torch.randint(0, USERS, (128,)), torch.randint(0, ITEMS, (128,))
    stars = ((taste[u] * kind[i]).sum(1) / 2.45 - 0.3)  # standardised; a little below 0 in this season
    predicted = model(u, i)
    loss = F.mse_loss(predicted, stars)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step < 20:
        print(step, loss.item(), "above zero", (predicted > 0).float().mean().item(), flush=True)
handle.detach()
