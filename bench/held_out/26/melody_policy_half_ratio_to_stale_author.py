"""A policy that writes melodies of 10 notes and is rewarded for rising intervals; the surrogate is ratio * advantage with ratio = exp(log p - log p_old), the logs kept in float16 to save memory.
FAULT from the start: p_old is never renewed; the policy goes away from it until the difference passes 11 and exp() is Inf in float16.
Without Rangewatch: ratio 1.0, 3.4, 8.6, 1837, 25360 at steps 0, 60, 80, 100, 124; Inf and loss -Inf at 126; the next sampling raises a ValueError (logits are
NaN). The script ends there, by the crash.
Cause: forward_arithmetic or learning_rate. Step: where the first Inf shows. Right: float16 / exp / overflow / float32 / clamp. Wrong: attention mask, all_reduce."""
EXPECT = {"cause": ["forward_arithmetic", "learning_rate", "data", "crash"], "step": [0, 130], "place": None, "rank": None,
          "right": "(?i)float16|fp16|half|exp\\b|exp\\(|overflow|float32|clamp|ratio", "wrong": ["attention mask", "all_reduce"]}
import copy
import torch
from torch import nn
from torch.distributions import Categorical
import rangewatch

torch.manual_seed(6122); torch.set_num_threads(1)
NOTES, LENGTH = 12, 10


class Composer(nn.Module):
    def __init__(self):
        super().__init__()
        self.note, self.cell, self.out = nn.Embedding(NOTES + 1, 24), nn.GRUCell(24, 48), nn.Linear(48, NOTES)

    def logits(self, rows):
        h, outs = torch.zeros(len(rows), 48), []
        prev = torch.full((len(rows),), NOTES)
        for k in range(LENGTH):
            h = self.cell(self.note(prev), h)
            outs.append(self.out(h))
            prev = rows[:, k]
        return torch.stack(outs, 1)

    @torch.no_grad()
    def write(self, n):
        h, prev, rows = torch.zeros(n, 48), torch.full((n,), NOTES), []
        for _ in range(LENGTH):
            h = self.cell(self.note(prev), h)
            prev = Categorical(logits=self.out(h)).sample()
            rows.append(prev)
        return torch.stack(rows, 1)


def score(rows):
    up = rows[:, 1:] - rows[:, :-1]
    return (up == 2).float().mean(1) + 0.5 * (up == -5).float().mean(1)


def log_prob(net, rows):
    return net.logits(rows).log_softmax(-1).gather(2, rows[..., None])[..., 0].sum(1).half()


net = Composer()
author = copy.deepcopy(net).requires_grad_(False)
optimizer = torch.optim.Adam(net.parameters(), lr=3e-4)
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    rows = net.write(64)
    reward = score(rows)
    advantage = (reward - reward.mean()) / (reward.std() + 1e-4)
    ratio = (log_prob(net, rows) - log_prob(author, rows)).exp()
    loss = -(ratio * advantage.half()).float().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    optimizer.step()
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), "reward", reward.mean().item(), "ratio", ratio.max().item(), flush=True)
    handle.log(loss=loss.item(), reward=reward.mean().item())
handle.detach()
