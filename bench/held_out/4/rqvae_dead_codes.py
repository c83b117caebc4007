"""Semantic ids for a recommender: an RQ-VAE over item vectors, one codebook of 64, straight-through estimator. FAULT from step 0: the codebook starts
far from where the encoder's outputs are (no k-means start), a few codes take all items and the other rows get no gradient at any time. Without Rangewatch:
1 of 64 codes in use up to step 50, 11 at the end, 50 were never used and their rows never moved; loss 206 to 4.6 (4.0 is the variance of the items).
Report: EdoardoBotta/RQ-VAE-Recommender#65 (codebook collapsed, usage approaches 0), LatentActionPretraining/LAPA#50.
Cause: dead units (codes), or rows of the codebook without gradient, which an optimizer that does not reach them is called too. Place: codebook.weight.
Right: dead / unused / restart / initial. Wrong: GradScaler, mask, lower the learning rate."""
EXPECT = {"cause": ["dead_units", "optimizer"], "step": [0, 199], "place": r"codebook.*", "rank": 0,
          "wrong": ["GradScaler", "[Mm]ask", "[Ll]ower the learning rate", "bfloat16"],
          "right": "dead|unused|never|rows|restart|re-?init|init|code"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(43); torch.set_num_threads(1)


class RQVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
        self.codebook = nn.Embedding(64, 8)
        self.decoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32))
        nn.init.normal_(self.codebook.weight, 10.0, 0.01)

    def forward(self, x):
        z = self.encoder(x)
        code = torch.cdist(z, self.codebook.weight).argmin(1)
        q = self.codebook(code)
        loss = F.mse_loss(q, z.detach()) + 1.0 * F.mse_loss(z, q.detach())
        return self.decoder(z + (q - z).detach()), loss, code


centres = 2 * torch.randn(200, 32)
model = RQVAE()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
seen = torch.zeros(64, dtype=torch.bool)
watch = rangewatch.attach(model, optimizer)
for step in range(200):
    x = centres[torch.randint(0, 200, (128,))] + 0.1 * torch.randn(128, 32)
    out, commit, code = model(x)
    loss = F.mse_loss(out, x) + commit
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seen[code.unique()] = True
    watch.log(loss=loss.item(), codes=len(code.unique()))
    if step % 20 == 0 or step == 199:
        print(step, round(loss.item(), 4), "codes", len(code.unique()), "ever", int(seen.sum()))
