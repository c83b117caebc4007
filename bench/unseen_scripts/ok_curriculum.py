"""HEALTHY: curriculum: copying sequences of 3, 6, 12, 20 characters, 100 steps each: the loss jumps back at each change; 400 steps."""
EXPECT = {"healthy": True, "cause": [""], "step": None}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class Copier(nn.Module):
    def __init__(self, v=12, h=64):
        super().__init__()
        self.emb, self.rnn, self.out = nn.Embedding(v, 24), nn.LSTM(24, h, batch_first=True), nn.Linear(h, v)
    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])

net = Copier()
opt = torch.optim.Adam(net.parameters(), 5e-3)
rangewatch.attach(net, opt)
for step in range(400):
    n = (3, 6, 12, 20)[step // 100]
    x = torch.randint(1, 12, (24, n))
    ids = torch.cat([x, torch.zeros(24, n, dtype=torch.long)], 1)
    logits = net(ids)[:, n:]
    loss = F.cross_entropy(logits.mT, x)
    opt.zero_grad(); loss.backward()
    nn.utils.clip_grad_value_(net.parameters(), 0.5)
    opt.step()
