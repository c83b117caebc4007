"""The pitch of a voice from raw waveforms, a small net of 1-D convolutions without norms, Adam. FAULT from step 150 on: the second part of the data
is read with normalize=False: sixteen-bit integers up to 32767 go in where -1 to 1 was before.
Without Rangewatch: loss 0.32 to 0.002 at step 140, 2.8e7 at step 150, 1.8e5 at step 160, 0.3 (nothing learnt) from step 200 on.
Report: JusperLee/Dual-Path-RNN-Pytorch#16 (integers from the reader: NaN loss), SeanNaren/deepspeech.pytorch#208, pytorch/audio#2449.
Cause: data. Step: 150. Right: data / input / batch / scale / normalise. Wrong: learning rate, GradScaler, mask."""
EXPECT = {"cause": ["data"], "step": [150, 152], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "data|input|batch|scal|normali|unit|loader|sample"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(804); torch.set_num_threads(1)


def load(n=24, normalize=True):
    y = torch.rand(n) * 2 - 1
    t = torch.arange(400).float()
    wave = torch.sin(0.2 * torch.exp(y[:, None]) * t + 6.28 * torch.rand(n, 1)) * (0.2 + 0.6 * torch.rand(n, 1)) + 0.1 * torch.randn(n, 400)
    pcm = (wave.clamp(-1, 1) * 32767).to(torch.int16)
    x = pcm.float() / 32768 if normalize else pcm.float()
    return x[:, None], y


model = nn.Sequential(
    nn.Conv1d(1, 16, 20, stride=4), nn.ReLU(), nn.MaxPool1d(2),
    nn.Conv1d(16, 32, 3), nn.ReLU(), nn.MaxPool1d(2),
    nn.Conv1d(32, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(260):
    x, y = load(normalize=step < 150)
    loss = F.mse_loss(model(x).squeeze(1), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or 148 < step < 154:
        print(step, loss.item(), "input up to", x.abs().max().item(), flush=True)
handle.detach()
