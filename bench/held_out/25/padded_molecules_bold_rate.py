"""A transformer over the atoms of molecules of unequal size: the scores of padded atoms are set to -inf before the softmax, as they should be. FAULT at step
120: the rate of NAdam is raised from 0.001 to 0.15 (a schedule that reads epochs as steps). The mask has nothing to do with it.
Without Rangewatch: loss 0.88 to 0.017 at step 119, 0.019 at step 120, 40 at step 121, 19688 at step 122, 3.3e6 at step 125, 746 at the end.
Cause: learning_rate. Step: 120. Right: learning rate. Wrong: the mask, GradScaler, bfloat16."""
EXPECT = {"cause": ["learning_rate"], "step": [119, 126], "place": None, "rank": 0,
          "right": "(?i)learning rate|\\blr\\b", "wrong": ["attention mask", "GradScaler", "bfloat16", "(?i)fully masked"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2524); torch.set_num_threads(1)
KINDS, MOST, W = 9, 14, 40


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(W), nn.LayerNorm(W)
        self.qkv, self.o = nn.Linear(W, 3 * W), nn.Linear(W, W)
        self.ff = nn.Sequential(nn.Linear(W, 80), nn.ReLU(), nn.Linear(80, W))

    def forward(self, h, absent):
        q, k, v = self.qkv(self.n1(h)).chunk(3, 2)
        score = torch.einsum("bid,bjd->bij", q, k) / W ** 0.5
        score = score.masked_fill(absent[:, None, :], -torch.inf)
        h = h + self.o(score.softmax(2) @ v)
        return h + self.ff(self.n2(h))


class Molecules(nn.Module):
    def __init__(self):
        super().__init__()
        self.atom = nn.Embedding(KINDS + 1, W, padding_idx=0)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.energy = nn.Linear(W, 1)

    def forward(self, x):
        absent, h = x == 0, self.atom(x)
        for layer in self.layers:
            h = layer(h, absent)
        return (self.energy(h)[..., 0] * ~absent).sum(1)


weight, pair = torch.randn(KINDS + 1), 0.3 * torch.randn(KINDS + 1, KINDS + 1)


def batch(n):
    x = torch.randint(1, KINDS + 1, (n, MOST)) * (torch.arange(MOST) < torch.randint(4, MOST + 1, (n, 1)))
    there = (x > 0).float()
    both = pair[x[:, :, None], x[:, None, :]] * there[:, :, None] * there[:, None, :]
    return x, ((weight[x] * there).sum(1) + both.sum((1, 2)) / there.sum(1)) / 2


net = Molecules()
optimizer = torch.optim.NAdam(net.parameters(), lr=1e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(190):
    optimizer.param_groups[0]["lr"] = 1e-3 if step < 120 else 0.15
    x, y = batch(40)
    loss = F.huber_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 118 < step < 126 or step == 189:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
