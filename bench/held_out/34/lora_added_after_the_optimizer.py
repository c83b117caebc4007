"""Fine-tuning with LoRA: a pre-trained token mixer is frozen, low-rank adapters are put into its linear layers for a new set of labels (AdamW). FAULT from step 0: the optimizer was built from
`model.parameters()` before the adapters were put in: it holds only frozen weights, the adapters get gradients and no step.
Without Rangewatch: pre-training 1.68 to 0.13; fine-tuning 5.6 at step 0, 5.7 to 7.7 to the end (optimizer built after: 0.46).
Cause: optimizer (parameters missing; nothing learns: no_gradient). Step: 0. Right: parameters missing in the optimizer / build it after. Wrong: GradScaler, mask, learning rate."""
EXPECT = {"cause": ["optimizer", "no_gradient"], "step": [0, 60], "place": None, "rank": None,
          "right": "(?i)optimi[sz]er|param_group|not held|frozen|requires_grad", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(3415); torch.set_num_threads(1)
V, L, D, C = 40, 10, 32, 5


class LoRALinear(nn.Module):
    def __init__(self, base, r=4, alpha=8):
        super().__init__()
        self.base = base
        self.lora_A = nn.Parameter(torch.randn(r, base.in_features) / base.in_features ** 0.5)
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))
        self.scaling = alpha / r

    def forward(self, x):
        return self.base(x) + self.scaling * (x @ self.lora_A.T) @ self.lora_B.T


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(V, D)
        self.up, self.down = nn.Linear(D, 64), nn.Linear(64, D)
        self.head = nn.Linear(D, C)

    def forward(self, x):
        h = self.tok(x)
        h = h + self.down(nn.functional.gelu(self.up(h)))
        return self.head(h.mean(1))


def texts(n, table):
    x = torch.randint(0, V, (n, L))
    return x, nn.functional.one_hot(table[x], C).sum(1).argmax(1)


def train(model, optimizer, table, steps, handle=None):
    for step in range(steps):
        x, y = texts(48, table)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == steps - 1:
            print("fine" if handle else "pre", step, loss.item(), flush=True)
        if handle:
            handle.log(loss=loss.item())


model = Mixer()
train(model, torch.optim.Adam(model.parameters(), lr=5e-3), torch.arange(V) % C, 120)
for p in model.parameters():
    p.requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0)
for name in ("up", "down", "head"):
    setattr(model, name, LoRALinear(getattr(model, name)))
handle = rangewatch.attach(model, optimizer)
train(model, optimizer, torch.arange(V) // (V // C), 220, handle)
handle.detach()
