"""A transformer layer whose feed-forward part is six experts, of which each token takes the best two (top-k, renormalised); it continues sequences of a
counting game. Each expert has its own group in SGD. FAULT at step 115: a restart of the settings gives the group of expert 4 a rate of 5000 (it had 0.3). Only
tokens that choose it see it; its weights and outputs explode.
Without Rangewatch: loss 2.96 to 0.164 at step 114, 0.165 at step 115, 1.7 at step 116 (largest weight of expert 4: 943), 1e7 at step 117, 2e24, NaN from step 119 on.
Causes: learning_rate (of the group of expert 4). Right: learning rate of that group. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["learning_rate"], "step": [115, 120], "place": "mlp\\.experts\\.4.*", "rank": 0,
          "right": "(?i)learning rate|\\blr\\b|group", "wrong": ["GradScaler", "attention mask", "[Rr]aise the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2213); torch.set_num_threads(1)


class TopTwo(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.gate = nn.Linear(width, 6)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(width, 48), nn.ReLU(), nn.Linear(48, width)) for _ in range(6))

    def forward(self, x):
        best, which = self.gate(x).topk(2, dim=1)
        best, out = best.softmax(1), torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            row, place = (which == i).nonzero(as_tuple=True)
            if row.numel():
                out[row] = out[row] + best[row, place, None] * expert(x[row])
        return out


class Game(nn.Module):
    def __init__(self):
        super().__init__()
        self.letter, self.place = nn.Embedding(16, 32), nn.Parameter(0.3 * torch.randn(12, 32))
        self.look = nn.MultiheadAttention(32, 4, batch_first=True)
        self.n1, self.n2, self.mlp, self.out = nn.LayerNorm(32), nn.LayerNorm(32), TopTwo(), nn.Linear(32, 16)
        self.register_buffer("causal", torch.ones(12, 12, dtype=torch.bool).triu(1))

    def forward(self, x):
        h = self.letter(x) + self.place
        z = self.n1(h)
        h = h + self.look(z, z, z, attn_mask=self.causal, need_weights=False)[0]
        h = h + self.mlp(self.n2(h).flatten(0, 1)).view_as(h)
        return self.out(h)


model = Game()
shared = [p for n, p in model.named_parameters() if "experts" not in n]
optimizer = torch.optim.SGD([{"params": shared}] + [{"params": list(e.parameters())} for e in model.mlp.experts], lr=0.3, momentum=0.5)
handle = rangewatch.attach(model, optimizer)
for step in range(190):
    if step == 115:
        optimizer.param_groups[5]["lr"] = 5000.0
    start, stride = torch.randint(0, 16, (32, 1)), torch.randint(1, 5, (32, 1))
    row = (start + stride * torch.arange(13)) % 16
    loss = F.cross_entropy(model(row[:, :-1]).flatten(0, 1), row[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or 113 < step < 120 or step == 189:
        print(step, loss.item(), "largest weight of expert 4", max(p.abs().max().item() for p in model.mlp.experts[4].parameters()), flush=True)
handle.detach()
