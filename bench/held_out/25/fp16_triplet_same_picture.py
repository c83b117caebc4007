"""A net that learns likeness of signatures from triplets, float16 autocast with a GradScaler; the distance is the root of a sum of squares. FAULT at step 110:
the augmentation is switched off, anchor and positive are the same picture: the root of 0 has a backward of 0 times inf, NaN at every scale: the scaler
halves its scale at each step and never steps again.
Without Rangewatch: loss 0.94 to 0.064 at step 109, 0.0 from step 110 on while the scale falls from 8192 to 4096 at step 110, 4 at step 120, 6.9e-18
at the end; the weights stand.
Cause: backward_arithmetic (the scale only follows: loss_scale). Step: 110 and after. Right: root / eps / backward / zero. Wrong: lower the rate, mask."""
EXPECT = {"cause": ["backward_arithmetic", "loss_scale"], "step": [109, 125], "place": None, "rank": 0,
          "right": "(?i)sqrt|root|eps|backward|zero|norm|scale", "wrong": ["[Ll]ower the learning rate", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2531); torch.set_num_threads(1)
hand = torch.randn(20, 1, 12, 12)


class Signature(nn.Module):
    def __init__(self):
        super().__init__()
        self.see = nn.Sequential(nn.Flatten(), nn.Linear(144, 128), nn.ELU(), nn.Linear(128, 64), nn.ELU())
        self.place = nn.Linear(64, 24)

    def forward(self, x):
        return self.place(self.see(x))


def root_distance(a, b):
    return (a - b).pow(2).sum(1).sqrt()


def sign(who, shake):
    x = hand[who]
    return x + shake * torch.randn_like(x)


net = Signature()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=4096.0, growth_interval=100)
handle = rangewatch.attach(net, optimizer, scaler=scaler)
for step in range(180):
    who = torch.randint(0, 20, (32,))
    other = (who + torch.randint(1, 20, (32,))) % 20
    anchor = sign(who, 2.0)
    positive = sign(who, 2.0) if step < 110 else anchor
    with torch.autocast("cpu", torch.float16):
        a, b, c = net(torch.cat((anchor, positive, sign(other, 2.0)))).chunk(3)
        loss = F.relu(root_distance(a, b) - root_distance(a, c) + 1.0).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or 108 < step < 114 or step == 179:
        print(step, loss.item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
