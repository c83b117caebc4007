"""A net that grades the ripeness of fruit from spectra; each 30 steps a deep copy of it takes the mean of the weights of the last snapshots and is judged on fruit kept
aside. FAULT at step 150: the list of snapshots was emptied just before; the sum 0 is divided by a count of 0 and all weights of the copy are NaN. The training
itself is well and goes on.
Without Rangewatch: loss 0.24 to 0.0004 at the end; validation loss 0.0011, 0.0005, 0.0003, 0.0003 at steps 30 to 120, NaN at step 150, 0.0001 at step 180.
Cause: eval (the copy's weights; weight). Step: from 150 on (each evaluation until a snapshot comes). Right: evaluation / copy / average. Wrong: lower the
learning rate, GradScaler."""
EXPECT = {"cause": ["eval", "weight"], "step": [149, 182], "place": None, "rank": 0,
          "right": "(?i)eval|validat|copy|averag|weight|parameter", "wrong": ["GradScaler", "[Ll]ower the learning rate"]}
import copy
import torch
from torch import nn
import rangewatch

torch.manual_seed(2108)
torch.set_num_threads(1)
bands = torch.linspace(0, 3, 50)


def fruit(n):
    ripe = torch.rand(n, 1)
    spectrum = torch.sin(bands * (1 + ripe)) + 0.5 * ripe * torch.cos(4 * bands) + 0.1 * torch.randn(n, 50)
    return spectrum, ripe


net = nn.Sequential(nn.Linear(50, 100), nn.LayerNorm(100), nn.Mish(), nn.Linear(100, 50), nn.Mish(), nn.Linear(50, 1))
opt = torch.optim.NAdam(net.parameters(), lr=1e-3)
handle = rangewatch.attach(net, opt)
kept_x, kept_y = fruit(200)
snapshots = []
for step in range(210):
    x, y = fruit(32)
    loss = nn.functional.huber_loss(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    handle.log(loss=loss.item())
    if step % 10 == 5 and not 120 < step < 170:
        snapshots.append([p.detach().clone() for p in net.parameters()])
    if step == 125:
        snapshots.clear()  # "the old ones weigh the mean down"; new ones come from step 175 on
    if step % 30 == 0 and step > 0:
        judge = copy.deepcopy(net).eval()
        with torch.no_grad():
            for i, p in enumerate(judge.parameters()):
                p.copy_(torch.zeros_like(p).add(sum(s[i] for s in snapshots)) / torch.tensor(float(len(snapshots))))
            val_loss = nn.functional.huber_loss(judge(kept_x), kept_y).item()
        handle.log(val_loss=val_loss)
        print(step, "validation", val_loss, "snapshots", len(snapshots), flush=True)
    if step % 20 == 0 or step == 209:
        print(step, loss.item(), flush=True)
handle.detach()
