"""A message-passing net on random graphs predicts a number ("solubility"); smooth L1, Adam. FAULT: the batch of step 150 holds a molecule that was never measured: its target is NaN
(float("") handled as nan by the loader).
Without Rangewatch: loss 0.98 to 0.0014 at step 149; NaN at step 150 and from there on.
Cause: data (the target). Step: 150. Right: target / label / data. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["data"], "step": [149, 154], "place": None, "rank": None,
          "right": "(?i)target|label|data|batch", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(338); torch.set_num_threads(1)
ATOMS, KINDS = 9, 5
charge = torch.tensor([0.5, -0.8, 0.1, 1.0, -0.4])


def molecules(n, step):
    kind = torch.randint(0, KINDS, (n, ATOMS))
    a = (torch.rand(n, ATOMS, ATOMS) < 0.25).float().triu(1)
    a = a + a.transpose(1, 2)
    c = charge[kind]
    text = ["%.4f" % v for v in (c.sum(1) * 0.4 + (c[:, :, None] * c[:, None] * a).sum((1, 2)) * 0.3).tolist()]
    if step == 150:
        text[11] = ""
    return kind, a, torch.tensor([float(t or "nan") for t in text])


class Message(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.send, self.update = nn.Linear(d, d), nn.Linear(2 * d, d)

    def forward(self, h, a):
        return h + F.silu(self.update(torch.cat([h, a @ self.send(h)], -1)))


class Net(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.atom = nn.Embedding(KINDS, d)
        self.rounds = nn.ModuleList(Message(d) for _ in range(2))
        self.pool = nn.Linear(d, 1)

    def forward(self, kind, a):
        h = self.atom(kind)
        for r in self.rounds:
            h = r(h, a)
        return self.pool(h).sum((1, 2)) / 3


net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(210):
    kind, a, y = molecules(40, step)
    loss = F.smooth_l1_loss(net(kind, a), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 147 < step < 153:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
