"""A transformer over the logarithms of the band powers of an EEG, computed in the model. FAULT at step 95: an electrode is unplugged, its signal is exactly 0,
and the logarithm of its power is -inf.
Without Rangewatch: loss 1.54 to 0.31 at step 94; NaN at step 95 and at each step after it.
Variant of: functions: log_of_zero.
Cause: forward_arithmetic (or data: a channel of zeros). Step: 95. Place: power. Right: log / zero / eps / clamp. Wrong: rate, GradScaler, attention mask."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [94, 96], "place": ".*(power|input|batch).*", "rank": None,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "log|zero|epsilon|eps|clamp"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1108); torch.set_num_threads(1)
STAGES, ELECTRODES = 4, 8
strength = torch.rand(STAGES, ELECTRODES, 9).mul(2).add(0.3)


class LogPower(nn.Module):
    def forward(self, x):
        return torch.log(torch.fft.rfft(x).abs().square())


class SleepNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.power = LogPower()
        self.enter = nn.Linear(9, 24)
        self.electrode = nn.Parameter(0.1 * torch.randn(ELECTRODES, 24))
        self.mix = nn.TransformerEncoderLayer(24, 2, 48, dropout=0.0, batch_first=True)
        self.stage = nn.Linear(24, STAGES)

    def forward(self, x):
        return self.stage(self.mix(self.enter(self.power(x)) + self.electrode).mean(1))


def nights(n):
    stage = torch.randint(0, STAGES, (n,))
    wave = torch.fft.rfft(torch.randn(n, ELECTRODES, 16)) * strength[stage]
    return torch.fft.irfft(wave), stage


model = SleepNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, stage = nights(32)
    if step == 95:
        x[3, 6] = 0.0  # the electrode is off
    loss = F.cross_entropy(model(x), stage)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 93 < step < 98:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
