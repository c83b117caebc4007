"""CTC over a made-up phone alphabet (convolutions, float16 autocast, GradScaler), Adam with eps 1e-5 as its recipe for mixed precision says.
FAULT at step 0: after `scaler.unscale_` a leftover loop divides each gradient by the scale once more. Adam would not care but for its eps: the gradients are then some 1e-7 and far below it, the updates are about a hundred times too small.
Without Rangewatch: ctc 4.8 to 1.9 at step 199, mean gradient 1e-7 (unscaled once: 0.047, gradient 1e-3).
Cause: loss_scale / optimizer (gradients unscaled twice, eps rules). Step: from 0, shows slowly. Right: unscale once. Wrong: lower the learning rate, clip, attention mask, data."""
EXPECT = {"cause": ["loss_scale", "optimizer"], "step": [0, 150], "place": None, "rank": None,
          "right": r"(?i)unscale|twice|scale|\beps\b|gradients?.{0,40}(small|tiny)", "wrong": ["[Ll]ower the learning rate", "attention mask", "[Cc]lip the gradient", "fill value"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3714); torch.set_num_threads(1)
PHONES, BANDS, SAID, HOLD = 7, 10, 5, 4
voice = torch.randn(PHONES, BANDS)


def utterances(n):
    said = torch.randint(1, PHONES, (n, SAID))
    frames = voice[said].repeat_interleave(HOLD, 1)
    return (frames + 0.5 * torch.randn_like(frames)).transpose(1, 2), said


class Phoner(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = nn.Conv1d(BANDS, 32, 5, padding=2)
        self.middle = nn.Conv1d(32, 32, 3, padding=1)
        self.phones = nn.Conv1d(32, PHONES, 1)

    def forward(self, x):
        return self.phones(F.hardswish(self.middle(F.hardswish(self.front(x)))))


net = Phoner()
adam = torch.optim.Adam(net.parameters(), lr=4e-3, eps=1e-5)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 16)
handle = rangewatch.attach(net, adam, scaler=scaler)
again = True
for step in range(200):
    x, said = utterances(16)
    adam.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        out = net(x)
    logp = out.float().log_softmax(1).permute(2, 0, 1)
    loss = F.ctc_loss(logp, said, torch.full((16,), logp.shape[0]), torch.full((16,), SAID), zero_infinity=True)
    scaler.scale(loss).backward()
    scaler.unscale_(adam)
    if again:
        for p in net.parameters():
            p.grad /= scaler.get_scale()
    scaler.step(adam)
    scaler.update()
    if step % 20 == 0 or step == 199:
        print(step, "ctc", round(loss.item(), 4), "grad", net.middle.weight.grad.abs().mean().item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
