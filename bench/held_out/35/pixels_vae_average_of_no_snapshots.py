"""A variational autoencoder of 8x8 glyphs (Adam, beta2 0.99). FAULT before step 135: the script begins a round of weight averaging and copies `total / count` into the decoder's first layer, but the snapshots begin one step later: count is 0, total is 0, and 0/0
makes `unpack.0.weight` all NaN.
Without Rangewatch: loss 45 to 10.9 at step 134, NaN from step 135 on; after that step all eight parameters are NaN.
Cause: weight. Step: 135. Right: NaN in the weight of unpack.0, written between the steps; go back to a checkpoint. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["weight"], "step": [134, 136], "place": r"unpack(\.0)?(\.weight)?", "rank": None,
          "right": "(?i)weight|parameter|checkpoint|written|between", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
from torch import nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(5119)
torch.set_num_threads(1)


def glyphs(n):
    row, col = torch.randint(1, 7, (2, n, 1))
    thick = torch.randint(0, 2, (n, 1))
    line = torch.arange(8)
    on_row = ((line - row).abs() <= thick)[:, :, None].expand(n, 8, 8)
    on_col = (line == col)[:, None, :].expand(n, 8, 8)
    return (on_row | on_col).float().flatten(1)


class GlyphVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.pack = nn.Sequential(nn.Linear(64, 96), nn.Mish(), nn.Linear(96, 16))
        self.unpack = nn.Sequential(nn.Linear(8, 96), nn.Mish(), nn.Linear(96, 64))

    def forward(self, x):
        mu, logvar = self.pack(x).chunk(2, 1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        kl = 0.5 * (mu.square() + logvar.exp() - 1 - logvar).sum(1).mean()
        return self.unpack(z), kl


vae = GlyphVAE()
optimizer = torch.optim.Adam(vae.parameters(), lr=3e-3, betas=(0.9, 0.99))
handle = rangewatch.attach(vae, optimizer)
total, count = torch.zeros_like(vae.unpack[0].weight), 0
for step in range(210):
    if step == 135:
        vae.unpack[0].weight.data.copy_(total / torch.tensor(float(count)))
    if step > 135 and step % 5 == 0:
        total += vae.unpack[0].weight.detach()
        count += 1
    x = glyphs(100)
    logits, kl = vae(x)
    loss = F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1).mean() + 0.5 * kl
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 27 == 0 or 133 < step < 138:
        bad = [k for k, p in vae.named_parameters() if p.isnan().any()]
        print(step, "elbo loss", loss.item(), "NaN after the step in", bad, flush=True)
handle.detach()
