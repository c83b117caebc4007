"""A causal character model with an additive mask of -inf and a cosine rate with warm restarts (every 50 steps). HEALTHY: the -inf are the causal mask, the loss
steps up a little at each restart, and that is meant.
Without Rangewatch: loss 3.4 to 0.97 at step 49, 1.00 after the restart, 0.40 at 99, 0.46 at 102, 0.11 at the end."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2921); torch.set_num_threads(1)
text = "the quick brown fox jumps over the lazy dog while the old cat sleeps under the warm stove and dreams of mice. " * 6
chars = sorted(set(text))
data = torch.tensor([chars.index(c) for c in text])
T, D = 32, 40


class CharModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.pos = nn.Embedding(len(chars), D), nn.Parameter(0.02 * torch.randn(T, D))
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.ff = nn.Sequential(nn.Linear(D, 120), nn.GELU(), nn.Linear(120, D))
        self.out = nn.Linear(D, len(chars))
        self.register_buffer("mask", torch.full((T, T), float("-inf")).triu(1))

    def forward(self, ids):
        x = self.emb(ids) + self.pos
        h = self.n1(x)
        att = torch.softmax(self.q(h) @ self.k(h).transpose(1, 2) / D ** 0.5 + self.mask, -1)
        x = x + self.o(att @ self.v(h))
        return self.out(x + self.ff(self.n2(x)))


net = CharModel()
optimizer = torch.optim.AdamW(net.parameters(), lr=6e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=50, eta_min=1e-5)
handle = rangewatch.attach(net, optimizer)
for step in range(250):
    at = torch.randint(0, len(data) - T - 1, (24, 1)) + torch.arange(T + 1)
    ids = data[at]
    loss = F.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    if step % 25 == 0 or step in (49, 52, 99, 102, 249):
        print(step, loss.item(), "lr", schedule.get_last_lr()[0], flush=True)
    handle.log(loss=loss.item())
handle.detach()
