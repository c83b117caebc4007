"""A denoiser of short tunes (diffusion, 12 noise levels) over 160 tunes in epochs of ten steps (AdamW). FAULT from the second epoch: the generator of the shuffle,
the noise and the levels is made with its seed inside `one_epoch`: each epoch has the same order and the same noise; the net learns that noise by heart.
Without Rangewatch: loss 1.12 to 0.056; with fresh noise on the same tunes 0.475 at step 99 and 0.544 at the end.
Cause: data. Step: 0 or the second epoch. Right: seed / shuffle / generator / same batches. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["data", "(none)"], "step": [0, 60], "place": None, "rank": None, "least": "info",
          "right": "(?i)seed|shuffl|generator|epoch|same|repeat|order", "wrong": ["GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2725); torch.set_num_threads(1)
t = torch.linspace(0, 1, 24)


def tunes(n):
    return torch.sin(6.28 * (torch.randint(1, 4, (n, 1)) * t + torch.rand(n, 1))) * (0.5 + torch.rand(n, 1))


train, held = tunes(160), tunes(160)
keep = torch.linspace(0.98, 0.2, 12)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.level = nn.Embedding(12, 128)
        self.enter, self.mid, self.leave = nn.Linear(24, 128), nn.Linear(128, 128), nn.Linear(128, 24)

    def forward(self, x, level):
        h = nn.functional.silu(self.enter(x) + self.level(level))
        return self.leave(h + nn.functional.silu(self.mid(h)))


def noise_loss(x, g):
    level = torch.randint(0, 12, (len(x),), generator=g)
    noise = torch.randn(x.shape, generator=g)
    k = keep[level][:, None]
    return (net(k.sqrt() * x + (1 - k).sqrt() * noise, level) - noise).pow(2).mean()


def one_epoch(tunes, batch=16, seed=1234):
    g = torch.Generator().manual_seed(seed)
    for rows in torch.randperm(len(tunes), generator=g).split(batch):
        yield noise_loss(tunes[rows], g)


net = Denoiser()
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
handle = rangewatch.attach(net, optimizer)
fresh = torch.Generator().manual_seed(9)
step = 0
for epoch in range(25):
    for loss in one_epoch(train):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        handle.log(loss=loss.item())
        step += 1
    if epoch % 3 == 0:
        with torch.no_grad():
            print(epoch, step - 1, loss.item(), "same tunes, fresh noise", noise_loss(train, fresh).item(), "held out", noise_loss(held, fresh).item(), flush=True)
handle.detach()
