"""TCN with weight-normed dilated convolutions for forecasting. FAULT at step 150: a partial checkpoint load multiplies blocks.1.scale (a
learned gain) by 1e6: finite, the loss jumps by many orders. Cause: weight, step 150, place blocks.1(.scale). Right: the weight changed
between updates. Wrong: leave out batches, mask, lower the learning rate first, dtype."""
EXPECT = {"cause": ["weight"], "step": [150, 151], "place": r"blocks\.1.*", "rank": 0,
          "wrong": ["[Mm]ask", "leave out", "GradScaler"], "right": "weight|checkpoint"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class Dilated(nn.Module):
    def __init__(self, c, dilation):
        super().__init__()
        self.conv = nn.Conv1d(c, c, 3, dilation=dilation)
        self.scale, self.pad = nn.Parameter(torch.ones(c, 1)), 2 * dilation
    def forward(self, x):
        return x + self.scale * F.elu(self.conv(F.pad(x, (self.pad, 0))))

class TCN(nn.Module):
    def __init__(self, c=20):
        super().__init__()
        self.inp, self.blocks, self.out = nn.Conv1d(1, c, 1), nn.ModuleList(Dilated(c, 2 ** i) for i in range(3)), nn.Conv1d(c, 1, 1)
    def forward(self, x):
        x = self.inp(x)
        for b in self.blocks:
            x = b(x)
        return self.out(x)

net = TCN()
opt = torch.optim.Adam(net.parameters(), 1e-3)
watch = rangewatch.attach(net, opt)
t = torch.arange(41) / 6
for step in range(220):
    if step == 150:
        state = net.state_dict()
        state["blocks.1.scale"] = state["blocks.1.scale"] * 1e6
        net.load_state_dict(state)
    wave = torch.sin(t + 6.28 * torch.rand(24, 1)) + 0.05 * torch.randn(24, 41)
    loss = F.l1_loss(net(wave[:, None, :-1]), wave[:, None, 1:])
    watch.log(loss=loss.item())
    opt.zero_grad(); loss.backward(); opt.step()
