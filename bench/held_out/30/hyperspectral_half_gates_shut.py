"""A net that sorts minerals from 40 bands in half precision with a GradScaler; each band has a gate `power` that is kept at or above 0 and enters by its root, a penalty draws
needless ones down. FAULT at step 251: the first gate lands on 0 exactly: the root's gradient there is Inf at any scale; each step is skipped, the scale halves for ever.
Without Rangewatch: loss 2.22 to 0.072 at step 250; the gate is 0 at its end, the scale goes from 4096 to 2048 at step 251 and on to 7.6e-6 at the end; no step is taken.
Cause: backward_arithmetic, forward_arithmetic, loss_scale or eps. Step: 251. Place: power. Right: sqrt / root / eps / clamp. Wrong: attention mask."""
EXPECT = {"cause": ["backward_arithmetic", "forward_arithmetic", "loss_scale", "eps"], "step": [249, 256], "place": "(gates?\\.)?power|gates?", "rank": None,
          "right": "(?i)sqrt|root|eps|clamp|backward|zero|anomaly|inf", "wrong": ["attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3013); torch.set_num_threads(1)
spectrum = torch.zeros(6, 40)
spectrum[:, ::2] = torch.randn(6, 20)


class Minerals(nn.Module):
    def __init__(self):
        super().__init__()
        self.power = nn.Parameter(torch.full((40,), 0.5))
        self.body = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 6))

    def forward(self, x):
        return self.body(x * self.power.sqrt())


net = Minerals()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
handle = rangewatch.attach(net, optimizer, scaler=scaler)
for step in range(280):
    y = torch.randint(0, 6, (64,))
    x = spectrum[y] + 0.8 * torch.randn(64, 40)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(net(x), y) + 0.02 * net.power.sum()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    with torch.no_grad():
        net.power.clamp_(min=0)
    if step % 20 == 0 or step == 279 or (net.power.min() == 0 and scaler.get_scale() >= 512):
        print(step, loss.item(), "scale", scaler.get_scale(), "least gate", net.power.min().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
