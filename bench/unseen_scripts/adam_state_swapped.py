"""Deep-sets regressor, Adam. FAULT at step 150: after a 'resume' the first moments come with the loss scale of the old run still in them
(x 65536), the second ones without: one huge finite update. Cause: optimizer (its state), step 150 (seen in the forward of 151).
Right: the optimizer's state/update. Wrong: mask, leave out batches, 'lower the learning rate' as the only advice."""
EXPECT = {"cause": ["optimizer", "weight"], "step": [150, 152], "place": None, "rank": 0,
          "wrong": ["[Mm]ask", "leave out", "GradScaler"], "right": "optimizer|update|state"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class DeepSets(nn.Module):
    def __init__(self):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(3, 40), nn.CELU(), nn.Linear(40, 40), nn.CELU())
        self.rho = nn.Sequential(nn.Linear(40, 40), nn.CELU(), nn.Linear(40, 1))
    def forward(self, x):
        return self.rho(self.phi(x).mean(1)).squeeze(1)

net = DeepSets()
opt = torch.optim.Adam(net.parameters(), 1e-3)
watch = rangewatch.attach(net, opt)
for step in range(220):
    if step == 150:
        state = opt.state_dict()
        for each in state["state"].values():
            each["exp_avg"] = each["exp_avg"] * 65536
        opt.load_state_dict(state)
    x = torch.randn(48, 8, 3)
    loss = F.mse_loss(net(x), x.norm(dim=2).amax(1))
    opt.zero_grad(); loss.backward(); opt.step()
    watch.log(loss=loss.item())
