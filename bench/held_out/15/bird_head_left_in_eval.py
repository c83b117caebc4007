"""A head with BatchNorm and Dropout for birds by their song, on a frozen body that stays in eval by plan. FAULT from step 80 on: after the first test only the
body is set (to eval, as ever) and the head is left in eval: no dropout, and the running numbers stand.
Without Rangewatch: loss 2.28 to 0.26 at step 79, 0.48 at step 80, 0.07 to 0.30 to the end, lower than it should be: nothing to see.
Cause: eval. Step: 80. Place: head. Right: eval / train() / dropout / BatchNorm. Wrong: GradScaler, mask, lower the learning rate."""
EXPECT = {"cause": ["eval"], "step": [79, 130], "place": ".*(head).*", "rank": 0,
          "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"],
          "right": "eval|train\\(\\)|training mode|dropout|[Bb]atch ?[Nn]orm|running"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1515); torch.set_num_threads(1)
BIRDS = 8
time = torch.arange(160) / 160
song = 6 + 24 * torch.rand(BIRDS, 2)


class BirdNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(1, 24, 9, stride=2), nn.BatchNorm1d(24), nn.ReLU(), nn.Conv1d(24, 48, 7, stride=3), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(96, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.4), nn.Linear(64, BIRDS))
        self.body.requires_grad_(False)  # as it came

    def train(self, mode=True):
        super().train(mode)
        self.body.eval()
        return self

    def forward(self, x):
        h = self.body(x[:, None])
        return self.head(torch.cat((h.mean(2), h.amax(2)), 1))


def songs(n):
    y = torch.randint(0, BIRDS, (n,))
    phase = 6.2832 * torch.rand(n, 2, 1)
    tone = torch.sin(6.2832 * song[y][:, :, None] * time + phase)
    return tone.sum(1) * (0.6 + 0.8 * torch.rand(n, 1)) + 0.5 * torch.randn(n, 160), y


model = BirdNet().train()
optimizer = torch.optim.Adam(model.head.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    if step == 80:  # the first test on held-out songs
        model.eval()
        with torch.no_grad():
            x, y = songs(128)
            print("held out", (model(x).argmax(1) == y).float().mean().item(), flush=True)
        model.body.train(False)  # was meant to be model.train()
    x, y = songs(48)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (79, 81, 219):
        print(step, loss.item(), "head trains", model.head.training, flush=True)
    handle.log(loss=loss.item())
handle.detach()
