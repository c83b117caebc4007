"""A small CTC recogniser (two strided convolutions and a GRU on filter banks, AdamW) (torchaudio / DeepSpeech thread: 'CTCLoss returns inf, then everything is nan').
FAULT at step 73: an utterance is cut to 12 frames, which the strides make 3, while its transcript has 8 signs; no alignment exists and the loss is inf, the gradients NaN (zero_infinity=False).
Without Rangewatch: ctc 4.8 to 0.15 at step 72, inf at 73, nan ever after.
Cause: data (input shorter than the target) / forward_arithmetic. Step: 73. Right: filter clips which are too short, zero_infinity=True, less subsampling. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [72, 75], "place": None, "rank": None,
          "right": r"(?i)length|short|target|zero_infinity|data|batch|align|\binf|loss", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)attention mask"]}
import torch
import torch.nn as nn
import rangewatch

torch.manual_seed(6); torch.set_num_threads(1)
PHONES, MELS, MAXT = 10, 20, 96
voice = torch.randn(PHONES + 1, MELS)


def utterances(n, truncated=False):
    feats, flen, tgt, tlen = torch.zeros(n, MAXT, MELS), [], [], []
    for i in range(n):
        k = int(torch.randint(4, 9, (1,)))
        said = torch.randint(1, PHONES + 1, (k,))
        if truncated and i == 4:
            k = 8; said = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])
        stretched = voice[said].repeat_interleave(96 // 8, 0)
        T = len(stretched)
        feats[i, :T] = stretched + 0.3 * torch.randn(T, MELS)
        if truncated and i == 4:
            T = 12; feats[i, T:] = 0
        flen.append(T); tgt.append(said); tlen.append(k)
    return feats, torch.tensor(flen), torch.cat(tgt), torch.tensor(tlen)


class Acoustic(nn.Module):
    def __init__(self, h=48):
        super().__init__()
        self.subsample = nn.Sequential(nn.Conv1d(MELS, h, 3, 2, 1), nn.ReLU(), nn.Conv1d(h, h, 3, 2, 1), nn.ReLU())
        self.rnn = nn.GRU(h, h, batch_first=True, bidirectional=True)
        self.ctc_head = nn.Linear(2 * h, PHONES + 1)

    def forward(self, feats, lengths):
        x = self.subsample(feats.transpose(1, 2)).transpose(1, 2)
        x, _ = self.rnn(x)
        return self.ctc_head(x).log_softmax(-1), torch.div(lengths, 4, rounding_mode="floor")


acoustic = Acoustic()
opt = torch.optim.AdamW(acoustic.parameters(), lr=3e-3)
ctc = nn.CTCLoss(blank=0)
handle = rangewatch.attach(acoustic, opt)
for step in range(150):
    feats, flen, tgt, tlen = utterances(12, truncated=step == 73)
    logp, olen = acoustic(feats, flen)
    loss = ctc(logp.transpose(0, 1), tgt, olen, tlen)
    opt.zero_grad()
    loss.backward()
    opt.step()
    handle.log(loss=loss.item())
    if step % 15 == 0 or 71 < step < 76:
        print(f"step={step} ctc={loss.item():.4f}", flush=True)
handle.detach()
