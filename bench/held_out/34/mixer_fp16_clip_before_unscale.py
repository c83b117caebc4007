"""An MLP-Mixer on small patches under float16 autocast with GradScaler (SGD). FAULT from step 0: `clip_grad_norm_(.., 1.0)` stands before `scaler.step` with no `scaler.unscale_` before it:
the scaled gradients (times up to 65536) are cut to norm 1 and then divided by the scale: no step worth the name.
Without Rangewatch: loss 1.81 to 1.77 after 220 steps, scale 65536 (with unscale_: 0.14).
Cause: clip (loss_scale). Step: 0. Right: unscale_ before clipping. Wrong: lower the learning rate, mask."""
EXPECT = {"cause": ["clip", "loss_scale"], "step": [0, 40], "place": None, "rank": None,
          "right": "(?i)unscale|clip", "wrong": ["[Ll]ower the learning rate", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(3411); torch.set_num_threads(1)
P, D = 16, 32
proto = torch.randn(6, P, 12)


class MixerLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.token = nn.Sequential(nn.Linear(P, 32), nn.GELU(), nn.Linear(32, P))
        self.channel = nn.Sequential(nn.Linear(D, 64), nn.GELU(), nn.Linear(64, D))

    def forward(self, h):
        h = h + self.token(self.n1(h).transpose(1, 2)).transpose(1, 2)
        return h + self.channel(self.n2(h))


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(12, D)
        self.layers = nn.Sequential(MixerLayer(), MixerLayer())
        self.head = nn.Linear(D, 6)

    def forward(self, x):
        return self.head(self.layers(self.stem(x)).mean(1))


model = Mixer()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
scaler = torch.amp.GradScaler("cpu")
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    y = torch.randint(0, 6, (32,))
    x = 0.5 * proto[y] + torch.randn(32, P, 12)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x).float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
