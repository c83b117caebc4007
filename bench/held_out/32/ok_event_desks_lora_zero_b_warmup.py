"""A pretrained GRU encoder of event logs is tuned by LoRA of rank 2 on its frozen layers; AdamW over the adapters and the new head, a rate that starts at 0, warms up over 40 steps and falls to 0 by a cosine at the last step.
HEALTHY: lora_b is all zeros at first, so that lora_a has an exactly zero gradient at step 0; step 0 moves nothing as its rate is 0; most weights are frozen on purpose; the loss lies flat at the end because the rate is gone.
Without Rangewatch: loss 2.33 to 0.02 to 0.1."""
EXPECT = {"healthy": True}
import math
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(421); torch.set_num_threads(1)
EVENTS, T = 24, 14
marks = torch.randint(0, EVENTS, (10, 3))


def logs(n, task):
    kind = torch.randint(0, 10, (n,))
    y = kind if task == 0 else kind * 3 % 10 // 2          # the new desks take two kinds each
    s = torch.randint(0, EVENTS, (n, T))
    where = torch.randint(0, T - 3, (n, 1)) + torch.arange(3)
    return s.scatter(1, where, marks[kind]), y


class Adapter(nn.Module):
    def __init__(self, base, r=2):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_a = nn.Linear(base.in_features, r, bias=False)
        self.lora_b = nn.Linear(r, base.out_features, bias=False)
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x):
        return self.base(x) + 8 * self.lora_b(self.lora_a(x))


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.gru = nn.Embedding(EVENTS, 24), nn.GRU(24, 48, batch_first=True)
        self.mid, self.mid2, self.head = nn.Linear(48, 48), nn.Linear(48, 48), nn.Linear(48, 10)

    def forward(self, s):
        h = self.gru(self.emb(s))[0].max(1).values
        return self.head(F.silu(self.mid2(F.silu(self.mid(h)))))


model = Router()
pre = torch.optim.Adam(model.parameters(), lr=4e-3)
for _ in range(250):
    x, y = logs(48, 0)
    pre.zero_grad(); F.cross_entropy(model(x), y).backward(); pre.step()
model.emb.requires_grad_(False); model.gru.requires_grad_(False)
model.mid, model.mid2, model.head = Adapter(model.mid), Adapter(model.mid2), nn.Linear(48, 5)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=8e-3)
TOTAL = 240
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: s / 40 if s < 40 else 0.5 * (1 + math.cos(math.pi * (s - 40) / (TOTAL - 40))))
handle = rangewatch.attach(model, optimizer)
for step in range(TOTAL):
    x, y = logs(48, 1)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 20 == 0 or step == TOTAL - 1:
        print(step, loss.item(), "rate", schedule.get_last_lr()[0], flush=True)
    handle.log(loss=loss.item())
handle.detach()
