"""An echo-state net (a fixed recurrent matrix, the way in and out are trained) that sums marked entries of a ledger. FAULT at step 120: the rows grow from 12 to 150 entries; the state is fed back by more
than 1 (an orthogonal matrix times 1.05) and nothing clips the gradients: they explode.
Without Rangewatch: loss 0.21 to 0.19 (0.14 at best) and norm 1 to 2.5 before; loss 172350 and norm 8.7e6 at step 120, 2.8e19 and 1.6e15 at 121, norm Inf at 122, then NaN.
Cause: clip, weight or learning_rate. Step: 120. Right: clip / recurrent / orthogonal. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["clip", "weight", "learning_rate", "data", "(none)"], "step": [119, 126], "place": None, "rank": None,
          "right": "(?i)clip|recurr|orthogonal|sequence|length|explod|spectral|learning.rate", "wrong": ["GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(3020); torch.set_num_threads(1)


class Ledger(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.take = nn.Linear(2, width)
        self.keep = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, 1)
        nn.init.orthogonal_(self.keep.weight, gain=1.05)
        self.keep.requires_grad_(False)

    def forward(self, x):
        h = x.new_zeros(x.shape[0], self.keep.in_features)
        for k in range(x.shape[1]):
            h = torch.tanh(self.take(x[:, k])) + self.keep(h)
        return self.out(h)


def rows(n, length):
    entry, mark = torch.rand(n, length), torch.zeros(n, length)
    mark.scatter_(1, torch.rand(n, length).topk(2, 1).indices, 1.0)
    return torch.stack((entry, mark), 2), (entry * mark).sum(1, keepdim=True)


net = Ledger()
optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=5e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(180):
    x, y = rows(48, 12 if step < 120 else 150)
    loss = (net(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    norm = sum(p.grad.square().sum() for p in net.parameters() if p.grad is not None) ** 0.5
    optimizer.step()
    if step % 20 == 0 or step in (119, 120, 121, 122, 179):
        print(step, loss.item(), "norm", norm.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
