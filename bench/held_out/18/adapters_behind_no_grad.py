"""Adapters of low rank are put into a frozen text encoder, to tell kind from angry reviews of restaurants. FAULT from the first step on: the encoder is
still called under torch.no_grad() ("it is frozen anyway"), and so the adapters within it never get a gradient; only the last layer learns.
Without Rangewatch: loss 0.79 to 0.55 to 0.62 at the end, the adapters have no gradient at any step; without no_grad it is 0.29 at the end.
Cause: no_gradient (or optimizer: they are in it and never move). Step: from 0 on. Place: the adapters. Right: no_grad / gradient / graph / detach. Wrong:
GradScaler, mask, lower the rate."""
EXPECT = {"cause": ["no_gradient", "optimizer"], "step": [0, 60], "place": ".*(down|up|encoder|adapter).*", "rank": 0, "least": "info",
          "wrong": ["GradScaler", "attention mask", "(?i)lower the learning rate"],
          "right": "(?i)no_grad|gradient|graph|detach|requires_grad"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1831); torch.set_num_threads(1)
WORDS, WIDTH = 120, 32


class Adapted(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.down, self.up = nn.Linear(inner.in_features, 4, bias=False), nn.Linear(4, inner.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.inner(x) + self.up(self.down(x))


class Reviews(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(WORDS, WIDTH)
        self.encoder = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.Tanh())
        for i in (0, 2, 4):
            nn.init.orthogonal_(self.encoder[i].weight, 1.6)
        self.kind = nn.Linear(WIDTH, 2)

    def forward(self, x):
        with torch.no_grad():
            h = self.encoder(self.word(x)).mean(1)
        return self.kind(h)


model = Reviews()
for p in [*model.word.parameters(), *model.encoder.parameters()]:
    p.requires_grad = False
for i in (0, 2, 4):
    model.encoder[i] = Adapted(model.encoder[i])
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
handle = rangewatch.attach(model, optimizer)
tone = model.word.weight.detach() @ torch.randn(WIDTH) / WIDTH**0.5 + 0.5 * torch.randn(WORDS)
for step in range(200):
    x = torch.randint(0, WORDS, (64, 14))
    kind = (tone[x].sum(1) + tone[x[:, 0]] > 0).long()
    loss = F.cross_entropy(model(x), kind)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0 or step == 199:
        print(step, loss.item(), "gradient of an adapter", model.encoder[0].up.weight.grad is not None, flush=True)
    handle.log(loss=loss.item())
handle.detach()
