"""HEALTHY: sequence VAE whose KL weight is annealed from 0 to 1 in two cycles: the loss grows for a hundred steps, falls at once; 400 steps."""
EXPECT = {"healthy": True, "cause": [""], "step": None}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class SeqVAE(nn.Module):
    def __init__(self, v=16, h=40, z=8):
        super().__init__()
        self.emb, self.enc, self.stats = nn.Embedding(v, h), nn.GRU(h, h, batch_first=True), nn.Linear(h, 2 * z)
        self.init, self.dec, self.out = nn.Linear(z, h), nn.GRU(h, h, batch_first=True), nn.Linear(h, v)
    def forward(self, ids):
        mu, logvar = self.stats(self.enc(self.emb(ids))[1][0]).chunk(2, 1)
        z = mu + (0.5 * logvar).exp() * torch.randn_like(mu)
        shifted = F.pad(ids[:, :-1], (1, 0))
        out, _ = self.dec(F.dropout(self.emb(shifted), 0.3), torch.tanh(self.init(z))[None])
        return self.out(out), mu, logvar

net = SeqVAE()
opt = torch.optim.Adam(net.parameters(), 2e-3)
watch = rangewatch.attach(net, opt)
for step in range(400):
    base = torch.randint(0, 16, (24, 1))
    ids = (base + torch.arange(10) * torch.randint(1, 3, (24, 1))) % 16
    logits, mu, logvar = net(ids)
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
    beta = min(1.0, step % 200 / 100)
    loss = F.cross_entropy(logits.mT, ids) * 10 + beta * kl
    opt.zero_grad(); loss.backward(); opt.step()
    watch.log(loss=loss.item(), beta=beta, kl=kl.item())
