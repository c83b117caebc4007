"""Support tickets are routed to 5 teams by a transformer encoder with a key padding mask, AdamW, clip at 1.
FAULT at step 143: a ticket without any text (only pad tokens) comes in the batch; its row of the mask is all True, the softmax runs over nothing but -inf and gives NaN.
Without Rangewatch: 1.62 to 0.29 at step 142, NaN from 143 on.
Cause: mask (a row that masks all) / data. Step: 143. Right: drop empty texts, leave one key visible. Wrong: lower the learning rate, GradScaler, eps of the optimizer."""
EXPECT = {"cause": ["mask", "data"], "step": [142, 145], "place": None, "rank": None,
          "right": r"(?i)mask|empty|padd", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)zero_grad"]}
import random
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
import rangewatch

torch.manual_seed(510); random.seed(510); torch.set_num_threads(1)
PAD, TEAMS, WORDS = 0, 5, 80
keywords = {team: list(range(1 + team * 8, 9 + team * 8)) for team in range(TEAMS)}


def ticket():
    team = random.randrange(TEAMS)
    n = random.randint(3, 16)
    return [random.choice(keywords[team]) if random.random() < 0.3 else random.randint(41, WORDS - 1) for _ in range(n)], team


def inbox():
    batch_no = 0
    while True:
        texts, teams = zip(*(ticket() for _ in range(24)))
        texts = list(texts)
        if batch_no == 143:
            texts[9] = []
        batch_no += 1
        yield pad_sequence([torch.tensor(t, dtype=torch.long) for t in texts], batch_first=True, padding_value=PAD), torch.tensor(teams)


class SelfAttention(nn.Module):
    def __init__(self, d, heads=4):
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x, pad):
        B, L, d = x.shape
        q, k, v = self.qkv(x).view(B, L, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        weights = q @ k.transpose(-1, -2) / (d // self.heads) ** 0.5
        weights = weights.masked_fill(pad[:, None, None, :], float("-inf")).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(B, L, d))


class Router(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.words = nn.Embedding(WORDS, d, padding_idx=PAD)
        self.attn = nn.ModuleList(SelfAttention(d) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(2))
        self.teams = nn.Linear(d, TEAMS)

    def forward(self, ids):
        pad = ids == PAD
        h = self.words(ids)
        for attn, norm in zip(self.attn, self.norms):
            h = h + attn(norm(h), pad)
        keep = (~pad).unsqueeze(-1).float()
        return self.teams((h * keep).sum(1) / keep.sum(1).clamp(min=1))


router = Router()
opt = torch.optim.AdamW(router.parameters(), lr=2e-3)
handle = rangewatch.attach(router, opt)
for step, (ids, team) in zip(range(220), inbox()):
    loss = nn.functional.cross_entropy(router(ids), team)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(router.parameters(), 1.0)
    opt.step()
    if step % 20 == 0 or 141 < step < 146:
        print(step, f"{loss.item():.4f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
