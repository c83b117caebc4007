"""Keyword spotting on log spectrograms, normalised per utterance outside of the model. FAULT at step 90: one recording is digital
silence, log(0) = -Inf for each bin, and (x - mean) / std makes it NaN: the batch comes into the model with NaN.
Report: SeanNaren/deepspeech.pytorch#272 (all-zero audio of Common Voice gives a NaN loss), KimythAnly/AGAIN-VC#5, MP-SENet#33.
Cause: data, step 90 (the input of the first layer). Right: the batch / input / sample. Wrong: learning rate, mask, weight, bf16, scaler."""
EXPECT = {"cause": ["data"], "step": [90, 90], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "bfloat16", "GradScaler", "checkpoint"], "right": "batch|data|input|sample|row"}
import math
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2); torch.set_num_threads(1)
window = torch.hann_window(128)

def recordings(n, label):
    t = torch.arange(2048) / 2048
    tone = 40.0 * (1 + label)[:, None] + 3 * torch.randn(n, 1)
    return torch.sin(2 * math.pi * tone * t) * torch.rand(n, 1) + 0.05 * torch.randn(n, 2048)

def features(audio):
    power = torch.stft(audio, 128, 64, window=window, return_complex=True).abs().pow(2)
    x = power.log()
    return (x - x.mean((1, 2), keepdim=True)) / x.std((1, 2), keepdim=True)

class Spotter(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(65, 48, 3, padding=1), nn.Conv1d(48, 48, 3, padding=1, stride=2)
        self.gru, self.out = nn.GRU(48, 32, batch_first=True), nn.Linear(32, 8)
    def forward(self, x):
        x = F.gelu(self.conv2(F.gelu(self.conv1(x))))
        return self.out(self.gru(x.transpose(1, 2))[0][:, -1])

net = Spotter()
opt = torch.optim.AdamW(net.parameters(), 1e-3)
watch = rangewatch.attach(net, opt)
for step in range(170):
    label = torch.randint(0, 8, (24,))
    audio = recordings(24, label)
    if step == 90:
        audio[17] = 0.0
    loss = F.cross_entropy(net(features(audio)), label)
    opt.zero_grad(); loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 5.0)
    opt.step()
    watch.log(loss=loss.item())
    if step % 10 == 0:
        print(step, loss.item())
