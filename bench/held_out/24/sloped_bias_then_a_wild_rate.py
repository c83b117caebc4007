"""A decoder over notes of a melody with linear distance biases (ALiBi: -inf above the diagonal, slopes below) added to the scores; sound from the start. FAULT at step 115: the
rate of SGD is set to 60 (meant as 0.6): the gradients explode and the loss leaves the scale; the mask before them is innocent.
Without Rangewatch: loss 3.4 to 1.3 at step 115, 358,989 at step 116, NaN from step 117 on.
Cause: learning_rate. Step: 115. Right: learning rate / clip. Wrong: mask, GradScaler."""
EXPECT = {"cause": ["learning_rate"], "step": [114, 122], "place": None, "rank": 0,
          "right": "(?i)learning rate|\\blr\\b|clip", "wrong": ["(?i)attention mask", "GradScaler"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2419); torch.set_num_threads(1)
T, H = 16, 4
gap = torch.arange(T)[:, None] - torch.arange(T)
bias = torch.where(gap >= 0, -gap * 2.0 ** -torch.arange(1.0, H + 1)[:, None, None], float("-inf"))


class Layer(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.pre, self.qkv, self.join = nn.LayerNorm(w), nn.Linear(w, 3 * w), nn.Linear(w, w)
        self.up, self.down = nn.Linear(w, 2 * w), nn.Linear(2 * w, w)

    def forward(self, h):
        q, k, v = self.qkv(self.pre(h)).unflatten(2, (3, H, -1)).permute(2, 0, 3, 1, 4)
        a = (q @ k.transpose(2, 3) / q.shape[3] ** 0.5 + bias).softmax(3) @ v
        h = h + self.join(a.transpose(1, 2).flatten(2))
        return h + self.down(F.gelu(self.up(h)))


class Melody(nn.Module):
    def __init__(self, w=48):
        super().__init__()
        self.note = nn.Embedding(24, w)
        self.layers = nn.Sequential(Layer(w), Layer(w))
        self.next = nn.Linear(w, 24)

    def forward(self, x):
        return self.next(self.layers(self.note(x)))


def melodies(n):
    start, jump, turn = torch.randint(0, 24, (n, 1)), torch.randint(1, 6, (n, 1)), torch.randint(2, 5, (n, 1))
    t = torch.arange(T + 1)
    return (start + t * jump + (t % turn)) % 24


model = Melody()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.8)
handle = rangewatch.attach(model, optimizer)
for step in range(170):
    if step == 115:
        optimizer.param_groups[0]["lr"] = 60.0
    x = melodies(24)
    loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 15 == 0 or 113 < step < 120 or step == 169:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
