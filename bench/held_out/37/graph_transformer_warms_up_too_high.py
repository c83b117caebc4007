"""A post-norm graph transformer (adjacency as a bias of the attention) tells for each node whether it lies in a triangle-rich part; Adam with a linear warm-up.
FAULT at step 0, seen later: the warm-up's peak is 0.12 (a value taken over from an SGD recipe) instead of 1e-3. The first steps learn well; while the rate climbs the blocks collapse to the same output for all nodes and stay there.
Without Rangewatch: loss 0.68 to 0.11 at step 60 (rate 0.037), 0.24 at 75, 0.73 at 90 and 0.69 = ln 2 from then on, the outputs' spread is 0.0000 (with a peak of 1e-3: 0.1 to 0.2, 90 to 96 % right).
Cause: learning_rate. Step: while the rate climbs. Right: lower the peak of the learning rate. Wrong: data, GradScaler, attention mask."""
EXPECT = {"cause": ["learning_rate"], "step": [3, 150], "place": None, "rank": None,
          "right": r"(?i)(lower|reduce|smaller|too (high|large)).{0,60}(rate|lr|step|peak)|(rate|lr).{0,60}(lower|too (high|large)|reduce)", "wrong": ["GradScaler", "attention mask", "[Rr]aise the learning rate"]}
import torch
from torch import nn
from torch.nn import functional as F
import rangewatch

torch.manual_seed(3704); torch.set_num_threads(1)
PEAK, WARM = 0.12, 200
NODES = 18


def graphs(n):
    p = 0.08 + 0.45 * torch.rand(n, 1, 1)
    half = (torch.rand(n, NODES, NODES) < p).float().triu(1)
    adj = half + half.transpose(1, 2)
    tri = torch.diagonal(adj @ adj @ adj, dim1=1, dim2=2) / 2
    deg = adj.sum(2)
    return adj, torch.stack([deg / 6 - 1, torch.randn_like(deg)], 2), (tri > 3).float()


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.mix = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.edge = nn.Parameter(torch.full((heads,), 1.0))
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x, adj):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = q @ k.transpose(2, 3) / (d // self.heads) ** 0.5 + self.edge[:, None, None] * adj[:, None]
        x = self.n1(x + self.mix((a.softmax(3) @ v).transpose(1, 2).flatten(2)))
        return self.n2(x + self.down(F.gelu(self.up(x))))


class NodeJudge(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.lift = nn.Linear(2, d)
        self.tower = nn.ModuleList([Block(d, 4) for _ in range(3)])
        self.verdict = nn.Linear(d, 1)

    def forward(self, adj, x):
        x = self.lift(x)
        for block in self.tower:
            x = block(x, adj)
        return self.verdict(x)[..., 0]


judge = NodeJudge()
adam = torch.optim.Adam(judge.parameters(), lr=PEAK)
ramp = torch.optim.lr_scheduler.LambdaLR(adam, lambda s: min(1.0, (s + 1) / WARM))
handle = rangewatch.attach(judge, adam)
for step in range(300):
    adj, x, y = graphs(16)
    logit = judge(adj, x)
    loss = F.binary_cross_entropy_with_logits(logit, y)
    adam.zero_grad(); loss.backward(); adam.step(); ramp.step()
    if step % 15 == 0 or step == 299:
        print(step, "loss %.4f" % loss.item(), "right %.3f" % ((logit > 0) == (y > 0)).float().mean().item(), "spread %.4f" % logit.std().item(), "lr", ramp.get_last_lr()[0], flush=True)
    handle.log(loss=loss.item())
handle.detach()
