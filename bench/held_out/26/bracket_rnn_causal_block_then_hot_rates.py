"""A small language model of bracket words: one causal attention (its mask is a module that adds -inf, as it should), then a plain tanh-free recurrence with a
learned transition. FAULT at step 104: the second phase of the training multiplies the transition by 1.6 (a `sharpen` meant for the attention's scale):
the gradients through 24 steps of recurrence explode.
Without Rangewatch: loss 1.87 to 1.37 at step 103, 401 at 104 (gradient of the transition 0.24 to 5120), NaN from 105.
Cause: weight (changed outside the optimizer), backward_arithmetic or clip (there is none). Step: 104. Place: the recurrence. Right: explode / clip / weight /
outside. Wrong: the causal mask, GradScaler."""
EXPECT = {"cause": ["weight", "backward_arithmetic", "clip"], "step": [103, 125], "place": None, "rank": None,
          "right": "(?i)explod|clip|outside|overwrit|changed|scale|grow|norm|weight", "wrong": ["GradScaler", "(?i)masks? out (a|the) whole", "(?i)row .{0,30}mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(6106); torch.set_num_threads(1)
LENGTH = 24


class CausalMask(nn.Module):
    def forward(self, scores):
        n = scores.shape[-1]
        return scores + torch.full((n, n), float("-inf")).triu(1)


class Recurrence(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.transition = nn.Parameter(0.8 * torch.linalg.qr(torch.randn(d, d))[0])
        self.inp = nn.Linear(d, d)

    def forward(self, x):
        h, out = torch.zeros_like(x[:, 0]), []
        for k in range(x.shape[1]):
            h = h @ self.transition + self.inp(x[:, k])
            out.append(h)
        return torch.stack(out, 1)


class Brackets(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.token, self.scale = nn.Embedding(6, d), nn.Parameter(torch.tensor(d ** -0.5))
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.mask, self.recur, self.head = CausalMask(), Recurrence(d), nn.Linear(d, 6)

    def forward(self, ids):
        x = self.token(ids)
        a = self.mask(self.q(x) @ self.k(x).transpose(1, 2) * self.scale).softmax(-1)
        return self.head(self.recur(x + a @ self.v(x)))


def words(n):
    rows = []
    for _ in range(n):
        row, stack = [], []
        while len(row) < LENGTH + 1:
            if stack and torch.rand(()) < 0.5:
                row.append(stack.pop() + 3)
            else:
                stack.append(int(torch.randint(0, 3, ())))
                row.append(stack[-1])
        rows.append(row)
    return torch.tensor(rows)


pool = words(600)
net = Brackets()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.8)
handle = rangewatch.attach(net, optimizer)
for step in range(180):
    if step == 104:
        with torch.no_grad():
            net.recur.transition *= 1.6
    ids = pool[torch.randint(0, 600, (32,))]
    loss = F.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (103, 104, 105, 106, 107, 179):
        print(step, loss.item(), "gradient of the transition", net.recur.transition.grad.norm().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
