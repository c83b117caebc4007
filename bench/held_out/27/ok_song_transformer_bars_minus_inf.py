"""A transformer over notes; a float mask holds -inf for all later notes and for all bars but this one and the first (AdamW). HEALTHY: most of the mask is -inf on
purpose, no row is masked whole, and one bias for each distance is learned on top.
Without Rangewatch: loss 2.93 to 1.49 (the first bar and the shift of each bar cannot be foretold)."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2733); torch.set_num_threads(1)
LENGTH, BAR, NOTES = 24, 6, 12
k = torch.arange(LENGTH)
seen = (k[None] <= k[:, None]) & ((k[None] // BAR == k[:, None] // BAR) | (k[None] < BAR))
MASK = torch.zeros(LENGTH, LENGTH).masked_fill(~seen, float("-inf"))


def songs(n):
    theme = torch.randint(0, NOTES, (n, BAR))
    shift = torch.randint(0, 3, (n, LENGTH // BAR, 1))
    shift[:, 0] = 0
    song = ((theme[:, None] + shift) % NOTES).flatten(1)
    return song


class Layer(nn.Module):
    def __init__(self, width, heads=2):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.back = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.far = nn.Parameter(torch.zeros(heads, LENGTH))
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        b, n, w = x.shape
        q, key, v = self.qkv(self.n1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        bias = self.far[:, (k[:, None] - k[None]).clamp(min=0)] + MASK
        score = q @ key.transpose(2, 3) / q.shape[-1] ** 0.5 + bias
        x = x + self.back((score.softmax(-1) @ v).transpose(1, 2).reshape(b, n, w))
        return x + self.mlp(self.n2(x))


class Song(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.note, self.place = nn.Embedding(NOTES, width), nn.Embedding(LENGTH, width)
        self.layers = nn.Sequential(Layer(width), Layer(width))
        self.out = nn.Linear(width, NOTES)

    def forward(self, x):
        return self.out(self.layers(self.note(x) + self.place(k)))


net = Song()
optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3, weight_decay=0.01)
handle = rangewatch.attach(net, optimizer)
for step in range(220):
    x = songs(24)
    loss = F.cross_entropy(net(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
