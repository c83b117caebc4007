"""An action classifier on short clips, 3-D convolutions with group norm, AdamW. FAULT from step 150 on: the clips of the second part are AVI files
for which the decoder gives frames of zeros without an error. The loss goes up to log 6 and stays: there is nothing to see.
Without Rangewatch: loss 2.07 to 0.002 at step 149, 2.09 at step 150 and 1.7 to 2.4 ever after; the inputs are 0.0.
Report: dmlc/decord#233 (VideoReader returns all zero frames), dmlc/decord#83 (corrupted frames come back black), vadimkantorov/mpegflow#4.
Cause: data. Step: 150. Right: data / input / zero / batch / loader. Wrong: learning rate, GradScaler, mask."""
EXPECT = {"cause": ["data"], "step": [150, 200], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "data|input|batch|loader|zero|sample|constant|blank"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(805); torch.set_num_threads(1)
ACTIONS = 6
moves = torch.randn(ACTIONS, 3, 4, 10, 10)


def clips(n=12, avi=False):
    y = torch.randint(0, ACTIONS, (n,))
    frames = moves[y] + 1.2 * torch.randn(n, 3, 4, 10, 10)
    if avi:
        frames = torch.zeros_like(frames)  # what the decoder gives
    return frames, y


model = nn.Sequential(
    nn.Conv3d(3, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.SiLU(),
    nn.Conv3d(12, 24, 3, stride=2, padding=1), nn.GroupNorm(4, 24), nn.SiLU(),
    nn.Flatten(), nn.Linear(24 * 2 * 5 * 5, ACTIONS))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(260):
    x, y = clips(avi=step >= 150)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or 148 < step < 154:
        print(step, loss.item(), "input up to", x.abs().max().item(), flush=True)
handle.detach()
