"""A net that forecasts the strain of a bridge at 64 gauges (some 1e-4 of its length) in float16 autocast. FAULT from the start: the GradScaler was made
with enabled=False, as left from a bfloat16 run; gradients below 6e-8 on the way back are 0 in float16, and the weights below the last layer stand.
Without Rangewatch: 54 to 77% of the gradients are 0; loss 8.1e-7 to 7.4e-9; in float32 no gradient is 0 and the loss falls faster (8.5e-8 to 5.1e-8
at step 40) and lower (4.6e-9).
Cause: loss_scale (underflow in float16), or backward_arithmetic, no_gradient, data (the unit). Step: 0. Right: scaler / loss scale / underflow / bfloat16.
Wrong: lower the learning rate, mask."""
EXPECT = {"cause": ["loss_scale", "backward_arithmetic", "no_gradient"], "step": [0, 200], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "attention mask"],
          "right": "(?i)scaler|loss scal|underflow|bfloat16|float32|scale"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2005); torch.set_num_threads(1)
response = torch.randn(6, 64)


class Bridge(nn.Module):
    def __init__(self):
        super().__init__()
        self.load = nn.Sequential(nn.Linear(6, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.gauge = nn.Linear(64, 64)
        nn.init.normal_(self.gauge.weight, std=1e-3)
        nn.init.zeros_(self.gauge.bias)

    def forward(self, x):
        return self.gauge(self.load(x))


model = Bridge()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-14)
scaler = torch.amp.GradScaler("cpu", enabled=False)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(220):
    lorries = torch.randn(128, 6)
    strain = 2e-4 * torch.tanh(lorries @ response)
    with torch.autocast("cpu", torch.float16):
        estimate = model(lorries)
    loss = F.mse_loss(estimate.float(), strain)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    zero = sum(int((p.grad == 0).sum()) for p in model.parameters()) / sum(p.numel() for p in model.parameters())
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), "variance", strain.var().item(), "share of gradients that are 0", zero, flush=True)
    handle.log(loss=loss.item())
handle.detach()
