"""Podcast listeners: matrix factorisation with biases for 300 listeners and 2000 podcasts, sparse embeddings under SparseAdam, the dense part under Adam; both rates are warmed up from 0 by LambdaLR and then fall linearly.
HEALTHY: the gradients of the embeddings are sparse tensors, most rows of the table get none in a given step (the rarest podcasts a handful in the whole run), and in step 0 both rates are exactly 0, so that nothing moves.
Without Rangewatch: loss 0.67 to 0.15, some 115 of 2000 rows touched in a step."""
EXPECT = {"healthy": True}
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
import rangewatch

torch.manual_seed(21)
torch.set_num_threads(1)
LISTENERS, PODCASTS, STEPS = 300, 2000, 320
u, v = torch.randn(LISTENERS, 4), torch.randn(PODCASTS, 4)
popular = 1.0 / torch.arange(1, PODCASTS + 1).float() ** 1.1


class Factorisation(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.listener = nn.Embedding(LISTENERS, d, sparse=True)
        self.podcast = nn.Embedding(PODCASTS, d, sparse=True)
        for e in (self.listener, self.podcast):
            nn.init.normal_(e.weight, std=0.3)
        self.mix = nn.Linear(d, 1)

    def forward(self, i, j):
        return self.mix(self.listener(i) * self.podcast(j)).squeeze(1)


def lamp(step):
    return step / 20 if step < 20 else (STEPS - step) / (STEPS - 20)


model = Factorisation()
sparse = torch.optim.SparseAdam([model.listener.weight, model.podcast.weight], lr=0.03)
dense = torch.optim.Adam(model.mix.parameters(), lr=0.01)
lamps = [LambdaLR(o, lamp) for o in (sparse, dense)]
handle = rangewatch.attach(model, [sparse, dense])
for step in range(STEPS):
    i = torch.randint(0, LISTENERS, (256,))
    j = torch.multinomial(popular, 256, replacement=True)
    share = torch.tanh((u[i] * v[j]).sum(1)) + 0.1 * torch.randn(256)
    loss = nn.functional.mse_loss(model(i, j), share)
    for o in (sparse, dense):
        o.zero_grad()
    loss.backward()
    for o in (sparse, dense):
        o.step()
    for s in lamps:
        s.step()
    handle.log(loss=loss.item())
    if step % 25 == 0 or step == STEPS - 1:
        print(f"step {step} loss {loss.item():.4f} rows of podcasts touched {len(j.unique())}", flush=True)
handle.detach()
