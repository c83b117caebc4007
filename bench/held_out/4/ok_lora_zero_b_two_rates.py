"""LoRA+ on a frozen network: B starts at 0, so that A has a gradient of exactly 0 at step 0; B's rate is 16 times A's; the base has no gradient at all.
Every 50 steps the adapter is merged to evaluate and unmerged again, exactly. HEALTHY. Without Rangewatch: loss 2.3 to 0.9."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(107); torch.set_num_threads(1)


class LoRA(nn.Module):
    def __init__(self, i, o, r=8):
        super().__init__()
        self.base, self.a, self.b = nn.Linear(i, o), nn.Parameter(torch.randn(r, i) / i ** 0.5), nn.Parameter(torch.zeros(o, r))
        self.base.requires_grad_(False)

    def forward(self, x):
        return self.base(x) + 2.0 * F.linear(F.linear(x, self.a), self.b)


model = nn.Sequential(LoRA(20, 64), nn.GELU(), LoRA(64, 64), nn.GELU(), LoRA(64, 10))
teacher = nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 10))
optimizer = torch.optim.AdamW([{"params": [m.a for m in model if isinstance(m, LoRA)], "lr": 5e-4},
                               {"params": [m.b for m in model if isinstance(m, LoRA)], "lr": 8e-3}], weight_decay=0.0)
watch = rangewatch.attach(model, optimizer)
for step in range(200):
    if step % 50 == 49:
        kept = [m.base.weight.data.clone() for m in model if isinstance(m, LoRA)]
        for m in model:
            if isinstance(m, LoRA):
                m.base.weight.data += 2.0 * m.b.data @ m.a.data
        for m, weight in zip([m for m in model if isinstance(m, LoRA)], kept):
            m.base.weight.data.copy_(weight)
    x = torch.randn(64, 20)
    with torch.no_grad():
        y = (teacher(x) * 4).argmax(1)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watch.log(loss=loss.item())
    if step % 20 == 0 or step == 199:
        print(step, round(loss.item(), 4))
