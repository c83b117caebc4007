"""A mixture of 8 experts, top 2, balanced without a loss: a bias per expert is moved after each step by the sign of its load. FAULT from step 0: the
sign is the wrong way round, busy experts get a higher bias: soon three experts get all tokens and five get none, so that their weights get no gradient.
Without Rangewatch: loss 3.9 to 1.4; from step 20 on 3 of 8 experts have tokens, five get no gradient (None).
Report: pytorch/torchtitan#1246 (most tokens are routed to the same expert), pytorch/torchtitan#1506 (sign of the update), arXiv 2408.15664.
Cause: dead units: experts without tokens. Place: an expert. Right: balance / router / bias / load. Wrong: add them to the optimizer,
learning rate, GradScaler."""
EXPECT = {"cause": ["dead_units"], "step": [0, 110], "place": r".*expert.*|.*moe.*|.*router.*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "leave out samples", "add_param_group"],
          "right": "balanc|router|rout|load|bias|token"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(73); torch.set_num_threads(1)
VOCAB, D, E = 48, 32, 8


class MoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(D, E, bias=False)
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(D, 48), nn.GELU(), nn.Linear(48, D)) for _ in range(E)])
        self.register_buffer("expert_bias", torch.zeros(E))
        self.register_buffer("load", torch.zeros(E))

    def forward(self, x):
        score = self.router(x).sigmoid()
        top = (score + self.expert_bias).topk(2, -1).indices
        gate = score.gather(1, top)
        gate = gate / gate.sum(1, keepdim=True)
        self.load = torch.bincount(top.flatten(), minlength=E).float()
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            row, slot = (top == e).nonzero(as_tuple=True)
            if len(row):
                out = out.index_add(0, row, gate[row, slot, None] * expert(x[row]))
        return x + out


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.mix, self.moe, self.head = nn.Embedding(VOCAB, D), nn.GRU(D, D, batch_first=True), MoE(), nn.Linear(D, VOCAB)

    def forward(self, ids):
        return self.head(self.moe(self.mix(self.tok(ids))[0].flatten(0, 1)))


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
watch = rangewatch.attach(model, optimizer)
for step in range(200):
    ids = torch.randint(0, VOCAB, (16, 17))
    for k in range(1, 17):
        ids[:, k] = torch.where(torch.rand(16) < 0.2, ids[:, k], (ids[:, k - 1] * 5 + 1) % VOCAB)
    loss = F.cross_entropy(model(ids[:, :-1]), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        load = model.moe.load
        model.moe.expert_bias += 0.02 * torch.sign(load - load.mean())
    watch.log(loss=loss.item())
    if step % 20 == 0 or step == 199:
        print(step, round(loss.item(), 4), [int(n) for n in load])
