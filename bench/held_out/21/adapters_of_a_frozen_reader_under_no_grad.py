"""A frozen transformer reads a line of code; bottleneck adapters in its layers and a new head are to be trained for another task. FAULT at step 0: the line that reads is
under torch.no_grad(), from the days when there were no adapters; the backward ends at the head, and the eight tensors of the adapters have no gradient at all.
Without Rangewatch: loss 1.75 at step 0, 1.2 to 1.6 later (the head learns what it can); 8 of the 10 tensors to be trained have .grad None at each step.
Cause: no_gradient. Step: 0 to the end, a state. Place: the adapters. Right: no_grad / detach / gradient / graph. Wrong: GradScaler, lower the learning rate."""
EXPECT = {"cause": ["no_gradient"], "step": [0, 199], "place": ".*adapter.*", "rank": 0,
          "right": "(?i)no_grad|detach|gradient|graph", "wrong": ["GradScaler", "[Ll]ower the learning rate", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2113)
torch.set_num_threads(1)


class WithAdapter(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.frozen = nn.TransformerEncoderLayer(d, 4, 96, dropout=0.0, batch_first=True)
        self.adapter = nn.Sequential(nn.Linear(d, 8), nn.GELU(), nn.Linear(8, d))

    def forward(self, x):
        x = self.frozen(x)
        return x + self.adapter(x)


class Reader(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.tokens = nn.Embedding(40, d)
        self.layers = nn.ModuleList([WithAdapter(d), WithAdapter(d)])
        self.head = nn.Linear(d, 6)

    def read(self, x):
        x = self.tokens(x)
        for layer in self.layers:
            x = layer(x)
        return x.mean(1)

    def forward(self, x):
        with torch.no_grad():
            features = self.read(x)
        return self.head(features)


def lines(n):
    x = torch.randint(0, 40, (n, 12))
    return x, (x[:, 0] + x[:, 5]) % 6 * (x.sum(1) % 2 == 0)


model = Reader()
for name, p in model.named_parameters():
    p.requires_grad_("adapter" in name or "head" in name)
optimizer = torch.optim.AdamW([{"params": model.layers.parameters(), "lr": 2e-3}, {"params": model.head.parameters(), "lr": 5e-3}])
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, y = lines(64)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if step % 25 == 0 or step == 199:
        without = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
        print(step, loss.item(), "without a gradient:", len(without), flush=True)
    handle.log(loss=loss.item())
handle.detach()
