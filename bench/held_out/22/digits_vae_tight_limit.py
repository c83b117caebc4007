"""A variational autoencoder over drawn seven-segment digits, SGD with momentum. FAULT at step 0: the limit of clip_grad_norm_ is 1e-5 where 5 was meant (the norms
are some 10 to 40): each step is less than a millionth of what it should be and nothing is learned.
Without Rangewatch: loss 104 at step 0 and at step 199; the norm before the clip is 41 to 44 (with a limit of 5: loss 23).
Causes: clip (limit far too low). Right: raise the limit of the clip. Wrong: lower the rate, GradScaler, attention mask."""
EXPECT = {"cause": ["clip"], "step": [0, 199], "place": None, "rank": 0,
          "right": "(?i)clip|max_norm|limit", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2231); torch.set_num_threads(1)
SEGMENTS = torch.tensor([[1, 1, 1, 1, 1, 1, 0], [0, 1, 1, 0, 0, 0, 0], [1, 1, 0, 1, 1, 0, 1], [1, 1, 1, 1, 0, 0, 1], [0, 1, 1, 0, 0, 1, 1],
                         [1, 0, 1, 1, 0, 1, 1], [1, 0, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0], [1] * 7, [1, 1, 1, 1, 0, 1, 1]]).bool()
BARS = torch.zeros(7, 14, 10, dtype=torch.bool)
for i, (r0, r1, c0, c1) in enumerate([(1, 3, 2, 8), (2, 7, 7, 9), (7, 12, 7, 9), (11, 13, 2, 8), (7, 12, 1, 3), (2, 7, 1, 3), (6, 8, 2, 8)]):
    BARS[i, r0:r1, c0:c1] = True


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(140, 96), nn.Softplus(), nn.Linear(96, 12))
        self.dec = nn.Sequential(nn.Linear(6, 96), nn.Softplus(), nn.Linear(96, 140))

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, 1)
        out = self.dec(mu + torch.exp(logvar / 2) * torch.randn_like(mu))
        kl = 0.5 * (mu.square() + logvar.exp() - 1 - logvar).sum(1)
        return F.binary_cross_entropy_with_logits(out, x, reduction="none").sum(1).mean() + kl.mean()


model = VAE()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x = (SEGMENTS[torch.randint(0, 10, (64,)), :, None, None] & BARS).any(1).float().flatten(1)
    x = torch.where(torch.rand(x.shape) < 0.02, 1 - x, x)
    loss = model(x)
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1e-5)
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 25 == 0 or step == 199:
        print(step, loss.item(), "norm before the clip", norm.item(), flush=True)
handle.detach()
