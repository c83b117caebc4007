"""HEALTHY: an encoder and decoder of nn.Transformer translate number words of different length; padding is masked with -inf in the keys, the decoder with a causal mask of -inf,
the loss leaves the padding out (ignore_index), and the rate warms up over 40 steps. Each row has one real sign at least.
Without Rangewatch: loss 2.78 to 0.51 at step 50, 0.0011 at the end.
Nothing is wrong."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2243); torch.set_num_threads(1)
PAD, START, V = 0, 1, 14


class Translate(nn.Module):
    def __init__(self, w=48):
        super().__init__()
        self.src, self.tgt, self.spot = nn.Embedding(V, w, padding_idx=PAD), nn.Embedding(V, w, padding_idx=PAD), nn.Parameter(0.5 * torch.randn(12, w))
        self.core = nn.Transformer(w, 4, 1, 1, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.word = nn.Linear(w, V)

    def forward(self, s, t):
        empty = torch.zeros(s.shape).masked_fill(s == PAD, float("-inf"))
        ahead = nn.Transformer.generate_square_subsequent_mask(t.shape[1])
        h = self.core(self.src(s) + self.spot[: s.shape[1]], self.tgt(t) + self.spot[: t.shape[1]], tgt_mask=ahead,
                      src_key_padding_mask=empty, memory_key_padding_mask=empty)
        return self.word(h)


model = Translate()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 40))
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    length = torch.randint(1, 9, (48, 1))
    inside = torch.arange(8) < length
    s = torch.randint(4, V, (48, 8)) * inside
    t = torch.where(inside, 4 + (s - 4 + 3) % 10, PAD)  # each word is moved by three
    given = torch.cat((torch.full((48, 1), START), t[:, :-1]), 1)
    loss = F.cross_entropy(model(s, given).flatten(0, 1), t.flatten(), ignore_index=PAD)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    warm.step()
    handle.log(loss=loss.item())
    if step % 25 == 0 or step == 219:
        print(step, loss.item(), flush=True)
handle.detach()
