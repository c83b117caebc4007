"""A mixture of eight experts, one a token, balanced by an auxiliary loss at first and from step 60 by a bias on the router's scores. FAULT at step 60:
the bias of the busy experts goes up and of the idle ones down (the difference has the wrong sign): one expert takes all the tokens, the others starve.
Without Rangewatch: loss 14.6 to 4.6 at step 60 with all eight experts at work; three are idle and the loss 6.3 at step 65, five idle from 100,
six from 160; the two that are left go on to learn (1.3 at the end).
Cause: dead_units, no_gradient, weight or forward_arithmetic (the bias). Step: 60 to 110. Place: the experts or the router. Right: balance / router / expert.
Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["dead_units", "no_gradient", "weight", "forward_arithmetic"], "step": [59, 130], "place": ".*(experts|router|moe).*", "rank": None,
          "right": "(?i)balanc|rout|expert|dead|bias|gate|zero|unused", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2905); torch.set_num_threads(1)
E = 8


class MoE(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.router = nn.Linear(d, E, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(d, 48), nn.ReLU(), nn.Linear(48, d)) for _ in range(E))
        self.register_buffer("balance", torch.zeros(E))
        self.load = torch.zeros(E)

    def forward(self, x):
        p = torch.softmax(self.router(x), -1)
        pick = (p + self.balance).argmax(-1)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            at = pick == e
            if at.any():
                out[at] = expert(x[at]) * p[at, e, None]
        self.load = torch.bincount(pick, minlength=E).float()
        self.aux = E * (self.load / len(x) * p.mean(0)).sum()
        return x + out

    @torch.no_grad()
    def update_balance(self, speed=0.05):
        self.balance += speed * torch.sign(self.load - self.load.mean())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.moe, self.out = nn.Linear(12, 32), MoE(32), nn.Linear(32, 1)

    def forward(self, x):
        return self.out(self.moe(torch.tanh(self.inp(x))))


centres = torch.randn(8, 12) * 2
slopes = torch.randn(8, 12)
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(220):
    k = torch.randint(0, 8, (256,))
    x = centres[k] + torch.randn(256, 12)
    y = ((x - centres[k]) * slopes[k]).sum(1, keepdim=True)
    loss = F.mse_loss(net(x), y)
    objective = loss + (1.0 * net.moe.aux if step < 60 else 0.0)
    optimizer.zero_grad()
    objective.backward()
    optimizer.step()
    if step >= 60:
        net.moe.update_balance()
    if step % 20 == 0 or step in (59, 65, 70, 219):
        print(step, loss.item(), "load", net.moe.load.int().tolist(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
