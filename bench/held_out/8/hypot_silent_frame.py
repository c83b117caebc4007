"""A denoiser of speech (1-D convolutions without biases) with a loss on magnitudes of the spectrum, torch.hypot(real, imaginary), Adam. FAULT at step
150: one recording begins with digital silence, so that output and spectrum are exactly 0 there; the derivative of hypot at (0, 0) is 0 / 0.
Without Rangewatch: loss 0.79 to 0.13 at step 149, 0.13 at step 150 with NaN in every gradient, NaN from step 151 on.
Report: pytorch/pytorch#6394 and #2421 (norm or root of zero: gradient NaN), mpariente/pytorch_stoi#7.
Cause: backward_arithmetic (not data: silence is a valid input). Step: 150. Right: root / norm / eps / derivative. Wrong: learning rate, GradScaler,
mask."""
EXPECT = {"cause": ["backward_arithmetic"], "step": [150, 150], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "hypot|sqrt|root|norm|eps|derivative|backward|gradient of|zero|divi"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(811); torch.set_num_threads(1)
LENGTH = 512


class Magnitude(nn.Module):
    def forward(self, wave):
        s = torch.stft(wave, 64, 32, window=torch.hann_window(64), center=False, return_complex=True)
        return torch.hypot(s.real, s.imag)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(1, 24, 9, padding=4, bias=False), nn.Tanh(), nn.Conv1d(24, 24, 9, padding=4, bias=False), nn.Tanh(),
                                 nn.Conv1d(24, 1, 9, padding=4, bias=False))
        self.magnitude = Magnitude()

    def forward(self, x):
        return self.net(x[:, None]).squeeze(1)


def speech(n=12):
    t = torch.arange(LENGTH).float()
    return (torch.rand(n, 3, 1) * torch.sin((0.05 + 0.5 * torch.rand(n, 3, 1)) * t + 6.28 * torch.rand(n, 3, 1))).sum(1)


model = Denoiser()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    clean = speech()
    noisy = clean + 0.3 * torch.randn_like(clean)
    if step == 150:
        clean[4, :160] = noisy[4, :160] = 0.0
    out = model(noisy)
    loss = F.l1_loss(out, clean) + 0.1 * F.l1_loss(model.magnitude(out), model.magnitude(clean))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or 148 < step < 153:
        print(step, loss.item(), "NaN in the gradient", model.net[0].weight.grad.isnan().any().item(), flush=True)
handle.detach()
