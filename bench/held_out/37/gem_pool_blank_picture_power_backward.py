"""Image retrieval: a bias-free convnet of magnitudes with generalised-mean pooling (GeM, p = 3) learns with a triplet loss to place pictures of the same texture near each other; Adamax.
FAULT at step 130: the GeM has no floor below its root. From this step on an all-black picture (a missing thumbnail) may stand in the batch: its maps are exactly zero, the forward gives 0, and the derivative of 0 ** (1/3) is inf, times 0 is NaN. The loss of that step is finite, all weights before the pooling are NaN afterwards.
Without Rangewatch: loss 0.05 to 0.12 from step 105 to 129, 0.22 (finite) at step 130 with NaN in eyes.2.weight after it, NaN from step 131 on in all weights (without the black picture 0.16 at step 180).
Cause: backward_arithmetic. Step: 130. Right: clamp(min=eps) before the power. Wrong: lower the learning rate, GradScaler, clip."""
EXPECT = {"cause": ["backward_arithmetic"], "step": [129, 132], "place": r"(.*\.)?(gem|eyes.*|)", "rank": None,
          "right": r"(?i)clamp|eps|power|pow|root|backward|zero", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
from torch import nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(3712); torch.set_num_threads(1)
WHICH = 6
angle = torch.linspace(0, 3.14159 * (1 - 1 / WHICH), WHICH)
yy, xx = torch.meshgrid(torch.arange(20.0), torch.arange(20.0), indexing="ij")


def pictures(kind, step):
    a = angle[kind][:, None, None] + 0.1 * torch.randn(len(kind), 1, 1)
    wave = torch.sin(0.9 * (a.cos() * xx + a.sin() * yy) + 6.28 * torch.rand(len(kind), 1, 1))
    pics = wave + 0.5 * torch.randn(len(kind), 20, 20)
    if step >= 130:
        pics[step % 7] = 0.0
    return pics[:, None]


class Magnitude(nn.Module):
    def forward(self, maps):
        return maps.abs()


class GeM(nn.Module):
    def __init__(self, p=3.0):
        super().__init__()
        self.p = p

    def forward(self, maps):
        return maps.pow(self.p).mean((2, 3)).pow(1 / self.p)


class Retriever(nn.Module):
    def __init__(self):
        super().__init__()
        self.eyes = nn.Sequential(nn.Conv2d(1, 16, 5, bias=False), nn.ReLU(), nn.Conv2d(16, 24, 3, stride=2, bias=False), Magnitude())
        self.gem = GeM()
        self.code = nn.Linear(24, 12)

    def forward(self, x):
        return F.normalize(self.code(self.gem(self.eyes(x))), dim=1)


net = Retriever()
optimizer = torch.optim.Adamax(net.parameters(), lr=4e-3)
handle = rangewatch.attach(net, optimizer)
triplet = nn.TripletMarginLoss(margin=1.2)
for step in range(190):
    same = torch.randint(0, WHICH, (16,))
    other = (same + torch.randint(1, WHICH, (16,))) % WHICH
    codes = net(pictures(torch.cat([same, same, other]), step))
    loss = triplet(codes[:16], codes[16:32], codes[32:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 15 == 0 or 128 <= step <= 132:
        bad = [n for n, p in net.named_parameters() if not p.isfinite().all()]
        print("step", step, "loss", round(loss.item(), 5), "not finite:", bad, flush=True)
    handle.log(loss=loss.item())
handle.detach()
