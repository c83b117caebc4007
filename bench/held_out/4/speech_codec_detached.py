"""A small audio codec: convolutional encoder, rounding quantizer, decoder. FAULT from step 0: the quantizer returns the rounded values detached, there is
no straight-through estimator, and the encoder gets no gradient at all: only the decoder trains, on the codes of a random encoder. Without
Rangewatch: loss 0.55 to 0.22; the encoder's gradients are None, its weights do not move.
Report: Justin-Tan/generative-compression#27 (stop_gradient: all the nodes before the quantizer are ignored), pytorch/ao#4806.
Cause: parameters that the loss does not reach, which the optimizer's name also covers. Place: encoder.*. Right: detach / graph / straight-through /
no gradient. Wrong: learning rate, data, precision."""
EXPECT = {"cause": ["optimizer"], "step": [0, 40], "place": r"encoder.*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Rr]aise the learning rate", "GradScaler", "bfloat16", "leave out samples"],
          "right": "detach|no_grad|graph|reach|gradient|straight"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(71); torch.set_num_threads(1)


class Codec(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv1d(1, d, 8, 4, 2), nn.ELU(), nn.Conv1d(d, 4, 8, 4, 2))
        self.decoder = nn.Sequential(nn.ConvTranspose1d(4, d, 8, 4, 2), nn.ELU(), nn.ConvTranspose1d(d, 1, 8, 4, 2))

    def forward(self, x):
        return self.decoder((4 * self.encoder(x)).round().detach() / 4)


model = Codec()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
watch = rangewatch.attach(model, optimizer)
time = torch.arange(256) / 256
for step in range(200):
    pitch, phase = 4 + 20 * torch.rand(32, 1, 1), 6.283 * torch.rand(32, 1, 1)
    x = (6.283 * pitch * time + phase).sin() + 0.3 * (18.85 * pitch * time).sin()
    loss = F.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watch.log(loss=loss.item())
    if step % 20 == 0 or step == 199:
        print(step, round(loss.item(), 4), [p.grad is None for p in model.encoder.parameters()])
