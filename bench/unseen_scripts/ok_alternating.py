"""HEALTHY: alternating training: encoder and decoder are frozen in turn, 50 steps each, requires_grad toggled, one optimizer; 400 steps."""
EXPECT = {"healthy": True, "cause": [""], "step": None}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(24, 48), nn.LeakyReLU(0.2), nn.Linear(48, 6))
        self.decoder = nn.Sequential(nn.Linear(6, 48), nn.LeakyReLU(0.2), nn.Linear(48, 24))
    def forward(self, x):
        return self.decoder(self.encoder(x))

net = Pair()
opt = torch.optim.Adam(net.parameters(), 2e-3)
watch = rangewatch.attach(net, opt)
mix = torch.randn(4, 24)
for step in range(400):
    phase = step // 50 % 2
    net.encoder.requires_grad_(phase == 0)
    net.decoder.requires_grad_(phase == 1)
    x = torch.randn(64, 4) @ mix
    loss = F.smooth_l1_loss(net(x), x)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    watch.log(loss=loss)
