"""A denoiser of points, built on the meta device, to_empty() and then load_state_dict of a warm checkpoint. FAULT from step 0 on: the table of frequencies
of the time embedding is a buffer with persistent=False, is in no checkpoint, and keeps what the memory held (written by hand
here so that each run is alike): 2e37 is among it, times a time of 500 is inf, and the sine of that is NaN.
Without Rangewatch: NaN from step 0 on; the checkpoint's own loss is 0.20.
Variant of: buffer_of_no_checkpoint_is_what_the_memory_was.
Cause: weight (a buffer); forward_arithmetic would do. Step: 0. Right: buffer / to_empty / meta / checkpoint. Wrong: rate, mask."""
EXPECT = {"cause": ["weight", "forward_arithmetic"], "step": [0, 5], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "buffer|to_empty|meta|initiali[sz]|memory|checkpoint|persistent"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1205); torch.set_num_threads(1)


class TimeEmbedding(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("frequencies", 10.0 ** -torch.linspace(0, 3, width // 2), persistent=False)
        self.out = nn.Linear(width, 64)

    def forward(self, t):
        angle = t[:, None] * self.frequencies
        return self.out(torch.cat([angle.sin(), angle.cos()], 1))


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = TimeEmbedding(16)
        self.into = nn.Linear(2, 64)
        self.body = nn.Sequential(nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2))

    def forward(self, x, t):
        return self.body(self.into(x) + self.time(t))


def loss_of(model, n=128):
    way = torch.rand(n) * 6.283
    clean = torch.stack([way.cos(), way.sin()], 1)
    t = torch.randint(0, 1000, (n,)).float()
    keep = (1 - t / 1000)[:, None]
    noise = torch.randn(n, 2)
    return F.mse_loss(model(keep * clean + (1 - keep ** 2).sqrt() * noise, t), noise)


early = Denoiser()
warm = torch.optim.Adam(early.parameters(), lr=2e-3)
for _ in range(400):
    warm.zero_grad()
    loss = loss_of(early)
    loss.backward()
    warm.step()
print("the checkpoint's loss", loss.item())
with torch.device("meta"):
    model = Denoiser()
model.to_empty(device="cpu")
model.time.frequencies.copy_(torch.tensor([0.0, 1.4e-38, 2.1e37, 0.31, -1.2, 0.0, 6.2e-5, 7.7e30]))  # what the memory held
model.load_state_dict(early.state_dict())  # strict, and content
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    loss = loss_of(model)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
