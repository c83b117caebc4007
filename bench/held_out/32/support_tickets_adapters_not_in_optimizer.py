"""A transformer encoder is pretrained to tell topics of tickets; then rank-4 LoRA adapters are injected to tune it to new topics (AdamW). FAULT from step 0 of the tuning: the optimizer is built before the adapters are injected, over the base weights which are then frozen:
the adapters get gradients and no step ever moves them.
Without Rangewatch: loss 4.9 to 4.2, the norm of lora_b 0 to the end (optimizer built after: 0.39).
Cause: optimizer (parameters missing). Step: from 0. Right: optimizer does not hold the adapters / build it after. Wrong: learning rate, GradScaler."""
EXPECT = {"cause": ["optimizer"], "step": [0, 40], "place": None, "rank": None,
          "right": "(?i)optimi[sz]er|param", "wrong": ["(?i)(lower|raise) the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(412); torch.set_num_threads(1)
V, T, TOPICS = 80, 12, 6
topic_words = torch.randint(0, V, (2, TOPICS, 10))


def tickets(n, task):
    y = torch.randint(0, TOPICS, (n,))
    words = topic_words[task][y].gather(1, torch.randint(0, 10, (n, T)))
    return torch.where(torch.rand(n, T) < 0.5, torch.randint(0, V, (n, T)), words), y


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, 32)
        self.q, self.k, self.v, self.o = (nn.Linear(32, 32) for _ in range(4))
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, TOPICS)

    def forward(self, s):
        h = self.emb(s)
        h = h + self.o(F.scaled_dot_product_attention(self.q(h), self.k(h), self.v(h)))
        h = h + self.down(F.gelu(self.up(h)))
        return self.head(self.norm(h).mean(1))


class LoRALinear(nn.Module):
    def __init__(self, base, r=4):
        super().__init__()
        self.base = base
        self.lora_a = nn.Parameter(torch.randn(r, base.in_features) / base.in_features ** 0.5)
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, r))

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.lora_a), self.lora_b) * 4.0


def inject(model):
    model.requires_grad_(False)
    for name in ("q", "v", "up", "down", "head"):
        setattr(model, name, LoRALinear(getattr(model, name)))


model = Encoder()
pre = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(150):
    x, y = tickets(48, 0)
    pre.zero_grad(); F.cross_entropy(model(x), y).backward(); pre.step()

optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
inject(model)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, y = tickets(32, 1)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), "norm of lora_b", model.up.lora_b.norm().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
