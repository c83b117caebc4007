"""A bidirectional GRU judges made-up reviews (NAdam). FAULT from the first steps on: `StepLR(step_size=10, gamma=0.3)` was meant in epochs, but `scheduler.step()` stands in the batch loop:
the rate is 1e-8 of the first after 150 steps, 0.8 % after 40; learning stops early.
Without Rangewatch: loss 0.67 to 0.51 at step 20, then 0.5 to 0.65 to the end (rate held: 0.26).
Cause: learning_rate (a scheduler's place: optimizer). Step: 10 on; shows slowly. Right: learning rate / scheduler / epoch. Wrong: GradScaler, mask, lower the learning rate."""
EXPECT = {"cause": ["learning_rate", "optimizer"], "step": [9, 180], "place": None, "rank": None,
          "right": "(?i)schedul|learning rate|lr|epoch", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(349); torch.set_num_threads(1)
V = 60
tone = torch.randn(V)
tone[:6] = 0.0


def reviews(n):
    x = torch.randint(6, V, (n, 14))
    neg = torch.rand(n, 14) < 0.15
    x = torch.where(neg, torch.randint(0, 3, (n, 14)), x)
    flip = torch.where(x < 3, -1.0, 1.0)
    sign = torch.cat([torch.ones(n, 1), flip[:, :-1]], 1)
    return x, ((tone[x] * sign).sum(1) > 0).float()


class Judge(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(V, 24)
        self.gru = nn.GRU(24, 32, batch_first=True, bidirectional=True)
        self.verdict = nn.Linear(64, 1)

    def forward(self, x):
        return self.verdict(self.gru(self.words(x))[0].mean(1))[:, 0]


model = Judge()
optimizer = torch.optim.NAdam(model.parameters(), lr=4e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    x, y = reviews(64)
    loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), "rate", scheduler.get_last_lr()[0], flush=True)
    handle.log(loss=loss.item())
handle.detach()
