"""A pointer net that finds the worthiest of twelve items by two layers of attention. FAULT at step 60: queries and keys go into a second stage with a weight decay of
-10 (the sign is wrong, and the number of another optimizer); AdamW makes them 3 percent larger in each step, the logits of attention grow without an end,
the softmax becomes one-hot and its gradients die.
Without Rangewatch: loss 2.47 to 0.71 at step 60, 0.6 to 0.9 from there on (0.60 with a decay of 0.01); the largest logit is 23 at step 60, 116 at step 100, 1,032 at step 140,
61,743 at step 200, 215,145 at the end; the gradient of the queries falls from 0.05 to 1e-6.
Cause: weight (of queries and keys), optimizer or regularization (the decay), learning_rate as the usual cause of such growth. Step: from 60 on, a state that grows.
Right: attention / logits / softmax / decay / rate / weight. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["weight", "optimizer", "regularization", "learning_rate"], "step": [60, 219], "place": None, "rank": 0,
          "right": "(?i)attention|logit|softmax|decay|learning rate|weight", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2116)
torch.set_num_threads(1)


class Attention(nn.Module):
    def __init__(self, d=40):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d, d) for _ in range(3))

    def logits(self, x):
        return self.q(x) @ self.k(x).mT / x.shape[2] ** 0.5

    def forward(self, x):
        logits = self.logits(x)
        self.largest = logits.detach().abs().max().item()
        return x + logits.softmax(2) @ self.v(x)


class Pointer(nn.Module):
    def __init__(self, d=40):
        super().__init__()
        self.item = nn.Sequential(nn.Linear(4, d), nn.GELU(), nn.Linear(d, d))
        self.a, self.b = Attention(d), Attention(d)
        self.point = nn.Linear(d, 1)

    def forward(self, x):
        return self.point(self.b(self.a(self.item(x)))).squeeze(2)


def items(n):
    x = torch.rand(n, 12, 4)
    worth = x[..., 0] * x[..., 1] + x[..., 2] - (x[..., 3] - x[..., 3].mean(1, keepdim=True)).abs()
    return x, worth.argmax(1)


model = Pointer()
seekers = [p for layer in (model.a, model.b) for part in (layer.q, layer.k) for p in part.parameters()]
rest = [p for p in model.parameters() if not any(p is q for q in seekers)]
opt = torch.optim.AdamW([{"params": rest}, {"params": seekers}], lr=3e-3)
handle = rangewatch.attach(model, opt)
for step in range(220):
    if step == 60:
        opt.param_groups[1]["weight_decay"] = -10.0
    x, y = items(64)
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), "largest logits", model.a.largest, model.b.largest, "gradient of q", model.b.q.weight.grad.norm().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
