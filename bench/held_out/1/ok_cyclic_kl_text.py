"""HEALTHY: LSTM text VAE with cyclical KL annealing (0 to 1 four times), free bits, word dropout, packed sequences of uneven length; the logged loss
jumps as beta climbs and drops with each cycle; 320 steps."""
EXPECT = {"healthy": True, "cause": [""], "step": None}
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)
V, D, Z, T = 40, 48, 8, 14

class TextVae(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(V, D, padding_idx=0)
        self.encoder, self.decoder = nn.LSTM(D, D, batch_first=True), nn.LSTM(D + Z, D, batch_first=True)
        self.mu, self.logvar, self.out = nn.Linear(D, Z), nn.Linear(D, Z), nn.Linear(D, V)
    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.tok(ids), lengths, batch_first=True, enforce_sorted=False)
        h = self.encoder(packed)[1][0][0]
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + (0.5 * logvar).exp() * torch.randn_like(mu)
        dropped = ids.masked_fill((torch.rand(ids.shape) < 0.3) & (ids > 0), 1)
        h = self.decoder(torch.cat([self.tok(dropped[:, :-1]), z[:, None].expand(-1, ids.shape[1] - 1, -1)], -1))[0]
        return self.out(h), mu, logvar

net = TextVae()
opt = torch.optim.Adam(net.parameters(), 2e-3)
watch = rangewatch.attach(net, opt)
styles = torch.softmax(3 * torch.randn(4, V - 2, V - 2), -1)
for step in range(320):
    style = torch.randint(0, 4, (24,))
    seq = [torch.randint(0, V - 2, (24,))]
    for _ in range(T - 1):
        seq.append(torch.multinomial(styles[style, seq[-1]], 1).squeeze(1))
    lengths = torch.randint(5, T + 1, (24,))
    lengths[0] = T
    ids = (torch.stack(seq, 1) + 2).masked_fill(torch.arange(T) >= lengths[:, None], 0)
    logits, mu, logvar = net(ids, lengths)
    reconstruction = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)
    kl = (0.5 * (mu ** 2 + logvar.exp() - 1 - logvar)).mean(0).clamp(min=0.1).sum()
    beta = min(1.0, (step % 80) / 40)
    loss = reconstruction + beta * kl
    opt.zero_grad(); loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 5.0)
    opt.step()
    watch.log(loss=loss.item(), kl=kl.item(), beta=beta)
    if step % 20 == 0:
        print(step, loss.item(), kl.item(), beta)
