"""A pointer net that sorts 7 numbers; the places already visited get the score -inf, as they should. FAULT at step 121: the `fast phase` of the schedule sets the learning rate to
0.4 (4e-3 before; 4e-4 was meant): the net is thrown away and does not come back.
Without Rangewatch: loss 1.22 to 0.032 at step 121, 0.63 at 122, 2.5 at 123, 170 at 140, 31 at the end.
Cause: learning_rate. Step: 121. Right: learning rate. Wrong: the mask, GradScaler."""
EXPECT = {"cause": ["learning_rate"], "step": [120, 150], "place": None, "rank": None,
          "right": "(?i)learning rate|\\blr\\b|schedul", "wrong": ["GradScaler", "(?i)masks? out (a|the) whole", "(?i)row .{0,30}masked", "all_reduce"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(6124); torch.set_num_threads(1)
N = 7


class Pointer(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(1, d), nn.ReLU(), nn.Linear(d, d))
        self.reader = nn.LSTM(d, d, batch_first=True, bidirectional=True)
        self.key, self.cell, self.query = nn.Linear(2 * d, d), nn.GRUCell(d, d), nn.Linear(d, d)

    def forward(self, x, order):
        e = self.embed(x[..., None])
        key = self.key(self.reader(e)[0])
        h, prev = key.mean(1), torch.zeros_like(e[:, 0])
        visited, loss = torch.zeros_like(x, dtype=torch.bool), 0.0
        for k in range(N):
            h = self.cell(prev, h)
            score = (key * self.query(h)[:, None]).sum(2) / 7
            score = score.masked_fill(visited, float("-inf"))
            loss = loss + F.cross_entropy(score, order[:, k]) / N
            prev = e[torch.arange(len(x)), order[:, k]]
            visited = visited | F.one_hot(order[:, k], N).bool()
        return loss


def rate(step):
    if step < 121:
        return 4e-3 * min(1.0, (step + 1) / 20)
    return 4e-1


net = Pointer()
optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3, weight_decay=0.01)
handle = rangewatch.attach(net, optimizer)
for step in range(180):
    for group in optimizer.param_groups:
        group["lr"] = rate(step)
    x = torch.rand(64, N)
    loss = net(x, x.argsort(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (121, 122, 123, 179):
        print(step, loss.item(), "lr", rate(step), flush=True)
    handle.log(loss=loss.item())
handle.detach()
