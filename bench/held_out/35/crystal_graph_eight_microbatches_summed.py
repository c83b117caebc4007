"""A message-passing net predicts the energy of small random crystals (SGD with momentum). FAULT at step 120: to save memory the batch of 64 graphs is cut into 8 microbatches of 8 from there on; each one's MEAN loss is sent backward and the gradients add up:
nobody divides by 8, so every gradient and step is 8 times as large as before.
Without Rangewatch: loss 9.7 to 0.27 at step 119, gradient 5 to 14; gradient 118 at step 120 (loss still 0.34), loss 4.9 at 121, 204 at 122, 6268 at 124, NaN by step 140.
Cause: loss (reduction over the microbatches) or, seen from the effect, learning_rate. Step: 120. Right: divide the loss by the number of microbatches, or lower the rate by 8. Wrong: GradScaler, attention mask, checkpoint, bad weight."""
EXPECT = {"cause": ["loss", "learning_rate", "gradients_kept"], "step": [119, 135], "place": None, "rank": None,
          "right": "(?i)accumul|micro|divide|zero_grad|learning rate|\\blr\\b", "wrong": ["GradScaler", "attention mask", "checkpoint"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(5118)
torch.set_num_threads(1)
charge = torch.tensor([-1.0, 0.5, 1.0, -0.5])


def crystals(n, atoms=7):
    kind = torch.randint(0, 4, (n, atoms))
    place = 2 * torch.rand(n, atoms, 3)
    near = torch.exp(-torch.cdist(place, place)) * (1 - torch.eye(atoms))
    q = charge[kind]
    energy = (q[:, :, None] * q[:, None, :] * near).sum((1, 2))
    return kind, near, energy


class Pass(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.send, self.keep = nn.Linear(w, w), nn.Linear(w, w)

    def forward(self, h, near):
        return h + torch.tanh(self.keep(h) + near @ self.send(h))


class Crystal(nn.Module):
    def __init__(self, w=24):
        super().__init__()
        self.atom = nn.Embedding(4, w)
        self.pass1, self.pass2 = Pass(w), Pass(w)
        self.energy = nn.Linear(w, 1)

    def forward(self, kind, near):
        h = self.pass2(self.pass1(self.atom(kind), near), near)
        return self.energy(h).sum((1, 2))


net = Crystal()
opt = torch.optim.SGD(net.parameters(), lr=8e-4, momentum=0.9)
handle = rangewatch.attach(net, opt)
for step in range(150):
    kind, near, energy = crystals(64)
    micro = 64 if step < 120 else 8
    opt.zero_grad()
    total, parts = 0.0, 0
    for k, a, e in zip(kind.split(micro), near.split(micro), energy.split(micro)):
        loss = (net(k, a) - e).square().mean()
        loss.backward()
        total, parts = total + loss.item(), parts + 1
    opt.step()
    handle.log(loss=total / parts)
    if step % 20 == 0 or 118 < step < 126:
        size = sum(p.grad.square().sum() for p in net.parameters()).sqrt().item()
        print(step, "loss", f"{total / parts:.4g}", "gradient", f"{size:.4g}", "microbatches", parts, flush=True)
handle.detach()
