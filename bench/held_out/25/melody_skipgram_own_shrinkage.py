"""Skip-gram vectors of the notes of melodies with negative samples, and an optimizer written at home. FAULT at step 100: decay is turned on for the table
of notes; the home-made step takes off decay times the weight and not rate times decay times the weight, so that 8 % of the table goes at each step.
Without Rangewatch: loss 0.74 to 0.52 at step 99, 0.56 at step 105, 0.67 at step 140, 0.688 at the end (log 2 is 0.693); the rms of the table falls
from 1.0 to 0.61 at step 105, 0.029 at the end.
Cause: regularization or optimizer (or the weight, which shrinks). Step: 100 to the end. Right: weight decay. Wrong: GradScaler, clip, attention mask."""
EXPECT = {"cause": ["regularization", "optimizer", "weight"], "step": [99, 220], "place": "notes.*", "rank": 0,
          "right": "(?i)decay|regulari|shrink", "wrong": ["GradScaler", "attention mask", "clip_grad"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2502); torch.set_num_threads(1)
NOTES, WIDTH = 240, 40
family = torch.randint(0, 6, (NOTES,))
members = [torch.nonzero(family == f)[:, 0] for f in range(6)]


class HomeMomentum(torch.optim.Optimizer):
    def __init__(self, groups, lr):
        super().__init__(groups, dict(lr=lr, decay=0.0, beta=0.9))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                m = state.setdefault("m", torch.zeros_like(p))
                m.mul_(group["beta"]).add_(p.grad)
                p.sub_(group["decay"] * p)
                p.sub_(group["lr"] * m)


class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.notes = nn.Embedding(NOTES, WIDTH)
        self.around = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, centre, other):
        return (self.around(self.notes(centre)) * self.notes(other)).sum(-1) / WIDTH ** 0.5


net = Pairs()
optimizer = HomeMomentum([{"params": [net.notes.weight]}, {"params": [net.around.weight], "lr": 0.1}], lr=6.0)
handle = rangewatch.attach(net, optimizer)
for step in range(220):
    if step == 100:
        optimizer.param_groups[0]["decay"] = 0.08
    centre = torch.randint(0, NOTES, (512,))
    good = torch.stack([members[family[c]][torch.randint(0, len(members[family[c]]), ())] for c in centre[:256]])
    other = torch.cat((good, torch.randint(0, NOTES, (256,))))
    label = (family[centre] == family[other]).float()
    loss = F.binary_cross_entropy_with_logits(net(centre, other), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (99, 105, 219):
        print(step, loss.item(), "rms of the table", net.notes.weight.pow(2).mean().sqrt().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
