"""A classifier by curriculum: three families for 120 steps (log-probabilities of species summed), then fifteen species, then shares of annotators as
targets, whose entropy is 0.94: the loss leaps at steps 120 and 220 and cannot fall below that in the end. HEALTHY.
Without Rangewatch: loss 1.09 to 0.001 at step 119, 2.58 at step 120, 0.031 at step 219, 1.63 at step 220, 0.95 at the end."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(839); torch.set_num_threads(1)
FINE, COARSE = 15, 3
family = torch.arange(FINE) // 5
look = torch.randn(COARSE, 20)[family] * 2 + torch.randn(FINE, 20)


class Taxonomist(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.fine = nn.Linear(64, FINE)

    def forward(self, x):
        return self.fine(self.body(x)).log_softmax(1)


model = Taxonomist()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(300):
    kind = torch.randint(0, FINE, (48,))
    x = look[kind] + 0.8 * torch.randn(48, 20)
    out = model(x)
    if step < 120:  # families: the fine classes of each are summed
        coarse = torch.stack([out[:, family == f].logsumexp(1) for f in range(COARSE)], 1)
        loss = F.nll_loss(coarse, family[kind])
    elif step < 220:  # species
        loss = F.nll_loss(out, kind)
    else:  # species, as three annotators saw them: targets are shares
        share = F.one_hot(kind, FINE).float() * 0.7 + (family[kind][:, None] == family[None]).float() * 0.06
        loss = -(out * share).sum(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (119, 219, 299):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
