"""Tabular regression of a claim's cost from twelve numbers by a self-normalising perceptron (SELU), Adadelta, hand-written pseudo-Huber loss.
FAULT at step 0: the net's output is squeezed to a row (64,), the target is a column (64, 1); their difference is a 64 by 64 table and each prediction is pulled to all targets: the net learns the targets' middle and nothing else.
Without Rangewatch: loss 0.7 to 1.2 from step 50 on without a trend, the guesses' spread stays at 0.03 (with one shape for both: loss 0.07, spread 2.0).
Cause: loss (shapes broadcast). Step: from 0. Right: give both the same shape. Wrong: lower or raise the learning rate, GradScaler, more capacity, data."""
EXPECT = {"cause": ["loss"], "step": [0, 150], "place": None, "rank": None, "least": "info",
          "right": r"(?i)shape|broadcast|squeeze|column|row", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask", "initialis"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(3715); torch.set_num_threads(1)
true = torch.randn(12, 1) / 12 ** 0.5


def claims(n=64):
    facts = torch.randn(n, 12)
    cost = 2 * (facts @ true) + facts[:, :1] * facts[:, 1:2] + 0.1 * torch.randn(n, 1)
    return facts, cost


class Assessor(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(12, 48), nn.SELU(), nn.Linear(48, 48), nn.SELU())
        self.cost = nn.Linear(48, 1)

    def forward(self, facts):
        return self.cost(self.hidden(facts)).squeeze(-1)


def pseudo_huber(guess, truth, knee=1.0):
    return (knee ** 2 * ((1 + ((guess - truth) / knee) ** 2).sqrt() - 1)).mean()


model = Assessor()
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
handle = rangewatch.attach(model, optimizer)
for step in range(300):
    facts, cost = claims()
    guess = model(facts)
    loss = pseudo_huber(guess, cost)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0 or step == 299:
        print(step, f"loss {loss.item():.4f} off by {(guess - cost[:, 0]).abs().mean().item():.3f} spread of guesses {guess.std().item():.3f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
