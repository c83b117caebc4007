"""A small recogniser of speech with a GRU and CTC. FAULT at step 120: one utterance of the batch was cut to three frames of the encoder, and its
transcript of five phones was not. No path fits, CTC is Inf (zero_infinity is False), its gradient NaN. Without Rangewatch: loss 4.64 to 0.26 at step
119, Inf at step 120 with a gradient norm of NaN, everything NaN from step 121 on.
Report: k2-fsa/icefall#135 (Inf CTC loss from utterances that are too short), wenet-e2e/wenet#2299, ypwhs/captcha_break#29.
Cause: data (or, seen from inside, the loss's arithmetic). Step: 120. Right: length of the inputs / zero_infinity / the batch. Wrong: learning rate,
attention mask, GradScaler."""
EXPECT = {"cause": ["data", "forward_arithmetic", "backward_arithmetic"], "step": [120, 121], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "batch|sample|input|data|length|zero_infinity|loss"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(601); torch.set_num_threads(1)
PHONES, MELS = 9, 20
voice = torch.randn(PHONES + 1, MELS)


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.subsample = nn.Conv1d(MELS, 32, 3, stride=2, padding=1)
        self.rnn = nn.GRU(32, 32, batch_first=True, bidirectional=True)
        self.output = nn.Linear(64, PHONES + 1)

    def forward(self, mel):
        h = F.relu(self.subsample(mel.transpose(1, 2))).transpose(1, 2)
        return F.log_softmax(self.output(self.rnn(h)[0]), -1)


def batch(short=False, n=8, words=5):
    y = torch.randint(1, PHONES + 1, (n, words))
    frames = y.repeat_interleave(6, 1)
    mel = voice[frames] + 0.5 * torch.randn(n, 30, MELS)
    lengths = torch.full((n,), 15)
    if short:
        lengths[3] = 3  # a cut utterance of six frames whose transcript was not cut
    return mel, y, lengths


model = Recogniser()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    mel, y, lengths = batch(short=step == 120)
    out = model(mel)
    loss = F.ctc_loss(out.transpose(0, 1), y, lengths, torch.full((8,), 5))
    optimizer.zero_grad()
    loss.backward()
    grad = torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    if step % 20 == 0 or step in (119, 120, 121, 122):
        print(step, loss.item(), grad.item(), model.output.weight.abs().max().item(), flush=True)
handle.detach()
