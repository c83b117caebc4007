"""A two-layer recurrent net with ReLU, begun at the identity, that adds the numbers of a sequence, the marked ones twice. FAULT at step 115: the top bit of the exponent of one weight of the second layer's recurrent matrix
flips (a bad memory cell, acted out): 0.05 becomes about 1e37.
Without Rangewatch: loss 2.9 to 0.039 at step 114; weight (3, 32) goes from 0.028 to 9.4e36; NaN from step 115 on.
Cause: hardware or weight. Step: 115. Place: the recurrent net. Right: bit / hardware / memory / restore the checkpoint. Wrong: GradScaler, attention mask, lower the rate."""
EXPECT = {"cause": ["hardware", "weight"], "step": [114, 117], "place": "memory.*", "rank": 0,
          "right": "(?i)bit|hardware|memory|checkpoint|ECC", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2405); torch.set_num_threads(1)


class Adder(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory = nn.RNN(2, 48, num_layers=2, nonlinearity="relu", batch_first=True)
        for n, p in self.memory.named_parameters():
            if "weight_hh" in n:
                p.data.copy_(torch.eye(48) + 0.01 * torch.randn(48, 48))
        self.sum = nn.Linear(48, 1)

    def forward(self, x):
        return self.sum(self.memory(x)[0][:, -1])[:, 0]


def sequences(n, length=10):
    values, marks = torch.rand(n, length), torch.zeros(n, length)
    marks.scatter_(1, torch.rand(n, length).argsort(1)[:, :2], 1.0)
    return torch.stack((values, marks), 2), (values * (1 + marks)).sum(1) / 3


model = Adder()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, total = sequences(64)
    if step == 115:
        with torch.no_grad():
            cell = model.memory.weight_hh_l1
            busy = int(model.memory(x)[0].mean((0, 1)).argmax())
            row = int(cell[:, busy].topk(2).indices[1])
            before = cell[row, busy].item()
            cell.view(torch.int32)[row, busy] ^= 1 << 30
            print("weight", (row, busy), before, "->", cell[row, busy].item())
    loss = F.mse_loss(model(x), total)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 15 == 0 or 112 < step < 120 or step == 199:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
