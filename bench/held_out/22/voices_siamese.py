"""A Siamese net puts two recordings of one speaker close and of two speakers far apart; the distance is sqrt(sum of squares), the loss is contrastive.
FAULT at step 126: one pair of the batch is a recording with itself. The distance is 0, forward all is well, but the derivative of the root at 0
is infinite, times 0 it is NaN: all gradients are NaN, then all weights.
Without Rangewatch: loss 0.72 to 0.126 at step 125, still 0.103 at step 126, NaN from step 127 on.
Causes: backward_arithmetic (the root at zero), eps. Right: an epsilon under the root / clamp / the derivative of sqrt. Wrong: rate, GradScaler, mask."""
EXPECT = {"cause": ["backward_arithmetic", "eps"], "step": [125, 127], "place": None, "rank": 0,
          "right": "(?i)sqrt|root|eps|norm|backward|clamp|divi", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2211); torch.set_num_threads(1)
speakers = torch.randn(60, 20)
mixing = torch.randn(40, 40) / 6


class Voice(nn.Module):
    def __init__(self):
        super().__init__()
        self.ear = nn.Linear(40, 80)
        self.norm = nn.LayerNorm(80)
        self.mark = nn.Linear(80, 12)

    def forward(self, x):
        return self.mark(torch.nn.functional.softplus(self.norm(self.ear(x))))


def record(who):
    return torch.tanh(torch.cat((speakers[who], 0.8 * torch.randn(who.shape[0], 20)), 1) @ mixing)


model = Voice()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    who = torch.randint(0, 60, (96,))
    same = torch.rand(96) < 0.5
    other = torch.where(same, who, (who + torch.randint(1, 60, (96,))) % 60)
    a, b = record(who), record(other)
    if step == 126:
        same[30], b[30] = True, a[30]
    distance = (model(a) - model(b)).pow(2).sum(1).sqrt()
    loss = torch.where(same, distance.square(), torch.relu(2.0 - distance).square()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or step in (125, 126, 127, 179):
        print(step, loss.item(), flush=True)
handle.detach()
