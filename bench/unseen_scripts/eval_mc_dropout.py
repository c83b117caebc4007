"""Speech-command CNN; every 40 steps an uncertainty evaluation with model.train() under no_grad (MC dropout). FAULT: from step 160 the
evaluation's clips hold NaN (corrupt file); training is sound (no BatchNorm, so nothing is poisoned). Cause: eval: at most info; nothing
above info, or it says that it is the evaluation's. Wrong: naming training's batch/lr/weights/mask."""
EXPECT = {"cause": ["eval"], "healthy": True, "step": None, "wrong": []}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)
net = nn.Sequential(nn.Conv1d(1, 16, 9, 4), nn.GELU(), nn.Dropout(0.1), nn.Conv1d(16, 32, 5, 2), nn.GELU(), nn.AdaptiveMaxPool1d(4),
                    nn.Flatten(), nn.Dropout(0.2), nn.Linear(128, 7))
opt = torch.optim.NAdam(net.parameters(), 1e-3)
watch = rangewatch.attach(net, opt)
protos = torch.randn(7, 1, 100)

def uncertainty(step):
    x = protos + torch.randn(7, 1, 100)
    if step >= 160:
        x[2, 0, 30:50] = float("nan")
    net.train()
    with torch.no_grad():
        p = torch.stack([net(x).softmax(1) for _ in range(5)])
    return float(p.var(0).nanmean())

for step in range(300):
    y = torch.randint(0, 7, (32,))
    loss = F.cross_entropy(net(protos[y] + torch.randn(32, 1, 100)), y)
    watch.log(loss=loss.item())
    opt.zero_grad(); loss.backward(); opt.step()
    if step % 40 == 39:
        var = uncertainty(step)
