"""A mask net takes noise off toy spectra of vowels (8 kinds of formant pairs); noise floor subtracted first, power-law compression (x ** 0.3), then a conv net; NAdam, float32.
FAULT at step 130: the noise floor's estimate is made anew from a louder room; `floor` is now above the quiet bins, the subtracted spectrum is below zero in some of them, and a negative number to the power of 0.3 is NaN (the old floor never
took more than there was; nobody clamps).
Without Rangewatch: loss 2.08 to 0.31 at step 129, NaN from step 130 on.
Cause: forward_arithmetic (or data). Step: 130. Right: clamp before the power / negative base. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [129, 133], "place": r"compress", "rank": None,
          "right": r"(?i)negative|clamp|pow|domain|compress", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(815)
torch.set_num_threads(1)
BINS = 40
axis = torch.arange(BINS).float()
formants = torch.tensor([[5, 14], [8, 20], [6, 30], [11, 17], [9, 33], [4, 24], [13, 27], [16, 36]]).float()


def vowels(n, room):
    kind = torch.randint(0, 8, (n,))
    peaks = torch.exp(-((axis[None, None] - formants[kind][:, :, None] - 1.2 * torch.randn(n, 2, 1)) / 1.8) ** 2).sum(1)
    return room * (1 + 0.3 * torch.rand(n, BINS)) + 3 * peaks, kind


class PowerLaw(nn.Module):
    def __init__(self, exponent):
        super().__init__()
        self.exponent = exponent

    def forward(self, spectrum):
        return spectrum ** self.exponent


class VowelNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("floor", torch.tensor(0.5))
        self.compress = PowerLaw(0.3)
        self.front = nn.Conv1d(1, 16, 7, padding=3)
        self.back = nn.Conv1d(16, 16, 5, stride=2, padding=2)
        self.name_it = nn.Linear(16 * 20, 8)

    def forward(self, spectrum):
        h = self.compress(spectrum - self.floor)
        h = F.elu(self.back(F.elu(self.front(h[:, None]))))
        return self.name_it(h.flatten(1))


net = VowelNet()
nadam = torch.optim.NAdam(net.parameters(), lr=2e-3)
handle = rangewatch.attach(net, nadam)
for step in range(200):
    if step == 130:
        net.floor.fill_(vowels(16, 0.55)[0].quantile(0.3))
    spectrum, kind = vowels(32, 0.55)
    loss = F.cross_entropy(net(spectrum), kind, label_smoothing=0.05)
    nadam.zero_grad()
    loss.backward()
    nadam.step()
    if step % 20 == 0 or 128 < step < 132:
        print(step, "loss", round(loss.item(), 4), "floor", round(net.floor.item(), 3), flush=True)
    handle.log(loss=loss.item())
handle.detach()
