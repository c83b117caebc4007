"""A small selective state space model on the task of recalling a value by its key. FAULT from step 0: parameters marked _no_weight_decay (A_log, D,
the bias of dt) are left out of the group with weight decay and nobody makes the group without: the optimizer does not hold them; they have
gradients and never move. Without Rangewatch: loss 3.36 to 1.52; A_log, D and the bias of dt have gradients up to 0.4 and are the same at the end as
at the beginning.
Report: state-spaces/mamba#798 (_no_weight_decay is set and nothing reads it; what grouping is recommended), namisan/mt-dnn#37 (a group of no_decay
that is almost empty).
Cause: optimizer (does not hold them). Place: layers.N.A_log, D or dt's bias. Right: add them / param group / optimizer. Wrong: learning rate, data,
detach, GradScaler."""
EXPECT = {"cause": ["optimizer"], "step": [0, 60], "place": r"layers\.\d\.(A_log|D|dt\.bias|dt)", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Rr]aise the learning rate", "GradScaler", "bfloat16", "leave out samples"],
          "right": "add_param_group|optimizer|param(eter)? group|give"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(523); torch.set_num_threads(1)
VOCAB, D, N, T = 24, 32, 8, 16


class Mamba(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.inward, self.conv = nn.LayerNorm(D), nn.Linear(D, 2 * D), nn.Conv1d(D, D, 3, padding=2, groups=D)
        self.bc, self.dt, self.out = nn.Linear(D, 2 * N, bias=False), nn.Linear(D, D), nn.Linear(D, D)
        self.A_log, self.D = nn.Parameter(torch.arange(1, N + 1).float().log().repeat(D, 1)), nn.Parameter(torch.ones(D))
        nn.init.constant_(self.dt.bias, -2.0)
        for p in (self.A_log, self.D, self.dt.bias):
            p._no_weight_decay = True

    def forward(self, x):
        u, gate = self.inward(self.norm(x)).chunk(2, -1)
        u = F.silu(self.conv(u.transpose(1, 2))[..., :x.shape[1]].transpose(1, 2))
        b, c = self.bc(u).chunk(2, -1)
        dt = F.softplus(self.dt(u))
        decay = torch.exp(-dt.unsqueeze(-1) * self.A_log.exp())
        drive = (dt * u).unsqueeze(-1) * b.unsqueeze(2)
        state, ys = torch.zeros_like(drive[:, 0]), []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + drive[:, t]
            ys.append((state * c[:, t].unsqueeze(1)).sum(-1))
        return x + self.out((torch.stack(ys, 1) + self.D * u) * F.silu(gate))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.layers, self.head = nn.Embedding(VOCAB, D), nn.Sequential(Mamba(), Mamba()), nn.Linear(D, VOCAB)

    def forward(self, ids):
        return self.head(self.layers(self.embed(ids)))


model = LM()
decay = [p for n, p in model.named_parameters() if not getattr(p, "_no_weight_decay", False)]
optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}], lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    keys = torch.stack([torch.randperm(8)[:4] for _ in range(32)])
    values = torch.randint(8, VOCAB, (32, 4))
    context = torch.stack([keys, values], -1).flatten(1)
    pick = torch.randint(0, 4, (32, 4))
    queries = torch.stack([keys.gather(1, pick), values.gather(1, pick)], -1).flatten(1)
    ids = torch.cat([context, queries], 1)
    loss = F.cross_entropy(model(ids)[:, 8::2].flatten(0, 1), ids[:, 9::2].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), model.layers[0].A_log.grad.abs().max().item(), model.layers[0].D.mean().item(), flush=True)
handle.detach()
