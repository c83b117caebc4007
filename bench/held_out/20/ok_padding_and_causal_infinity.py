"""HEALTHY: nn.MultiheadAttention with a float mask of -inf above the diagonal and padding at the end of most rows; each query sees itself at the least (padding
is hidden as a key only, and the first token of a row is never padding), so all is finite.
Without Rangewatch: loss 3.76 to 0.67 with 38 to 47% padding.
Right: nothing above info."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2037); torch.set_num_threads(1)
CLICKS, WIDE, LONG = 40, 32, 18
next_page = torch.randperm(CLICKS - 1) + 1


class Visits(nn.Module):
    def __init__(self):
        super().__init__()
        self.page = nn.Embedding(CLICKS, WIDE, padding_idx=0)
        self.place = nn.Parameter(0.02 * torch.randn(LONG, WIDE))
        self.before, self.after = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.attention = nn.MultiheadAttention(WIDE, 4, batch_first=True)
        self.feed = nn.Sequential(nn.Linear(WIDE, 64), nn.GELU(), nn.Linear(64, WIDE))
        self.out = nn.Linear(WIDE, CLICKS)

    def forward(self, x):
        h = self.page(x) + self.place
        padding = torch.zeros(x.shape).masked_fill(x == 0, float("-inf"))
        causal = torch.full((LONG, LONG), float("-inf")).triu(1)
        n = self.before(h)
        h = h + self.attention(n, n, n, attn_mask=causal, key_padding_mask=padding, need_weights=False)[0]
        return self.out(h + self.feed(self.after(h)))


def visits(n):
    x = torch.empty(n, LONG + 1, dtype=torch.long)
    x[:, 0] = torch.randint(1, CLICKS, (n,))
    for k in range(1, LONG + 1):
        x[:, k] = torch.where(torch.rand(n) < 0.9, next_page[x[:, k - 1] - 1], torch.randint(1, CLICKS, (n,)))
    return x * (torch.arange(LONG + 1) < torch.randint(2, LONG + 2, (n, 1)))


model = Visits()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x = visits(32)
    loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten(), ignore_index=0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), "share of padding", (x == 0).float().mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
