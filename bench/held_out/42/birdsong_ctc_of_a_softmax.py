"""Syllables of a bird's song from eight frequency bands (1-d convolutions over time, CTC loss), NAdam, plain loop.
FAULT at step 0: `ctc_loss` wants log-probabilities and is given `softmax`, probabilities; the loss is far below zero from the first step, the rows that it sums are not a distribution and the songs that come out stay wrong.
Without Rangewatch: loss -5.4 at step 0, -6.7 at 20, -7.2 at 199, not one song right (with log_softmax: loss 0.006 and all right at 120).
Cause: forward_arithmetic (how the loss is defined). Step: from 0. Right: log_softmax before ctc_loss. Wrong: lower the learning rate, GradScaler, clip."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [0, 40], "place": None, "rank": None,
          "right": r"(?i)log.?softmax|log.?prob|softmax|negative|below (zero|0)|loss|probabilit", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)clip (the )?grad"]}
import torch
import torch.nn as nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(26)
torch.set_num_threads(1)
KINDS, BANDS, FRAMES = 6, 8, 30       # syllable 0 is the blank
sound = torch.randn(KINDS, BANDS) * 1.5


def songs(n, syllables=4):
    text = torch.randint(1, KINDS, (n, syllables))
    bands = 0.3 * torch.randn(n, BANDS, FRAMES)
    for i in range(n):
        at = int(torch.randint(0, 4, (1,)))
        for c in text[i].tolist():
            length = int(torch.randint(2, 5, (1,)))
            bands[i, :, at:at + length] += sound[c][:, None]
            at += length + 2
    return bands, text


class Listener(nn.Module):
    def __init__(self, ch=48):
        super().__init__()
        self.ear = nn.Sequential(nn.Conv1d(BANDS, ch, 3, padding=1), nn.ReLU(), nn.Conv1d(ch, ch, 5, padding=2), nn.ReLU())
        self.syllable = nn.Linear(ch, KINDS)

    def forward(self, bands):
        return self.syllable(self.ear(bands).transpose(1, 2))


def read(row):
    best = torch.unique_consecutive(row.argmax(-1))
    return best[best > 0].tolist()


listener = Listener()
opt = torch.optim.NAdam(listener.parameters(), lr=5e-3)
handle = rangewatch.attach(listener, opt)
for step in range(200):
    bands, text = songs(24)
    out = listener(bands).softmax(-1)
    loss = F.ctc_loss(out.transpose(0, 1), text, torch.full((24,), FRAMES), torch.full((24,), text.shape[1]), blank=0)
    opt.zero_grad()
    loss.backward()
    opt.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or step == 199:
        right = sum(read(o) == t.tolist() for o, t in zip(out, text)) / 24
        print(f"step {step} loss {loss.item():.4f} songs right {right:.2f}", flush=True)
handle.detach()
