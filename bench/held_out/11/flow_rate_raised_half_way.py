"""A normalising flow of affine couplings, trained by SGD with momentum. FAULT at step 110 of 220: a plan of rates by epochs raises the rate a hundredfold where
it should have lowered it to a hundredth, and the training diverges.
Without Rangewatch: loss 8.3 to 1.49 at step 110; 36.5 at step 111, 4.0e10 at step 112, NaN from step 113 on.
Variant of: rates: gpt_diverges_at_step_30_of_60.
Cause: learning_rate. Step: 110. Right: learning rate / lr / schedule / clip. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["learning_rate"], "step": [109, 116], "place": None, "rank": None,
          "wrong": ["GradScaler", "attention mask"],
          "right": "[Ll]earning rate|\\blr\\b|schedul|clip"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1124); torch.set_num_threads(1)


class Coupling(nn.Module):
    def __init__(self, turned):
        super().__init__()
        self.turned = turned
        self.net = nn.Sequential(nn.Linear(3, 48), nn.ReLU(), nn.Linear(48, 6))

    def forward(self, x):
        a, b = x.chunk(2, 1)
        if self.turned:
            a, b = b, a
        s, t = self.net(a).chunk(2, 1)
        s = torch.tanh(s)
        b = b * s.exp() + t
        return torch.cat((b, a) if self.turned else (a, b), 1), s.sum(1)


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.couplings = nn.ModuleList(Coupling(i % 2 == 1) for i in range(6))

    def forward(self, x):
        volume = 0.0
        for coupling in self.couplings:
            x, more = coupling(x)
            volume = volume + more
        return x, volume


def points(n):
    a = torch.randn(n, 3)
    return torch.cat((a, torch.sin(2 * a) + 0.3 * torch.randn(n, 3)), 1)


model = Flow()
optimizer = torch.optim.SGD(model.parameters(), lr=2e-3, momentum=0.9)
plan = torch.optim.lr_scheduler.MultiStepLR(optimizer, [110], gamma=100)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    z, volume = model(points(128))
    loss = (z.square().sum(1) / 2 - volume).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    plan.step()
    if step % 20 == 0 or 108 < step < 120:
        print(step, loss.item(), "rate", optimizer.param_groups[0]["lr"], flush=True)
    handle.log(loss=loss.item())
handle.detach()
