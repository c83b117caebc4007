"""A soft mixture of six linear experts over points of six clouds, each cloud with its own linear law; the router's weight begins at zero (equal shares) as usual. FAULT from step 0: the optimizer's list of groups has the experts and the input's norm,
not the router: the shares stay equal for ever, the six experts are one.
Without Rangewatch: loss 12.2 to 2.0 to 2.6 from step 100 on (0.37 with the router in the optimizer); the router's weight stays 0.
Cause: optimizer. Step: 0 (shows when the others move and the router does not). Right: add the router to the optimizer. Wrong: mask, GradScaler, lower the learning rate."""
EXPECT = {"cause": ["optimizer"], "step": [-1, 60], "place": r".*router.*", "rank": None,
          "right": "(?i)optimi[sz]er|param.?group|parameters", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(111); torch.set_num_threads(1)
K, D = 6, 8


class SoftMoe(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(D)
        self.router = nn.Linear(D, K)
        nn.init.zeros_(self.router.weight); nn.init.zeros_(self.router.bias)
        self.experts = nn.ModuleList(nn.Linear(D, 3) for _ in range(K))

    def forward(self, x):
        share = self.router(self.norm(x)).softmax(-1)
        return torch.einsum("bk,bkd->bd", share, torch.stack([e(x) for e in self.experts], 1))


centre, law = 3 * torch.randn(K, D), torch.randn(K, D, 3) / D ** 0.5
net = SoftMoe()
optimizer = torch.optim.Adam([{"params": net.experts.parameters(), "lr": 1e-2}, {"params": net.norm.parameters(), "lr": 1e-3}])
handle = rangewatch.attach(net, optimizer)
for step in range(250):
    k = torch.randint(0, K, (96,))
    x = centre[k] + torch.randn(96, D)
    y = torch.einsum("bd,bdo->bo", x, law[k])
    loss = F.mse_loss(net(x), y)
    net.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0 or step == 249:
        print(step, loss.item(), "router", net.router.weight.abs().max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
