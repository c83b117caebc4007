"""A text-to-speech acoustic model as FastSpeech 2: phonemes, a length regulator by the given durations, a mel decoder, and a duration predictor
trained on log(duration). FAULT at step 110: the aligner gave a phoneme 0 frames (a skipped schwa): log(0) = -Inf is the target, the loss is Inf and
its gradient Inf and NaN. All that the model puts out is finite. Without Rangewatch: loss 2.15 to 0.54 at step 109, Inf at step 110, NaN from step
111 on.
Report: TensorSpeech/TensorFlowTTS#203 (each element in the duration file must be positive), wenet-e2e/wetts#26 (relation of duration and log
duration).
Cause: data (the target), or arithmetic of the loss (log of 0). Right: target / label / batch / log / duration / zero. Wrong: learning rate, mask,
GradScaler."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [110, 111], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "target|label|batch|log|zero|sample|the loss"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(505); torch.set_num_threads(1)
PHONES, D, MEL, T = 30, 40, 20, 12


class Voice(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(PHONES, D)
        self.encoder = nn.Sequential(nn.Conv1d(D, D, 3, padding=1), nn.ReLU(), nn.Conv1d(D, D, 3, padding=1), nn.ReLU())
        self.duration = nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, 1))
        self.decoder = nn.Sequential(nn.Conv1d(D, D, 5, padding=2), nn.ReLU(), nn.Conv1d(D, MEL, 5, padding=2))

    def forward(self, phones, frames):
        h = self.encoder(self.embed(phones).transpose(1, 2)).transpose(1, 2)
        long = [each.repeat_interleave(n, 0) for each, n in zip(h, frames)]
        return self.decoder(nn.utils.rnn.pad_sequence(long, True).transpose(1, 2)), self.duration(h).squeeze(-1)


usual, timbre = torch.randint(1, 7, (PHONES,)), torch.randn(PHONES, MEL)
model = Voice()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    phones = torch.randint(0, PHONES, (16, T))
    frames = (usual[phones] + torch.randint(-1, 2, (16, T))).clamp(min=1)
    if step == 110:
        frames[5, 7] = 0
    mel = nn.utils.rnn.pad_sequence([timbre[p].repeat_interleave(n, 0) for p, n in zip(phones, frames)], True).transpose(1, 2)
    mel = mel + 0.1 * torch.randn_like(mel)
    said, log_duration = model(phones, frames)
    mel_loss, duration_loss = F.l1_loss(said, mel), F.mse_loss(log_duration, frames.float().log())
    loss = mel_loss + duration_loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss, duration_loss=duration_loss)
    if step % 20 == 0 or step in (109, 110, 111):
        print(step, loss.item(), duration_loss.item(), flush=True)
handle.detach()
