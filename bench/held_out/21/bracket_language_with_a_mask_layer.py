"""A causal transformer on sequences of brackets; the causal mask is a module of its own (CausalMask) that puts -inf above the diagonal, as it should. FAULT at step
125: the schedule goes to its second stage with a rate of SGD of 3.0 in place of 0.03; the gradients explode in the blocks behind the mask. The mask is innocent.
Without Rangewatch: loss 1.51 to 1.09 at step 124 (norm 0.3), 1.12 at step 125, 4.0 at step 126, 983 at step 127, 1e21 at step 128, NaN from step 129 on.
Cause: learning_rate. Step: 125. Right: learning rate / clip. Wrong: mask, GradScaler."""
EXPECT = {"cause": ["learning_rate"], "step": [124, 140], "place": None, "rank": 0,
          "right": "(?i)learning rate|\\blr\\b|clip", "wrong": ["GradScaler", "(?i)masked (whole|completely|entirely)|attention mask|mask value"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2110)
torch.set_num_threads(1)
LENGTH = 20


class CausalMask(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("above", torch.ones(LENGTH, LENGTH).triu(1).bool())

    def forward(self, scores):
        return scores.masked_fill(self.above, -torch.inf)


class Layer(nn.Module):
    def __init__(self, d=32, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.join = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mask = CausalMask()
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.n1 = nn.LayerNorm(d)

    def forward(self, x):
        q, k, v = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.n1(x)).chunk(3, 2))
        weights = self.mask(q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        x = x + self.join((weights @ v).transpose(1, 2).flatten(2))
        return x + self.down(F.relu(self.up(x)))


class Brackets(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.sign, self.where = nn.Embedding(4, d), nn.Parameter(0.02 * torch.randn(LENGTH, d))
        self.layers = nn.Sequential(Layer(d), Layer(d))
        self.next = nn.Linear(d, 4)

    def forward(self, x):
        return self.next(self.layers(self.sign(x) + self.where))


def sentences(n):
    """0 ( 1 ) 2 [ 3 ]: an opening bracket is closed by its own kind."""
    rows = torch.zeros(n, LENGTH + 1, dtype=torch.long)
    for r in range(n):
        stack = []
        for t, u in enumerate(torch.rand(LENGTH + 1).tolist()):
            if stack and (u < 0.5 or len(stack) > 4):
                rows[r, t] = stack.pop() + 1
            else:
                stack.append(0 if u < 0.8 else 2)
                rows[r, t] = stack[-1]
    return rows


model = Brackets()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    if step == 125:
        optimizer.param_groups[0]["lr"] = 3.0
    rows = sentences(32)
    loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 123 < step < 132 or step == 199:
        print(step, loss.item(), "norm", torch.stack([p.grad.norm() for p in model.parameters()]).norm().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
