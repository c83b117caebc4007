"""A small transformer of melodies whose attention sees six notes back, by a mask of -inf and a learned bias of nearness. FAULT at step 110: the second phase
has a rate of 40 in place of 0.04; the gradients explode. The -inf of the mask are as they should be.
Without Rangewatch: loss 2.73 to 0.74 at step 110 (gradient norm 0.24), 26 at step 111 (norm 29), 1.2e9 at step 112 (norm 1.4e8), NaN from step 113 on.
Cause: learning_rate. Step: 110. Right: learning rate / explode. Wrong: attention mask, GradScaler, bfloat16."""
EXPECT = {"cause": ["learning_rate"], "step": [110, 114], "place": None, "rank": 0,
          "wrong": ["attention mask", "GradScaler", "fully masked", "bfloat16"],
          "right": "learning rate|rate|lr|explod|gradient norm|clip"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1509); torch.set_num_threads(1)
T, LETTERS = 24, 12
answer = torch.randperm(LETTERS)


class WindowBlock(nn.Module):
    def __init__(self, width=32, window=6):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))
        gap = torch.arange(T)[:, None] - torch.arange(T)
        self.register_buffer("outside", torch.where((gap < 0) | (gap >= window), -torch.inf, 0.0))
        self.register_buffer("gap", gap.clamp(0, window - 1))
        self.nearness = nn.Parameter(torch.zeros(window))

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, 2)
        scores = q @ k.transpose(1, 2) / q.shape[2] ** 0.5 + self.nearness[self.gap] + self.outside
        x = x + self.out(scores.softmax(2) @ v)
        return x + self.mlp(self.norm2(x))


class Melody(nn.Module):
    def __init__(self):
        super().__init__()
        self.note, self.blocks, self.next = nn.Embedding(LETTERS, 32), nn.Sequential(WindowBlock(), WindowBlock()), nn.Linear(32, LETTERS)

    def forward(self, x):
        return self.next(self.blocks(self.note(x)))


def melodies(n):
    x = torch.randint(0, LETTERS, (n, T + 1))
    for t in range(3, T + 1):
        x[:, t] = torch.where(torch.rand(n) < 0.9, answer[x[:, t - 3]], x[:, t])
    return x[:, :-1], x[:, 1:]


model = Melody()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    if step == 110:
        optimizer.param_groups[0]["lr"] = 40.0  # the second phase wants 0.04; its file gives the rate in thousandths
    x, y = melodies(24)
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 108 < step < 116 or step == 199:
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm().item()
        print(step, loss.item(), "gradient norm", norm, flush=True)
    handle.log(loss=loss.item())
handle.detach()
