"""A tagger of letters (embedding, convolution, two linear layers) is trained on one rule, then LoRA adapters of rank 4 are tuned on another, by SGD with momentum and the mean over the 32 x 10 letters. FAULT at step 120: the second corpus is tuned with
`reduction="sum"` at the same rate: the gradients are 320 times as large.
Without Rangewatch: loss 10.7 to 0.0098 at step 119; 2.07 at 120 (a sum), 11.7 at 121, 15 469 at 122, 6.6e11 at 123, NaN at 125.
Cause: forward_arithmetic (the loss: sum for mean) or learning_rate. Step: 120. Right: sum / mean / reduction / rate / clip. Wrong: mask, corrupt input, GradScaler."""
EXPECT = {"cause": ["forward_arithmetic", "learning_rate"], "step": [119, 126], "place": None, "rank": None,
          "right": "(?i)sum|mean|reduction|rate|lr|clip|loss", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(125); torch.set_num_threads(1)
V, W, T = 12, 32, 10


class Lora(nn.Module):
    def __init__(self, base, r=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(r, base.in_features) / base.in_features ** 0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, r))

    def forward(self, x):
        return self.base(x) + 2 * x @ self.a.T @ self.b.T


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters, self.conv = nn.Embedding(V, W), nn.Conv1d(W, W, 3, padding=1)
        self.l1, self.l2 = nn.Linear(W, W), nn.Linear(W, 5)

    def forward(self, x):
        h = self.conv(self.letters(x).transpose(1, 2)).transpose(1, 2)
        return self.l2(F.silu(self.l1(F.silu(h)))).flatten(0, 1)


def letters(rule):
    x = torch.randint(0, V, (32, T))
    return x, ((x + rule * (x // 3)) % 5).flatten()


net = Tagger()
first = torch.optim.Adam(net.parameters(), lr=3e-3)
for _ in range(80):
    x, y = letters(0)
    first.zero_grad(); F.cross_entropy(net(x), y).backward(); first.step()
net.requires_grad_(False)
net.l1, net.l2 = Lora(net.l1), Lora(net.l2)
optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.01, momentum=0.9)
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    x, y = letters(1)
    loss = F.cross_entropy(net(x), y, reduction="mean" if step < 120 else "sum")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 118 < step < 126:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
