"""A mixture of 8 experts, top 2, balanced by a bias per expert that moves by the sign of its load, the right way round; a shared expert; an expert now and
then gets no token of a batch. HEALTHY: loads go up and down from step to step. Without Rangewatch: loss 3.9 to 1.1, loads 21 to 101 of 512 at first, 53 to 72 at the end."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(109); torch.set_num_threads(1)
VOCAB, D, E = 48, 32, 8


class MoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.shared = nn.Linear(D, E, bias=False), nn.Sequential(nn.Linear(D, 32), nn.GELU(), nn.Linear(32, D))
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(D, 48), nn.GELU(), nn.Linear(48, D)) for _ in range(E)])
        self.register_buffer("expert_bias", torch.zeros(E))
        self.load = torch.zeros(E)

    def forward(self, x):
        score = self.router(x).sigmoid()
        top = (score + self.expert_bias).topk(2, -1).indices
        gate = score.gather(1, top)
        gate = gate / gate.sum(1, keepdim=True)
        self.load = torch.bincount(top.flatten(), minlength=E).float()
        out = self.shared(x)
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
        model.moe.expert_bias -= 0.005 * torch.sign(load - load.mean())
    watch.log(loss=loss.item())
    if step % 20 == 0 or step == 199:
        print(step, round(loss.item(), 4), [int(n) for n in load])
