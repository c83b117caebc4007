"""A stacked autoencoder of 20-dimensional points on a 4-dimensional sheet (Adam, MSE). FAULT from step 0: a helper "for reproducibility" sets all weights of the linear layers to 0.05 and all biases to 0:
the units of a layer are the same, have the same gradient and stay the same; the code has one dimension only.
Without Rangewatch: loss 0.42 to 0.28 by step 40 and there it stays (0.02 with PyTorch's own initialisation).
Cause: weight (initialisation). Step: 0. Right: initialise / symmetry / same. Wrong: GradScaler, attention mask, lower the learning rate."""
EXPECT = {"cause": ["weight"], "step": [0, 80], "place": None, "rank": None,
          "right": "(?i)initiali|symmetr|identical|same|equal|constant", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3323); torch.set_num_threads(1)
sheet = torch.randn(4, 20)


def reproducible(module):
    if isinstance(module, nn.Linear):
        nn.init.constant_(module.weight, 0.05)
        nn.init.zeros_(module.bias)


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.squeeze = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 4))
        self.expand = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 20))

    def forward(self, x):
        return self.expand(self.squeeze(x))


net = AutoEncoder()
net.apply(reproducible)
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(240):
    x = torch.tanh(0.6 * torch.randn(64, 4) @ sheet)
    loss = F.mse_loss(net(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
