"""Fine-tuning on questions about a passage (name the token behind the one asked for): a cross-attention over the padded passage with a hand-written masked softmax (-inf at the padding). FAULT at step 105: one sample
of the batch has an empty passage (its text was filtered away), its whole row is masked, softmax over -inf only is NaN.
Without Rangewatch: loss 3.47 to 0.028 at step 104, NaN from step 105 to the end.
Cause: mask (data). Step: 105. Right: mask / row masked whole / empty. Wrong: lower the learning rate, GradScaler."""
EXPECT = {"cause": ["mask", "data", "forward_arithmetic"], "step": [104, 107], "place": None, "rank": None,
          "right": "(?i)mask|softmax|-inf|empty|padding", "wrong": ["[Ll]ower the learning rate", "GradScaler", "(?i)all_reduce"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1212); torch.set_num_threads(1)
V, T, D = 30, 20, 48


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.key_emb, self.pos = nn.Embedding(V, D, padding_idx=0), nn.Embedding(T, D)
        self.question = nn.Embedding(V, D)
        self.q, self.k, self.v = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)
        self.norm, self.answer = nn.LayerNorm(D), nn.Linear(D, V)

    def forward(self, passage, ask):
        e = self.key_emb(passage)
        following = torch.cat((e[:, 1:], torch.zeros_like(e[:, :1])), 1)
        scores = self.q(self.question(ask))[:, None] @ self.k(e).transpose(1, 2) / D ** 0.5
        scores = scores.masked_fill((passage == 0)[:, None], float("-inf"))
        context = (scores.softmax(-1) @ self.v(following))[:, 0]
        return self.answer(self.norm(context + self.question(ask)))


def collate(n, step):
    lengths = torch.randint(6, T + 1, (n,))
    if step == 105:
        lengths[11] = 0
    passage = torch.stack([torch.randperm(V - 1)[:T] + 1 for _ in range(n)])
    at = (torch.rand(n) * (lengths - 1).clamp(min=1)).long()
    ask = passage[torch.arange(n), at]
    target = passage[torch.arange(n), at + 1]
    return passage * (torch.arange(T) < lengths[:, None]), ask, target


net = Reader()
optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(180):
    passage, ask, target = collate(32, step)
    loss = F.cross_entropy(net(passage, ask), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 103 < step < 108:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
