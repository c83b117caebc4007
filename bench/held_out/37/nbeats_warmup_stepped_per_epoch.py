"""Forecast of a shop's daily sales with an N-BEATS-like stack of backcast/forecast blocks; AdamW with a linear warm-up over 400 steps, 40 batches make an epoch.
FAULT at step 0: `warm.step()` stands at the end of the epoch and not of the batch: after all 360 batches the warm-up has moved nine times and the rate ends at 2.5 % of what was meant.
Without Rangewatch: mean error 1.23 to 0.78 in nine epochs, the rate ends at 5e-5 (stepped per batch: 0.11 and 1.8e-3).
Cause: learning_rate (too small, the scheduler moves once an epoch). Step: slow, from 0. Right: step the scheduler in each batch / the rate is too small. Wrong: lower the learning rate, clip, GradScaler, data."""
EXPECT = {"cause": ["learning_rate", "frozen"], "step": [0, 250], "place": None, "rank": None, "least": "info",
          "right": r"(?i)schedul|warm|(rate|lr).{0,60}(small|low|tiny)|(small|low|tiny|raise).{0,60}(rate|lr|update)", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask", "[Cc]lip the gradient"]}
import math
import torch
from torch import nn
import rangewatch

BACK, AHEAD, PER_EPOCH, EPOCHS, WARM_STEPS = 42, 7, 40, 9, 400


class Piece(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.think = nn.Sequential(nn.Linear(BACK, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.explain = nn.Linear(width, BACK)
        self.foresee = nn.Linear(width, AHEAD)

    def forward(self, past):
        h = self.think(past)
        return past - self.explain(h), self.foresee(h)


class Stack(nn.Module):
    def __init__(self, pieces=3):
        super().__init__()
        self.pieces = nn.ModuleList(Piece() for _ in range(pieces))

    def forward(self, past):
        total = 0
        for piece in self.pieces:
            past, ahead = piece(past)
            total = total + ahead
        return total


def sales(rows):
    day = torch.arange(BACK + AHEAD) + torch.randint(0, 7, (rows, 1))
    week = torch.randn(rows, 1) * torch.sin(2 * math.pi * day / 7) + torch.randn(rows, 1) * torch.cos(2 * math.pi * day / 7)
    drift = 0.03 * torch.randn(rows, 1) * (day - BACK)
    s = 1.5 * week + drift + 0.1 * torch.randn(rows, BACK + AHEAD)
    return s[:, :BACK], s[:, BACK:]


torch.manual_seed(3708); torch.set_num_threads(1)
stack = Stack()
optimizer = torch.optim.AdamW(stack.parameters(), lr=2e-3)
warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda moves: min(1.0, (moves + 1) / WARM_STEPS))
handle = rangewatch.attach(stack, optimizer)
for epoch in range(EPOCHS):
    seen = 0.0
    for _ in range(PER_EPOCH):
        past, future = sales(32)
        loss = nn.functional.l1_loss(stack(past), future)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += loss.item() / PER_EPOCH
        handle.log(loss=loss.item())
    warm.step()
    print(f"epoch {epoch}: mean absolute error {seen:.4f}, lr {optimizer.param_groups[0]['lr']:.2e}", flush=True)
handle.detach()
