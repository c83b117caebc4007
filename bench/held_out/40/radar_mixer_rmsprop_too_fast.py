"""Crop types in small radar patches (4 polarisations, 8 x 8 pixels) by an MLP-Mixer, RMSprop.
FAULT at step 0: lr=0.2 for RMSprop on a network with normalisation layers and residuals; every weight moves by some 0.2 a step (2.0 in the first), far more than the net bears.
Without Rangewatch: loss 1.6 at step 0, 124 to 314 in the next three steps, then back to 1.6 (chance is 1.61) till step 150; 0.9 with 60 % right at the end.
Cause: learning_rate (too large). Step: from 0. Right: lower the learning rate, warm up. Wrong: raise the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 60], "place": None, "rank": None,
          "right": r"(?i)learning rate|\blr\b|warm.?up|step size|update", "wrong": [r"(?i)(raise|increase) the learning rate", "GradScaler", r"(?i)attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(77)
torch.set_num_threads(1)
CROPS, BANDS, SIDE, PATCH = 5, 4, 8, 2
means = torch.randn(CROPS, BANDS, 1, 1)
textures = torch.randn(CROPS, BANDS, SIDE, SIDE)


class MixerBlock(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.norm_a, self.norm_b = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.token_mlp = nn.Sequential(nn.Linear(tokens, 32), nn.GELU(), nn.Linear(32, tokens))
        self.channel_mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.token_mlp(self.norm_a(x).mT).mT
        return x + self.channel_mlp(self.norm_b(x))


class Mixer(nn.Module):
    def __init__(self, dim=32, depth=4):
        super().__init__()
        self.patches = nn.Conv2d(BANDS, dim, PATCH, stride=PATCH)
        self.blocks = nn.Sequential(*[MixerBlock((SIDE // PATCH) ** 2, dim) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.crop = nn.Linear(dim, CROPS)

    def forward(self, x):
        x = self.patches(x).flatten(2).mT
        return self.crop(self.norm(self.blocks(x)).mean(1))


def patch_batch(n):
    y = torch.randint(0, CROPS, (n,))
    gain = torch.randn(n, 1, 1, 1)
    return 0.2 * means[y] + 0.6 * gain * textures[y] + 0.8 * torch.randn(n, BANDS, SIDE, SIDE), y


model = Mixer()
optimizer = torch.optim.RMSprop(model.parameters(), lr=0.2)
watch = rangewatch.attach(model, optimizer)
running = None
for it in range(250):
    x, y = patch_batch(64)
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    running = loss.item() if running is None else 0.9 * running + 0.1 * loss.item()
    if it % 25 == 0 or it < 4:
        print(f"it {it}: loss {loss.item():.3f} (smoothed {running:.3f}) acc {(logits.argmax(1) == y).float().mean():.2f}", flush=True)
watch.detach()
