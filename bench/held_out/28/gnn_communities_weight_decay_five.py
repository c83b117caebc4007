"""A graph convolution net that sorts the nodes of random communities. FAULT from the start: Adam with weight_decay=5 where 5e-4 was
meant (the exponent was lost when the config was copied): the decay term is far larger than the gradient of the loss, the weights shrink to nothing and the net can but
guess (log 3 is 1.099).
Without Rangewatch: loss 1.089 to 1.099 at step 20 and to the end; norms of the weights 3.8 at step 0, 0.97 at step 20, 0.017 at step 100, 0.0002 at the end.
Cause: optimizer or regularization. Step: 0 to 80. Right: weight decay. Wrong: GradScaler, attention mask, bad data."""
EXPECT = {"cause": ["optimizer", "regularization", "weight"], "step": [0, 120], "place": None, "rank": None,
          "right": "(?i)weight.?decay|regulari|decay|shrink", "wrong": ["GradScaler", "attention mask", "(?i)all_reduce"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(616); torch.set_num_threads(1)


def graph(n=90, k=3):
    y = torch.randint(0, k, (n,))
    prob = torch.where(y[:, None] == y[None], 0.20, 0.03)
    adj = torch.triu((torch.rand(n, n) < prob).float(), 1)
    adj = adj + adj.T + torch.eye(n)
    d = adj.sum(1).rsqrt()
    feats = torch.randn(n, 10)
    feats[:, :k] += 0.8 * F.one_hot(y, k)
    return d[:, None] * adj * d, feats, y


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin1, self.lin2, self.lin3 = nn.Linear(10, 48), nn.Linear(48, 48), nn.Linear(48, 3)

    def forward(self, a, x):
        x = torch.tanh(a @ self.lin1(x))
        x = torch.tanh(a @ self.lin2(x))
        return self.lin3(x)


net = GCN()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, weight_decay=5)
handle = rangewatch.attach(net, optimizer)
for step in range(180):
    a, x, y = graph()
    loss = F.cross_entropy(net(a, x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 179:
        print(step, loss.item(), [round(p.norm().item(), 4) for p in net.parameters()], flush=True)
    handle.log(loss=loss.item())
handle.detach()
