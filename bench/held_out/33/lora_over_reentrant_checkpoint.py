"""LoRA on a frozen two-block mixer of sequences: adapters in each block and a free head; the blocks run under `checkpoint(..., use_reentrant=True)` to save memory. AdamW.
FAULT from step 0: the frozen embedding's output requires no gradient, so that the reentrant checkpoint gives outputs without a graph: no backward reaches the adapters. Only the head learns.
Without Rangewatch: loss 1.38 and still 1.36 to 1.39 at the end (0.006 with use_reentrant=False), all lora_b are still 0.
Cause: no_gradient. Step: 0. Right: checkpoint / gradient / requires_grad / graph. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["no_gradient"], "step": [0, 60], "place": r"blocks(\.\d(\..*)?)?", "rank": None,
          "right": "(?i)gradient|requires_grad|graph|detach|checkpoint|backward", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
import rangewatch

torch.manual_seed(339); torch.set_num_threads(1)
V, T, D, CLASSES = 16, 6, 32, 4


class LoRA(nn.Module):
    def __init__(self, base, r=8):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(r, base.in_features) / base.in_features ** 0.5)
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, r))

    def forward(self, x):
        return self.base(x) + x @ self.lora_a.T @ self.lora_b.T


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(D).requires_grad_(False)
        self.time = LoRA(nn.Linear(T, T))
        self.up, self.down = LoRA(nn.Linear(D, 2 * D)), LoRA(nn.Linear(2 * D, D))

    def forward(self, x):
        x = x + self.time(x.transpose(1, 2)).transpose(1, 2)
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D).requires_grad_(False)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(D, CLASSES)

    def forward(self, x):
        h = self.emb(x)
        for b in self.blocks:
            h = checkpoint(b, h, use_reentrant=True)
        return self.head(h.mean(1))


net = Mixer()
optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=4e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    x = torch.randint(0, V, (64, T))
    y = (x[:, 0] // 4 + x[:, 3] // 8) % CLASSES
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), "lora_b", sum(m.lora_b.abs().sum().item() for m in net.modules() if isinstance(m, LoRA)), flush=True)
    handle.log(loss=loss.item())
handle.detach()
