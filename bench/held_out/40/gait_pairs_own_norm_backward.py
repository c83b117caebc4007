"""Who walks there? Siamese network on windows of an accelerometer; the Euclidean distance of the two codes is a hand-written autograd.Function ("saves memory"), contrastive loss, AdamW.
FAULT at step 96: one pair holds the same window twice; the distance is 0, the forward is well, but the hand-written backward divides by the distance: 0/0 = NaN in the gradient of the codes.
Without Rangewatch: loss 0.58 to 0.16 at step 75; the loss of step 96 itself is 0.13, at 97 it is NaN and ever after.
Cause: backward_arithmetic (own backward divides by zero) / data (the pair of equal windows). Step: 96. Right: eps in the backward or in the distance, leave out equal pairs. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["backward_arithmetic", "data"], "step": [96, 98], "place": None, "rank": None,
          "right": r"(?i)backward|autograd|eps|divi|distance|zero|duplicate|pair", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)attention mask"]}
import torch
from torch import nn
import rangewatch


class PairDistance(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        diff = a - b
        dist = diff.pow(2).sum(1).sqrt()
        ctx.save_for_backward(diff, dist)
        return dist

    @staticmethod
    def backward(ctx, g):
        diff, dist = ctx.saved_tensors
        unit = diff / dist[:, None]
        return g[:, None] * unit, -g[:, None] * unit


class GaitEncoder(nn.Module):
    def __init__(self, width=24, code=12):
        super().__init__()
        self.front = nn.Conv1d(3, width, 7, stride=2)
        self.back = nn.Conv1d(width, width, 5, stride=2)
        self.code = nn.Linear(width, code)

    def forward(self, x):
        h = torch.tanh(self.front(x))
        h = torch.tanh(self.back(h))
        return self.code(h.mean(2))


class Walkers:
    def __init__(self, people=10):
        self.freq = 0.15 + 0.5 * torch.rand(people, 3)
        self.amp = 0.5 + torch.rand(people, 3)

    def window(self, who):
        t = torch.arange(64.)[None, None]
        ph = 6.28 * torch.rand(len(who), 1, 1)
        return self.amp[who][:, :, None] * torch.sin(self.freq[who][:, :, None] * t + ph) + 0.1 * torch.randn(len(who), 3, 64)

    def pairs(self, n):
        a = torch.randint(0, 10, (n,))
        b = torch.where(torch.rand(n) < 0.5, a, torch.randint(0, 10, (n,)))
        return self.window(a), self.window(b), (a == b).float()


def main():
    torch.manual_seed(2020); torch.set_num_threads(1)
    walkers, encoder = Walkers(), GaitEncoder()
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=3e-3)
    handle = rangewatch.attach(encoder, optimizer)
    for step in range(200):
        left, right, same = walkers.pairs(48)
        if step == 96:
            right[7], same[7] = left[7], 1.0
        d = PairDistance.apply(encoder(left), encoder(right))
        loss = (same * d + (1 - same) * torch.relu(1.5 - d)).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        handle.log(loss=loss.item())
        if step % 25 == 0 or 94 < step < 99:
            print(f"[{step:03d}] loss={loss.item():.4f}", flush=True)
    handle.detach()


if __name__ == "__main__":
    main()
