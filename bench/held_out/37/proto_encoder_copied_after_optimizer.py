"""A prototypical network (few-shot metric learning): a small encoder puts samples of five unseen waveform families near their family's mean; AdamW.
FAULT at step 0: the optimizer is built from the encoder, and only then the encoder is deep-copied ("keep the pristine one"); it is the copy that trains. AdamW holds the pristine one's parameters, whose .grad is always None: no weight of the model ever moves.
Without Rangewatch: loss 1.58 at episode 0 and 1.55 to 1.60 for all 260, `squeeze moved 0.0000` (with the optimizer on the trained model: below 0.5, moved by 2.6).
Cause: optimizer (it holds other parameters) / frozen. Step: from 0, a hint may need some dozens of steps. Right: build the optimizer after the copy, from the parameters of the model that is trained.
Wrong: raise or lower the learning rate, clip, GradScaler, data."""
EXPECT = {"cause": ["optimizer", "frozen"], "step": [0, 150], "place": None, "rank": None,
          "right": r"(?i)optimizer.{0,80}(param|hold|built|belong|own)|param.{0,80}optimizer|not in the optimizer", "wrong": ["[Ll]ower the learning rate", "GradScaler", "[Cc]lip the gradient", "attention mask"]}
import copy

import torch
import torch.nn.functional as F
from torch import nn

import rangewatch

torch.manual_seed(3701)
torch.set_num_threads(1)
WAYS, SHOTS, QUERIES, LENGTH = 5, 3, 6, 40
axis = torch.linspace(0, 1, LENGTH)


def episode():
    freq = 1 + 6 * torch.rand(WAYS, 1, 1)
    skew = torch.randn(WAYS, 1, 1)
    phase = 6.28 * torch.rand(WAYS, SHOTS + QUERIES, 1)
    wave = torch.sin(6.28 * freq * axis + phase) + skew * torch.sin(12.56 * freq * axis + 2 * phase)
    wave = wave + 0.3 * torch.randn_like(wave)
    return wave[:, :SHOTS], wave[:, SHOTS:]


class WaveEncoder(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.stem = nn.Conv1d(1, width, 7, padding=3)
        self.body = nn.Conv1d(width, width, 5, padding=2)
        self.squeeze = nn.Linear(2 * width, 16)

    def forward(self, x):
        h = F.elu(self.body(F.elu(self.stem(x.flatten(0, 1)[:, None]))))
        z = self.squeeze(torch.cat([h.mean(2), h.std(2)], 1))
        return z.view(x.shape[0], x.shape[1], -1)


pristine = WaveEncoder()
optimizer = torch.optim.AdamW(pristine.parameters(), lr=2e-3)
encoder = copy.deepcopy(pristine)
handle = rangewatch.attach(encoder, optimizer)
before = encoder.squeeze.weight.detach().clone()
for it in range(260):
    support, query = episode()
    proto = encoder(support).mean(1)
    dist = torch.cdist(encoder(query).flatten(0, 1), proto)
    truth = torch.arange(WAYS).repeat_interleave(QUERIES)
    loss = F.cross_entropy(-dist ** 2, truth)
    encoder.zero_grad()
    loss.backward()
    optimizer.step()
    if it % 20 == 0 or it == 259:
        hit = (dist.argmin(1) == truth).float().mean().item()
        print(f"episode {it} loss {loss.item():.3f} hit {hit:.2f} squeeze moved {(encoder.squeeze.weight - before).norm().item():.4f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
