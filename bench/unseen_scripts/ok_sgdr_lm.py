"""HEALTHY: weight-dropped GRU language model, tied weights, SGD with warm restarts (lr 0.01 -> 2 at each restart), clipping; loss bumps; 400 steps."""
EXPECT = {"healthy": True, "cause": [""], "step": None}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class LM(nn.Module):
    def __init__(self, v=40, d=40):
        super().__init__()
        self.emb, self.rnn, self.drop, self.bias = nn.Embedding(v, d), nn.GRU(d, d), nn.Dropout(0.2), nn.Parameter(torch.zeros(v))
    def forward(self, ids, h):
        out, h = self.rnn(self.drop(self.emb(ids)), h)
        return F.linear(self.drop(out), self.emb.weight, self.bias), h

net = LM()
opt = torch.optim.SGD(net.parameters(), lr=2.0)
sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, 80, eta_min=0.01)
watch = rangewatch.attach(net, opt)
chain = torch.softmax(2.5 * torch.randn(40, 40), 1)
h, last = torch.zeros(1, 16, 40), torch.randint(0, 40, (16,))
for step in range(400):
    seq = [last]
    for _ in range(12):
        seq.append(torch.multinomial(chain[seq[-1]], 1).squeeze(1))
    seq, last = torch.stack(seq), seq[-1]
    logits, h = net(seq[:-1], h.detach())
    loss = F.cross_entropy(logits.flatten(0, 1), seq[1:].flatten())
    opt.zero_grad(); loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    opt.step(); sched.step()
    watch.log(loss=loss.item(), lr=sched.get_last_lr()[0])
