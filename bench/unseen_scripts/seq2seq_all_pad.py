"""Seq2seq GRU with additive attention and teacher forcing, cross entropy with ignore_index=0. FAULT at step 120: a batch whose targets
are all padding: mean over no target = 0/0 = NaN loss. Cause: data (empty targets; in the loss), step 120, place: loss.
Right: targets of this batch / at least one target. Wrong: learning rate, -inf mask advice, weights, dtype."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [120, 120], "place": r"(loss|\(loss\)|)", "rank": 0,
          "wrong": ["learning rate", "whole rows", "checkpoint", "GradScaler", "bfloat16"], "right": "target|batch"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)
PAD, BOS, V, H = 0, 1, 20, 40

class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, H, padding_idx=PAD)
        self.cell = nn.GRUCell(2 * H, H)
        self.wq, self.wk, self.v = nn.Linear(H, H), nn.Linear(H, H), nn.Linear(H, 1)
        self.out = nn.Linear(2 * H, V)
    def forward(self, memory, pad, h, shifted):
        keys, logits = self.wk(memory), []
        for t in range(shifted.shape[1]):
            e = self.v(torch.tanh(self.wq(h)[:, None] + keys)).squeeze(-1).masked_fill(pad, float("-inf"))
            ctx = (e.softmax(-1)[..., None] * memory).sum(1)
            h = self.cell(torch.cat([self.emb(shifted[:, t]), ctx], 1), h)
            logits.append(self.out(torch.cat([h, ctx], 1)))
        return torch.stack(logits, 1)

class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.enc, self.dec = nn.Embedding(V, H, padding_idx=PAD), nn.GRU(H, H, batch_first=True), Decoder()
    def forward(self, src, shifted):
        memory, h = self.enc(self.emb(src))
        return self.dec(memory, src == PAD, h[0], shifted)

net = Seq2Seq()
opt = torch.optim.Adam(net.parameters(), 3e-3)
rangewatch.attach(net, opt)
for step in range(180):
    src = torch.randint(2, V, (16, 7))
    for row, n in enumerate(torch.randint(3, 8, (16,)).tolist()):
        src[row, n:] = PAD
    tgt = src.clone()
    if step == 120:
        tgt[:] = PAD                       # the answers of this shard were filtered away
    shifted = torch.cat([torch.full((16, 1), BOS), tgt[:, :-1]], 1)
    loss = F.cross_entropy(net(src, shifted).transpose(1, 2), tgt, ignore_index=PAD)
    opt.zero_grad(); loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
