"""Sparse autoencoder, activation as a function (torch.clamp(min=0)), Adagrad. FAULT at step 120: the bias of enc2 is shifted by -50 (a
'bias correction' of the wrong sign): every unit of enc2 is 0 for all inputs; enc1, enc2 get exactly zero gradients. Cause: dead_units
(weight accepted), place enc1/enc2, from step 120. Finite. Right: dead units/bias. Wrong: mask, learning-rate-too-low, underflow, GradScaler."""
EXPECT = {"cause": ["dead_units", "weight"], "step": [118, 145], "place": r"enc[12](\.weight|\.bias)?", "rank": 0,
          "wrong": ["[Mm]ask", "GradScaler", "leave out samples"], "right": "bias|dead|zero"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class SparseAE(nn.Module):
    def __init__(self, d=32, h=64, z=24):
        super().__init__()
        self.enc1, self.enc2, self.dec1, self.dec2 = nn.Linear(d, h), nn.Linear(h, z), nn.Linear(z, h), nn.Linear(h, d)
    def forward(self, x):
        z = torch.clamp(self.enc2(torch.clamp(self.enc1(x), min=0)), min=0)
        return self.dec2(torch.tanh(self.dec1(z))), z

net = SparseAE()
opt = torch.optim.Adagrad(net.parameters(), lr=1e-2)
watch = rangewatch.attach(net, opt)
mix = torch.randn(6, 32)
for step in range(300):
    if step == 120:
        net.enc2.bias.data -= 50
    x = torch.randn(64, 6) @ mix
    rec, z = net(x)
    loss = (rec - x).pow(2).mean() + 1e-3 * z.abs().mean()
    opt.zero_grad(); loss.backward(); opt.step()
    watch.log(loss=loss.item())
