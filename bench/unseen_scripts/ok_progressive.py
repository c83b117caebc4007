"""HEALTHY: progressive growing: a new block is added to the ModuleList each 130 steps and given to the optimizer by add_param_group; 400 steps."""
EXPECT = {"healthy": True, "cause": [""], "step": None}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class Grow(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.blocks, self.head = nn.Linear(18, 40), nn.ModuleList([nn.Linear(40, 40)]), nn.Linear(40, 18)
    def forward(self, x):
        x = self.stem(x)
        for b in self.blocks:
            x = x + F.gelu(b(x))
        return self.head(x)

net = Grow()
opt = torch.optim.Adam(net.parameters(), 1e-3)
watch = rangewatch.attach(net, opt)
A = torch.randn(18, 18) / 4
for step in range(400):
    if step in (130, 260):
        block = nn.Linear(40, 40)
        nn.init.zeros_(block.weight)
        nn.init.zeros_(block.bias)
        net.blocks.append(block)
        opt.add_param_group({"params": block.parameters(), "lr": 5e-4})
    x = torch.randn(64, 18)
    loss = F.mse_loss(net(x), torch.sin(x @ A))
    opt.zero_grad(); loss.backward(); opt.step()
    watch.log(loss=loss.item())
