"""HEALTHY: a transformer that sorts word forms of very different lengths. The scores of padding are -inf by hand (most of each score matrix, since the words
are short), the first place is a summary token so that no row is empty, and the learning rate warms up from 0. Odd to a watcher: many -inf, a rate of 0 at the start.
Without Rangewatch: loss 1.97 to 0.38 at step 30, 0.001 at the end."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2341); torch.set_num_threads(1)
ends = torch.randint(1, 30, (6, 2))


class Layer(nn.Module):
    def __init__(self, d=40):
        super().__init__()
        self.norm, self.qkv, self.mix = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x, there):
        q, k, v = self.qkv(self.norm(x)).unflatten(2, (3, 4, 10)).permute(2, 0, 3, 1, 4)
        scores = (q @ k.mT) / 10 ** 0.5
        scores = scores.masked_fill(~there[:, None, None], float("-inf"))
        x = x + self.mix((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class Forms(nn.Module):
    def __init__(self):
        super().__init__()
        self.letter, self.place = nn.Embedding(31, 40, padding_idx=0), nn.Embedding(17, 40)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.form = nn.Linear(40, 6)

    def forward(self, x):
        x = torch.cat((torch.full_like(x[:, :1], 30), x), 1)
        h = self.letter(x) + self.place(torch.arange(17))
        for layer in self.layers:
            h = layer(h, x != 0)
        return self.form(h[:, 0])


model = Forms()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, s / 30))
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    y = torch.randint(0, 6, (48,))
    x = torch.zeros(48, 16, dtype=torch.long)
    for i, length in enumerate((2 + torch.poisson(torch.full((48,), 2.0)).long().clamp(max=14)).tolist()):
        x[i, :length] = torch.randint(1, 30, (length,))
        x[i, length - 2:length] = ends[y[i]]
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 30 == 0 or step == 239:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
