"""An autoencoder that compresses: uniform noise on the code for 100 steps, then the true rounding. FAULT from step 100 on: torch.round has a derivative of
zero, and there is no straight-through estimator, so the encoder has gradients of exactly 0 from there on, while the decoder trains on. All is finite.
Without Rangewatch: loss 1.12 to 0.18 at step 99, 0.14 at step 239; the encoder's gradient 0.105 at step 99 and 0.0 from step 100 on, the decoder's 0.08
to 0.10.
Report: Justin-Tan/generative-compression#27 (a quantiser that does not let the encoder train; asked as a question there), apache/mxnet#16373.
Cause: dead units (zero gradients; backward arithmetic or optimizer will do). Step: 100. Right: zero gradient / round / straight-through. Wrong: learning
rate, attention mask, GradScaler."""
EXPECT = {"cause": ["dead_units", "backward_arithmetic", "optimizer"], "step": [100, 160], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "zero|gradient|detach|round|straight|graph|no gradient"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(619); torch.set_num_threads(1)


class Codec(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 12))
        self.decoder = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64))

    def forward(self, x, hard):
        z = 4 * torch.tanh(self.encoder(x))
        z = torch.round(z) if hard else z + torch.rand_like(z) - 0.5
        return self.decoder(z)


basis = torch.randn(10, 64) / 3
model = Codec()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    x = torch.randn(64, 10) @ basis
    loss = F.mse_loss(model(x, hard=step >= 100), x)  # noise first, then the true rounding
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (99, 101, 239):
        print(step, loss.item(), model.encoder[0].weight.grad.norm().item(), model.decoder[0].weight.grad.norm().item(), flush=True)
handle.detach()
