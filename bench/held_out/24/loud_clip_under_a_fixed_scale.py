"""A net over windows of spectrograms in float16 autocast with a loss scale of 256 fixed by hand and no check for inf. FAULT at step 130: one batch was not normalised and
is 30,000 times as loud; the activations exceed 65504, the loss is NaN and so is every weight after it.
Without Rangewatch: loss 1.5 to 0.042 at step 129, NaN from step 130 on.
Cause: data (the batch) or forward_arithmetic (overflow of float16). Step: 130. Right: batch / input / overflow / float16. Wrong: lower the rate, attention mask."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [129, 131], "place": None, "rank": 0,
          "right": "(?i)batch|input|overflow|float16|65504|data", "wrong": ["[Ll]ower the learning rate", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2406); torch.set_num_threads(1)
SCALE = 256.0


class ClipNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.bands = nn.Linear(80, 64)
        self.mix = nn.Linear(64, 64)
        self.classes = nn.Linear(64, 4)

    def forward(self, s):
        h = F.relu(self.bands(s.unfold(2, 4, 4).permute(0, 2, 1, 3).flatten(2)))
        h = F.relu(self.mix(h)) + h
        return self.classes(h.mean(1))


shape = 0.8 * torch.rand(4, 20, 1)


def clips(n):
    k = torch.randint(0, 4, (n,))
    return shape[k] * (0.5 + torch.rand(n, 1, 32)) + 2.0 * torch.randn(n, 20, 32), k


model = ClipNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    spectrum, kind = clips(32)
    if step == 130:
        spectrum = spectrum * 3e4
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(spectrum)
    loss = F.cross_entropy(logits.float(), kind)
    optimizer.zero_grad()
    (loss * SCALE).backward()
    for p in model.parameters():
        p.grad.div_(SCALE)
    optimizer.step()
    if step % 20 == 0 or 128 < step < 134 or step == 199:
        print(step, loss.item(), "largest input", spectrum.abs().max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
