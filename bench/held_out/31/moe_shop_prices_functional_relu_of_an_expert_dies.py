"""Four experts (parameters, no modules of layers; `F.relu` as a function) price goods; the kind of shop chooses the expert. A controller of the firing rate keeps each expert's biases in place.
FAULT at step 130: the controller of expert 2 gets the gain 20 in place of 0 and the aim 0, so it lowers all its biases by 10 at once; the units of expert 2 never fire again.
Without Rangewatch: loss 1.69 to 0.48 at step 129; at step 131 0.74, 132 1.03, then 0.5 to 0.7; the share of firing units of expert 2 is 0.0 from step 131 to the end.
Cause: dead_units (weight: the biases). Step: 130. Right: dead / relu / bias / never fire. Wrong: GradScaler, attention mask, input data."""
EXPECT = {"cause": ["dead_units", "weight"], "step": [129, 160], "place": r".*experts\.2.*", "rank": None,
          "right": "(?i)dead|relu|bias|fire|leaky|gelu|initiali", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(101); torch.set_num_threads(1)
D, H, E = 10, 32, 4


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Parameter(torch.randn(H, D) / D ** 0.5)
        self.up_bias = nn.Parameter(torch.zeros(H))
        self.down = nn.Parameter(torch.randn(1, H) / H ** 0.5)
        self.rate = 0.5

    def forward(self, x):
        h = F.relu(F.linear(x, self.up, self.up_bias))
        self.rate = (h > 0).float().mean().item()
        return F.linear(h, self.down)[:, 0]


class Shops(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(Expert() for _ in range(E))

    def forward(self, x, kind):
        out = torch.zeros(len(x))
        for k, e in enumerate(self.experts):
            out = out.index_put((torch.where(kind == k)[0],), e(x[kind == k]))
        return out


truth = torch.randn(E, D)
net = Shops()
optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(220):
    x, kind = torch.randn(96, D), torch.randint(0, E, (96,))
    y = (x * truth[kind]).sum(1).abs()
    loss = F.smooth_l1_loss(net(x, kind), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    gains = [0.0, 0.0, 20.0 if step >= 130 else 0.0, 0.0]
    with torch.no_grad():
        for e, gain in zip(net.experts, gains):
            e.up_bias -= gain * e.rate
    if step % 20 == 0 or 128 < step < 134:
        print(step, loss.item(), [round(e.rate, 2) for e in net.experts], flush=True)
    handle.log(loss=loss.item())
handle.detach()
