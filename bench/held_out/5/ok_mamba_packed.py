"""A small selective state space model on packed documents: the state is set to 0 where a document begins, rows hold one to five documents, the first
token of each counts not in the loss; A_log and D have a group without weight decay and with a tenth of the rate. The loss goes up and down with the
lengths of the documents. HEALTHY. Without Rangewatch: loss 3.08 to 1.53, slow for eighty steps."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(528); torch.set_num_threads(1)
VOCAB, D, N, T = 20, 32, 8, 24


class Mamba(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.inward = nn.RMSNorm(D), nn.Linear(D, 2 * D)
        self.bc, self.dt, self.out = nn.Linear(D, 2 * N, bias=False), nn.Linear(D, D), nn.Linear(D, D)
        self.A_log, self.D = nn.Parameter(torch.arange(1, N + 1).float().log().repeat(D, 1)), nn.Parameter(torch.ones(D))
        nn.init.constant_(self.dt.bias, -2.0)

    def forward(self, x, begins):
        u, gate = self.inward(self.norm(x)).chunk(2, -1)
        u = F.silu(u)
        b, c = self.bc(u).chunk(2, -1)
        dt = F.softplus(self.dt(u))
        decay = torch.exp(-dt.unsqueeze(-1) * self.A_log.exp()) * (~begins)[:, :, None, None]
        drive = (dt * u).unsqueeze(-1) * b.unsqueeze(2)
        state, ys = torch.zeros_like(drive[:, 0]), []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + drive[:, t]
            ys.append((state * c[:, t].unsqueeze(1)).sum(-1))
        return x + self.out((torch.stack(ys, 1) + self.D * u) * F.silu(gate))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.layers, self.head = nn.Embedding(VOCAB, D), nn.ModuleList([Mamba(), Mamba()]), nn.Linear(D, VOCAB)

    def forward(self, ids, begins):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, begins)
        return self.head(x)


model = LM()
slow = [p for n, p in model.named_parameters() if n.endswith(("A_log", ".D"))]
rest = [p for n, p in model.named_parameters() if not n.endswith(("A_log", ".D"))]
optimizer = torch.optim.AdamW([{"params": rest}, {"params": slow, "lr": 3e-4, "weight_decay": 0.0}], lr=3e-3, weight_decay=0.1)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    share = 0.04 + 0.16 * float(torch.rand(())) if step % 10 else 0.3
    begins = torch.rand(16, T) < share
    begins[:, 0] = True
    ids = torch.randint(0, VOCAB, (16, T))
    for t in range(2, T):  # within a document a token is the sum of the two before it
        inside = ~begins[:, t] & ~begins[:, t - 1]
        ids[inside, t] = (ids[inside, t - 1] + ids[inside, t - 2]) % VOCAB
    target = ids[:, 1:].masked_fill(begins[:, 1:], -100)
    loss = F.cross_entropy(model(ids[:, :-1], begins[:, :-1]).flatten(0, 1), target.flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), flush=True)
handle.detach()
