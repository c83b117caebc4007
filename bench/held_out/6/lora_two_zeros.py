"""Adapters of low rank on a frozen model that was trained before. FAULT from step 0 on: the framework's init_weights() comes after the adapters were put in
and sets both A and B to zero. Each has a gradient through the other: both are exactly 0 for ever. All is finite.
Without Rangewatch: loss 14.4 at step 0, 13.8 at step 239 (noise); gradients of A and B and the weight of B are 0.0 throughout.
Report: nvidia-cosmos/cosmos-predict2.5#15 (the order of add_lora and init_weights: no training), Guitaricet/relora#18, NovaSky-AI/SkyRL#852.
Cause: dead units (zero gradients; weight or optimizer will do). Step: from 0. Right: zero / initialise / gradient. Wrong: learning rate, mask, scaler."""
EXPECT = {"cause": ["dead_units", "weight", "optimizer"], "step": [0, 200], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "zero|initiali|gradient|dead"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(618); torch.set_num_threads(1)


class LoraLinear(nn.Module):
    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + 2 * self.lora_B(self.lora_A(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self.head = nn.Linear(32, 40)

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(x + self.down(F.gelu(self.up(x))))


def batch(jump):
    ids = torch.randint(0, 40, (64,))
    return ids, (ids * 3 + jump) % 40


model = Model()
pre = torch.optim.Adam(model.parameters(), lr=5e-3)
for _ in range(150):
    x, y = batch(1)
    loss = F.cross_entropy(model(x), y)
    pre.zero_grad()
    loss.backward()
    pre.step()
print("pretrained", loss.item())
model.requires_grad_(False)
model.up, model.down = LoraLinear(model.up), LoraLinear(model.down)
for name, module in model.named_modules():  # init_weights() of the framework comes after the adapters were put in
    if "lora_" in name:
        nn.init.zeros_(module.weight)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    x, y = batch(7)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), model.up.lora_A.weight.grad.abs().max().item(), model.up.lora_B.weight.grad.abs().max().item(),
              model.up.lora_B.weight.abs().max().item(), flush=True)
handle.detach()
