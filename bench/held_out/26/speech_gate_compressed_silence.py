"""A gate that takes the noise out of magnitude spectra; the loss compares magnitudes raised to 0.3. FAULT at step 97: a clip begins with digital silence, exact zeros: the gated
magnitude is 0, the gradient of 0 ** 0.3 is Inf, times 0 is NaN. The loss of that step is fine, the weights are NaN after it.
Without Rangewatch: loss 0.175 to 0.0755 at step 96, 0.070 at 97 (weights NaN after it), NaN from 98.
Cause: backward_arithmetic, data or eps. Step: 97. Right: pow / power / zero / eps / clamp. Wrong: GradScaler, lower the learning rate, attention mask."""
EXPECT = {"cause": ["backward_arithmetic", "data", "eps"], "step": [96, 99], "place": None, "rank": None,
          "right": "(?i)pow|power|zero|eps|clamp|sqrt|epsilon", "wrong": ["GradScaler", "[Ll]ower the learning rate", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(6123); torch.set_num_threads(1)
BINS, FRAMES = 33, 20


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Conv1d(BINS, 48, 3, padding=1)
        self.mix = nn.Conv1d(48, 48, 3, padding=1)
        self.open = nn.Conv1d(48, BINS, 1)

    def forward(self, mag):
        h = F.elu(self.time((mag + 1e-4).log()))
        return mag * torch.sigmoid(self.open(F.elu(self.mix(h))))


def clips(n):
    f0 = 2 + 6 * torch.rand(n, 1, 1)
    bins, talk = torch.arange(BINS)[None, :, None], (torch.rand(n, 1, FRAMES) < 0.7).float()
    clean = talk * (0.5 + torch.rand(n, 1, 1)) * torch.cos(3.1416 * bins / f0) ** 8 / (1 + 0.1 * bins) + 1e-3
    return clean + 0.15 * torch.rand(n, BINS, FRAMES), clean


def compressed(a, b, power=0.3):
    return F.l1_loss(a.pow(power), b.pow(power)) + F.mse_loss(a, b)


net = Gate()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, eps=1e-7)
handle = rangewatch.attach(net, optimizer)
for step in range(160):
    noisy, clean = clips(24)
    if step == 97:
        noisy[9, :, :4] = clean[9, :, :4] = 0
    loss = compressed(net(noisy), clean)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (96, 97, 98, 159):
        print(step, loss.item(), "weights finite", all(p.isfinite().all().item() for p in net.parameters()), flush=True)
    handle.log(loss=loss.item())
handle.detach()
