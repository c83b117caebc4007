"""A net over sets (a sum of embeddings, DeepSets) estimates the worth of a bag of coins. FAULT at step 0: the net gives a row of n predictions, the targets are a column
of n x 1; the difference is a table of n x n, each prediction is held against each target, and the best answer is the mean for all.
Without Rangewatch: loss 30 to some 4.5 (the variance of the targets) from step 20 on; the guesses have a spread of 0.07, the targets of 2.2 (with equal shapes: loss 0.003). torch warns once.
Causes: data (shape of the targets), forward_arithmetic (broadcast in the loss); that no cause is named is fair too. Right: shapes. Wrong: GradScaler, attention mask, lower the rate."""
EXPECT = {"cause": ["data", "forward_arithmetic", "(none)"], "step": [0, 219], "place": None, "rank": 0, "least": "info",
          "right": "", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2225); torch.set_num_threads(1)
worth = torch.tensor([0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0])


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.coin = nn.EmbeddingBag(8, 48, mode="sum")
        self.rho = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, coins):
        return self.rho(self.coin(coins) / 3).squeeze(1)


model = Bag()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    coins = torch.randint(0, 8, (128, 10))
    target = worth[coins].sum(1, keepdim=True)
    guess = model(coins)
    loss = ((guess - target) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), "spread of the guesses", guess.std().item(), "of the targets", target.std().item(), flush=True)
handle.detach()
