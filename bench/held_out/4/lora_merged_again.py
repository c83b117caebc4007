"""LoRA fine-tuning of a frozen classifier; every 50 steps the adapters are merged into the base to evaluate. FAULT at steps 60, 110, 160: they are
merged and never unmerged, so that the delta stays in the frozen base weight while the adapter goes on to add it again: the base is changed outside of
the optimizer. Without Rangewatch: loss 2.35 to 1.31 at step 59, 4.41 at step 60; 0.97 to 2.46 at 110; 1.49 at 160.
Report: huggingface/peft#1355 (merging is not idempotent, the delta is added again and again), huggingface/peft#2368.
Cause: weights written by something other than the optimizer. Place: a base weight. Right: unmerge / written outside / restore. Wrong: learning
rate, data, precision."""
EXPECT = {"cause": ["weight"], "step": [60, 61], "place": r"layers\.\d.*|base.*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "bfloat16", "GradScaler", "leave out samples", "[Mm]ask"],
          "right": "[Mm]erge|writ|outside|restor|swap|overwr|weights"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(23); torch.set_num_threads(1)


class LoRA(nn.Module):
    def __init__(self, i, o, r=8):
        super().__init__()
        self.base, self.a, self.b = nn.Linear(i, o), nn.Parameter(torch.randn(r, i) / i ** 0.5), nn.Parameter(torch.zeros(o, r))
        self.base.requires_grad_(False)

    def forward(self, x):
        return self.base(x) + 4.0 * F.linear(F.linear(x, self.a), self.b)

    def merge(self):
        self.base.weight.data += 4.0 * self.b.data @ self.a.data


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.head = nn.ModuleList([LoRA(20, 64), LoRA(64, 64), LoRA(64, 64)]), LoRA(64, 10)

    def forward(self, x):
        for layer in self.layers:
            x = F.gelu(layer(x))
        return self.head(x)


model = Net()
teacher = nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 10))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=4e-3)
watch = rangewatch.attach(model, optimizer)
for step in range(200):
    if step >= 60 and (step - 60) % 50 == 0:
        for module in model.modules():
            if isinstance(module, LoRA):
                module.merge()
        with torch.no_grad():
            model.eval()(torch.randn(64, 20))
            model.train()
    x = torch.randn(64, 20)
    with torch.no_grad():
        y = (teacher(x) * 4).argmax(1)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watch.log(loss=loss.item())
    if step % 20 == 0 or 58 <= step < 63 or 109 <= step < 112:
        print(step, round(loss.item(), 4))
