"""A net of convolutions that fills the gaps of a river's water mark. FAULT at step 0: clip_grad_norm_ has the limit 1e-4 (the eps was given in its place);
the gradient's norm is thirty thousand times as great, and each step of SGD is about 1e-4 times the rate long.
Without Rangewatch: loss 2.75 at step 0 and 2.5 to 3.3 to the end, with a gradient norm of 2.5 to 3.9 before the clip; with a limit of 1.0 it is 0.03 at
the end.
Cause: clip. Step: from 0 on, as soon as the loss is seen to stand. Right: clip / limit / max_norm / gradient norm. Wrong: GradScaler, mask, lower the
learning rate."""
EXPECT = {"cause": ["clip"], "step": [0, 199], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"],
          "right": "clip|max_norm|limit|gradient norm|threshold"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1619); torch.set_num_threads(1)
day = torch.arange(64) / 64


def rivers(n):
    mark = 2 * torch.sin(6.2832 * ((1 + 3 * torch.rand(n, 1)) * day + torch.rand(n, 1))) + torch.randn(n, 1)
    seen = (torch.rand(n, 64) > 0.3).float()
    return torch.stack((mark * seen, seen), 1), mark


model = nn.Sequential(nn.Conv1d(2, 24, 9, padding=4), nn.LeakyReLU(0.1), nn.Conv1d(24, 24, 9, padding=4), nn.LeakyReLU(0.1), nn.Conv1d(24, 1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, mark = rivers(32)
    loss = F.mse_loss(model(x)[:, 0], mark)
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1e-4)
    optimizer.step()
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), "gradient norm", norm.item(), flush=True)
    handle.log(loss=loss.item(), grad_norm=norm.item())
handle.detach()
