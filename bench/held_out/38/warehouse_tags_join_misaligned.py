"""A deep-sets net counts which of three categories is most in a bag of 10 tagged parcels (AdamW, cosine schedule, float32).
FAULT at steps 150 to 159: for ten steps the labels come from a join that lost its key (the index was reset on one side only): inputs are right, each batch's labels are in a random order. The training is right again from step 160 on.
Without Rangewatch: loss 1.11 to 0.09 at step 149, 7.5 at step 150, 5.6 at step 159, 0.15 at step 160 and 0.09 at the end.
Cause: data (labels). Step: 150. Right: labels / targets / the order of the rows. Wrong: GradScaler, attention mask, initialisation."""
EXPECT = {"cause": ["data"], "step": [149, 162], "place": None, "rank": None,
          "right": r"(?i)label|target|data|batch|row|shuffl", "wrong": ["GradScaler", "attention mask", "initiali[sz]ation"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(150159); torch.set_num_threads(1)
prototypes = torch.randn(3, 6)


def bags(n):
    lead = torch.randint(0, 3, (n, 1))
    tag = torch.where(torch.rand(n, 10) < 0.45, lead, torch.randint(0, 3, (n, 10)))
    counts = F.one_hot(tag, 3).sum(1)
    return prototypes[tag] + 0.4 * torch.randn(n, 10, 6), (counts + 0.1 * F.one_hot(lead[:, 0], 3)).argmax(1)


class DeepSet(nn.Module):
    def __init__(self):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(6, 40), nn.Mish(), nn.Linear(40, 40), nn.Mish())
        self.rho = nn.Sequential(nn.Linear(40, 40), nn.Mish(), nn.Linear(40, 3))

    def forward(self, bag):
        return self.rho(self.phi(bag).sum(1) / 10)


net = DeepSet()
opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 240)
handle = rangewatch.attach(net, opt)
for step in range(240):
    bag, most = bags(96)
    if 150 <= step < 160:
        most = most[torch.randperm(len(most))]
    out = net(bag)
    loss = F.cross_entropy(out, most)
    opt.zero_grad()
    loss.backward()
    opt.step()
    schedule.step()
    if step % 15 == 0 or 148 < step < 162:
        print(step, f"loss {loss.item():.4f} right {(out.argmax(1) == most).float().mean().item():.2f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
