"""A net that names a bird from four frames of its song; an encoder in float16 (its weights are cast at each step) with an RMS norm written by hand, whose
eps of 1e-8 is 0 in float16. FAULT at step 120: silent frames come; the frame is 0, its root mean square is 0, 0 times inf is NaN.
Without Rangewatch: loss 1.66 to 0.035 at step 119, NaN from step 120 on.
Cause: forward_arithmetic (eps lost in float16). Step: 120. Place: level. Right: eps / float16 / norm / division by zero. Wrong: lower the learning rate,
attention mask."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [119, 121], "place": "level", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "attention mask"],
          "right": "eps|float16|fp16|half|norm|zero|division"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1622); torch.set_num_threads(1)
song = torch.rand(5, 4, 16)


class HalfLinear(nn.Linear):
    def forward(self, x):
        return F.linear(x.half(), self.weight.half())


class HalfNorm(nn.Module):
    def __init__(self, width, eps=1e-8):
        super().__init__()
        self.gain, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps) * self.gain.half()


class Bird(nn.Module):
    def __init__(self):
        super().__init__()
        self.frame, self.level = HalfLinear(16, 32, bias=False), HalfNorm(32)
        self.name = nn.Linear(128, 5)

    def forward(self, x):
        return self.name(F.gelu(self.level(self.frame(x))).float().flatten(1))


def songs(n):
    bird = torch.randint(0, 5, (n,))
    return song[bird] * (0.3 + torch.rand(n, 4, 1)) + 0.25 * torch.randn(n, 4, 16), bird


model = Bird()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(190):
    x, bird = songs(40)
    if step >= 120:
        x[:5, 3] = 0.0  # the song is over
    loss = F.cross_entropy(model(x), bird)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 118 < step < 122 or step == 189:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
