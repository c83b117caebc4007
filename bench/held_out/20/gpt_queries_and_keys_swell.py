"""A small GPT over arithmetic ("7+5=12;"). FAULT at step 60: queries and keys get a param group with a negative weight decay (a sign lost in the
config, -8 at a rate of 3e-3); they grow by 2% a step, the logits of the attention by 5%, until each row looks at one place alone.
Without Rangewatch: largest logit 12 at step 60, 77 at step 100, 1,226 at step 160, 37,748 at the end; loss 1.01 at step 60, 0.95 to 1.03 to the
end (0.81 without the fault).
Cause: weight (growth), optimizer / regularization (decay of the wrong sign), learning_rate, forward_arithmetic. Step: 60 on.
Right: attention logits / query / key / norm / decay. Wrong: attention mask, GradScaler."""
EXPECT = {"cause": ["weight", "regularization", "optimizer", "learning_rate", "forward_arithmetic"], "step": [59, 220],
          "place": r".*(query|key|attend|block|read).*|", "rank": 0, "wrong": ["GradScaler", "(?i)attention mask"],
          "right": "(?i)logit|quer|key|norm|decay|softmax|rate|grow"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2024); torch.set_num_threads(1)
WIDE = 40


class Attend(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.mix = (nn.Linear(WIDE, WIDE) for _ in range(4))

    def forward(self, x):
        q, k, v = (f(x).unflatten(2, (4, 10)).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = q @ k.transpose(2, 3) / 10**0.5
        self.largest = scores.detach().abs().max().item()
        above = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.mix((scores.masked_fill(above, float("-inf")).softmax(3) @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.attend, self.norm_2 = nn.LayerNorm(WIDE), Attend(), nn.LayerNorm(WIDE)
        self.feed = nn.Sequential(nn.Linear(WIDE, 80), nn.GELU(), nn.Linear(80, WIDE))

    def forward(self, x):
        x = x + self.attend(self.norm_1(x))
        return x + self.feed(self.norm_2(x))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.place = nn.Embedding(13, WIDE), nn.Parameter(0.02 * torch.randn(24, WIDE))
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.out = nn.LayerNorm(WIDE), nn.Linear(WIDE, 13)

    def forward(self, x):
        return self.out(self.norm(self.blocks(self.token(x) + self.place[:x.shape[1]])))


def sums(n):
    rows = []
    for _ in range(n):
        row = []
        while len(row) < 25:
            a, b = torch.randint(0, 10, (2,)).tolist()
            row += [a, 10, b, 11, *divmod(a + b, 10), 12]
        rows.append(row[:25])
    return torch.tensor(rows)


model = Gpt()
named = dict(model.named_parameters())
inner = [p for n, p in named.items() if ".query.weight" in n or ".key.weight" in n]
rest = [p for n, p in named.items() if not (".query.weight" in n or ".key.weight" in n)]
optimizer = torch.optim.AdamW([{"params": rest}, {"params": inner}], lr=3e-3, weight_decay=0.01)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    if step == 60:
        optimizer.param_groups[1]["weight_decay"] = -8.0
    x = sums(32)
    loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (59, 61, 239):
        print(step, loss.item(), "largest logit of attention", [round(b.attend.largest, 1) for b in model.blocks], flush=True)
    handle.log(loss=loss.item())
handle.detach()
