"""A small GPT that adds numbers modulo ten along a line; query and key have a parameter group of their own. FAULT at step 90: that group's rate is set
to 0.2 (meant was 0.002): the scores of the attention grow from a few to thousands, each row of the softmax becomes one-hot, the loss rises and stays high.
Without Rangewatch: loss 2.5 to 0.35 at step 89, 3.2 at step 91, 2.2 at step 95, 1.65 to 1.8 to the end; the largest score is 6.9 at step 89, 389 at
step 95, 13768 at the end.
Cause: learning_rate (or the weights of query and key; or the attention's scores, forward_arithmetic). Step: 90 and after. Right: learning rate / scores /
query and key norm. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["learning_rate", "weight", "forward_arithmetic"], "step": [89, 200], "place": "blocks\\.\\d.*", "rank": 0,
          "right": "(?i)learning rate|\\blr\\b|logit|score|quer|qk", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2518); torch.set_num_threads(1)
LENGTH, WIDTH = 16, 48


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.mix = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, h):
        q, k, v = (f(h).unflatten(2, (4, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        score = q @ k.transpose(2, 3) / q.shape[3] ** 0.5
        self.top = score.detach().abs().max().item()
        later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        share = score.masked_fill(later, float("-inf")).softmax(3)
        return self.mix((share @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attend, self.norm2 = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, h):
        h = h + self.attend(self.norm1(h))
        return h + self.mlp(self.norm2(h))


class Adder(nn.Module):
    def __init__(self):
        super().__init__()
        self.digit, self.place = nn.Embedding(10, WIDTH), nn.Parameter(0.5 * torch.randn(LENGTH, WIDTH))
        self.blocks = nn.Sequential(Block(), Block())
        self.out = nn.Linear(WIDTH, 10)

    def forward(self, x):
        return self.out(self.blocks(self.digit(x) + self.place))


def lines(n):
    x = torch.randint(0, 10, (n, LENGTH))
    for k in range(2, LENGTH):
        x[:, k] = torch.where(torch.rand(n) < 0.95, (x[:, k - 2] + 3) % 10, x[:, k])
    return x


net = Adder()
sharp = [p for name, p in net.named_parameters() if "query" in name or "key" in name]
rest = [p for name, p in net.named_parameters() if "query" not in name and "key" not in name]
optimizer = torch.optim.AdamW([{"params": rest}, {"params": sharp}], lr=2e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    if step == 90:
        optimizer.param_groups[1]["lr"] = 0.2
    x = lines(16)
    loss = F.cross_entropy(net(x)[:, 1:-1].flatten(0, 1), x[:, 2:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (89, 91, 95, 199):
        print(step, loss.item(), "largest score", [b.attend.top for b in net.blocks], flush=True)
    handle.log(loss=loss.item())
handle.detach()
