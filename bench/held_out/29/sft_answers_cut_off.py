"""Supervised fine-tuning of a small language model: prompts carry the label -100, only the answer counts. FAULT at step 100: the batches are grouped by
length, one batch has only prompts longer than the cut at 24 tokens: no answer is left, all labels are -100, the mean over none is NaN (its gradient is 0: the weights stay sound).
Without Rangewatch: loss 3.88 to 2.76 at step 99, NaN at 100 alone, 2.87 at 101, 2.33 at the end.
Cause: mask (labels all ignored) or data. Step: 100. Right: label / -100 / ignore / truncat. Wrong: learning rate, GradScaler."""
EXPECT = {"cause": ["mask", "data"], "step": [99, 104], "place": None, "rank": None, "least": "info",
          "right": "(?i)label|-100|ignore|truncat|empty|mask|all[- ]padding|target", "wrong": ["[Ll]ower the learning rate", "GradScaler", "all_?reduce"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2908); torch.set_num_threads(1)
V, MAX = 30, 24
ANSWER = 1


class TinyLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.pos = nn.Embedding(V, 48), nn.Embedding(MAX, 48)
        layer = nn.TransformerEncoderLayer(48, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(48, V)

    def forward(self, ids):
        n = ids.shape[1]
        h = self.embed(ids) + self.pos(torch.arange(n))
        return self.head(self.layers(h, mask=nn.Transformer.generate_square_subsequent_mask(n), is_causal=True))


def example(length):
    prompt = torch.randint(2, V, (length,))
    answer = prompt[-3:].flip(0)
    ids = torch.cat((prompt, torch.tensor([ANSWER]), answer))
    labels = torch.cat((torch.full((length + 1,), -100), answer))
    return ids[:MAX], labels[:MAX]


def collate(lengths):
    rows = [example(n) for n in lengths]
    n = max(len(i) for i, _ in rows)
    ids = torch.stack([F.pad(i, (0, n - len(i)), value=0) for i, _ in rows])
    labels = torch.stack([F.pad(l, (0, n - len(l)), value=-100) for _, l in rows])
    return ids, labels


g = torch.Generator().manual_seed(4)
groups = [int(torch.randint(4, 19, (1,), generator=g)) for _ in range(170)]
groups[100] = 25
net = TinyLM()
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
handle = rangewatch.attach(net, optimizer)
for step, length in enumerate(groups):
    ids, labels = collate([length + j % 2 for j in range(16)])
    logits = net(ids)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 0 or step in (99, 101, 169):
        print(step, loss.item(), "labels that count", (labels != -100).sum().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
