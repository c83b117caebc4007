"""Spoken keywords (ten synthetic chirp words, 1-d convolutions over 40 frames of 16 bands), Adam.
FAULT at step 0: forward() ends in softmax and nn.CrossEntropyLoss applies log_softmax again; the loss cannot go below 1.46 and gradients of wrong, confident answers vanish.
Without Rangewatch: loss 2.30, 1.63 at step 90, 1.50 to 1.56 from 150 on and never lower, though the accuracy is 0.92 to 0.98.
Cause: forward_arithmetic (softmax applied twice). Step: from 0. Right: return logits, drop the softmax. Wrong: GradScaler, clip, padding mask."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [0, 299], "place": None, "rank": None, "least": "info",
          "right": r"(?i)softmax|logits|probabilit", "wrong": ["GradScaler", r"(?i)clip (the )?grad", r"(?i)padding mask"]}
import math
import torch
from torch import nn
import rangewatch

torch.manual_seed(77)
torch.set_num_threads(1)
WORDS, BANDS, FRAMES = 10, 16, 40
centre = torch.rand(WORDS, 3) * BANDS
slope = torch.randn(WORDS, 3) * 4


def say(words):
    t = torch.linspace(0, 1, FRAMES)
    f = torch.arange(BANDS).float()
    track = centre[words][:, :, None] + slope[words][:, :, None] * (t - 0.5) + torch.randn(len(words), 1, 1)
    energy = torch.exp(-0.5 * (f[None, None, :, None] - track[:, :, None, :]) ** 2).sum(1)
    return energy + 0.35 * torch.randn_like(energy)


class KeywordNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(BANDS, 32, 5, stride=2, padding=2), nn.ReLU(),
            nn.Conv1d(32, 48, 5, stride=2, padding=2), nn.ReLU(),
            nn.AdaptiveAvgPool1d(2), nn.Flatten())
        self.classifier = nn.Linear(96, WORDS)
        self.softmax = nn.Softmax(dim=1)

    def forward(self, x):
        return self.softmax(self.classifier(self.features(x)))


net = KeywordNet()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
handle = rangewatch.attach(net, optimizer)

for step in range(300):
    target = torch.randint(0, WORDS, (48,))
    outputs = net(say(target))
    loss = criterion(outputs, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 0 or step == 299:
        acc = (outputs.argmax(1) == target).float().mean().item()
        print(f"step {step:4d}  loss {loss.item():.4f}  acc {acc:.2f}", flush=True)
