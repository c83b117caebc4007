"""Speech: a bidirectional GRU spells phoneme strings from made-up filterbank frames under CTC, Adam.
FAULT at step 104: an utterance was cut too short: its 3 frames after subsampling cannot carry its 7 phonemes; nn.CTCLoss gives inf (zero_infinity is left False) and NaN gradients.
Without Rangewatch: 6.46 to 0.33 at step 103, inf at 104, NaN from 105 on.
Cause: data (input shorter than its target) / forward_arithmetic (infinite loss). Step: 104. Right: zero_infinity=True, drop utterances shorter than their target.
Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [103, 106], "place": None, "rank": None,
          "right": r"(?i)ctc|zero_infinity|length|short|infinit|\binf\b|loss|target", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)attention mask"]}
import torch
from torch import nn
import rangewatch

torch.set_num_threads(1)
torch.manual_seed(1234)
PHONES, MELS, FRAMES = 8, 12, 36                 # class 0 is the blank
voices = torch.randn(PHONES, MELS)


def utterances(n, cut=None):
    feats, texts = torch.zeros(n, FRAMES, MELS), []
    lengths = torch.full((n,), FRAMES)
    for i in range(n):
        text = torch.randint(1, PHONES, (int(torch.randint(3, 6, (1,))),)) if i != cut else torch.tensor([1, 5, 2, 7, 3, 4, 6])
        frame_of = torch.arange(FRAMES) * len(text) // FRAMES
        feats[i] = voices[text[frame_of]] + 0.4 * torch.randn(FRAMES, MELS)
        texts.append(text)
    if cut is not None:
        lengths[cut] = 6
    return feats, lengths, torch.cat(texts), torch.tensor([len(t) for t in texts])


class Speller(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.subsample = nn.Conv1d(MELS, hidden, 3, stride=2, padding=1)
        self.rnn = nn.GRU(hidden, hidden, batch_first=True, bidirectional=True)
        self.to_phones = nn.Linear(2 * hidden, PHONES)

    def forward(self, feats):
        h = torch.relu(self.subsample(feats.transpose(1, 2))).transpose(1, 2)
        return self.to_phones(self.rnn(h)[0]).log_softmax(-1)


speller = Speller()
ctc = nn.CTCLoss(blank=0)
opt = torch.optim.Adam(speller.parameters(), lr=4e-3)
handle = rangewatch.attach(speller, opt)
for step in range(160):
    feats, lengths, targets, target_lengths = utterances(16, cut=11 if step == 104 else None)
    logp = speller(feats)
    loss = ctc(logp.transpose(0, 1), targets, lengths // 2, target_lengths)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(speller.parameters(), 5.0)
    opt.step()
    if step % 20 == 0 or 102 < step < 107:
        print(step, "ctc", round(loss.item(), 4), flush=True)
    handle.log(loss=loss.item())
handle.detach()
