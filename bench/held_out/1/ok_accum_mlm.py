"""HEALTHY: BERT-like masked language model, tied head, label smoothing, accumulation of 4 micro-batches normalised by their masked tokens, an
uneven last one an epoch (3 rows), now and then a micro-batch without a masked token, cosine with warm restarts; 200 steps."""
EXPECT = {"healthy": True, "cause": [""], "step": None}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)
V, D, T, MASK = 48, 48, 14, 0

class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(T, D)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, 4, 96, dropout=0.1, batch_first=True), 2)
        self.bias = nn.Parameter(torch.zeros(V))
    def forward(self, ids, pad):
        h = self.encoder(self.tok(ids) + self.pos(torch.arange(T)), src_key_padding_mask=pad)
        return F.linear(h, self.tok.weight, self.bias)

net = Bert()
nn.init.normal_(net.tok.weight, std=0.05)
opt = torch.optim.AdamW(net.parameters(), 2e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, 50, eta_min=2e-5)
watch = rangewatch.attach(net, opt)
chain = torch.softmax(3 * torch.randn(V - 1, V - 1), 1)
def rows(n):
    seq = [torch.randint(0, V - 1, (n,))]
    for _ in range(T - 1):
        seq.append(torch.multinomial(chain[seq[-1]], 1).squeeze(1))
    return torch.stack(seq, 1) + 1
for step in range(200):
    sizes = [12, 12, 12, 3] if step % 10 == 9 else [12] * 4
    micro = []
    for n in sizes:
        text = rows(n)
        pad = torch.arange(T) >= torch.randint(6, T + 1, (n, 1))
        chosen = (torch.rand(n, T) < (0.0 if n == 3 and step % 20 == 9 else 0.2)) & ~pad
        micro.append((text.masked_fill(chosen, MASK), pad, text.masked_fill(~chosen, -100)))
    tokens = sum((labels != -100).sum() for _, _, labels in micro)
    total = 0.0
    for ids, pad, labels in micro:
        loss = F.cross_entropy(net(ids, pad).flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum", label_smoothing=0.1) / tokens
        loss.backward()
        total += loss.item()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step(); sched.step(); opt.zero_grad()
    watch.log(loss=total, lr=sched.get_last_lr()[0])
    if step % 20 == 0:
        print(step, total)
