"""A two-view net with a Function of its own that puts vectors on the unit sphere; the forward has max(norm, 1e-8), the backward divides by the norm alone.
FAULT at step 95: a blank sample arrives, the biasless projection of it is exactly 0, the forward is well and the backward is 0 / 0.
Without Rangewatch: loss 2.1 to 0.57 at step 95 (the loss there is sound), NaN from step 96 on.
Cause: backward_arithmetic (the division in the backward), eps; the blank sample (data) is fair. Step: 95. Right: backward / divide / eps / zero.
Wrong: GradScaler, lower the rate, attention mask."""
EXPECT = {"cause": ["backward_arithmetic", "eps", "data"], "step": [94, 96], "place": None, "rank": 0,
          "right": "(?i)backward|divi|eps|zero|gradient", "wrong": ["GradScaler", "[Ll]ower the learning rate", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2413); torch.set_num_threads(1)


class OnSphere(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        norm = x.norm(dim=-1, keepdim=True)
        y = x / norm.clamp(min=1e-8)
        ctx.save_for_backward(y, norm)
        return y

    @staticmethod
    def backward(ctx, g):
        y, norm = ctx.saved_tensors
        return (g - y * (g * y).sum(-1, keepdim=True)) / norm


class Views(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(36, 80, bias=False), nn.ReLU(), nn.Linear(80, 80, bias=False), nn.ReLU())
        self.project = nn.Linear(80, 16, bias=False)

    def forward(self, x):
        return OnSphere.apply(self.project(self.trunk(x)))


model = Views()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    x = torch.randn(48, 36) * torch.linspace(2, 0.2, 36)
    a, b = x + 0.7 * torch.randn_like(x), x + 0.7 * torch.randn_like(x)
    if step == 95:
        a[30] = 0.0  # the camera was covered
    scores = model(a) @ model(b).T / 0.1
    loss = F.cross_entropy(scores, torch.arange(48))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 15 == 0 or 93 < step < 98 or step == 179:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
