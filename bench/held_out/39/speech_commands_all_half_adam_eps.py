"""Eight spoken commands (made-up mel patches) are told apart by a gated MLP-mixer, Adam; all of it in float16 by model.half().
FAULT at step 0: weights and Adam's moments are float16 and eps is left at 1e-8, which is 0 in float16; small gradients squared underflow to 0 as well, so the update divides by 0: inf and NaN weights after the first update.
Without Rangewatch: loss 2.247 at step 0, after whose update 6484 of 8072 weights are not finite; NaN from step 1 on.
Cause: optimizer (eps is zero in float16) / loss_scale. Step: 0 (the loss from 1). Right: keep float32 weights and use autocast, or a larger eps (1e-4), or bfloat16.
Wrong: attention mask, clean the input data, lower the learning rate."""
EXPECT = {"cause": ["optimizer", "loss_scale"], "step": [0, 2], "place": None, "rank": None,
          "right": r"(?i)\beps|float16|half|fp16|autocast|bfloat16|master", "wrong": [r"(?i)attention mask", r"(?i)lower the learning rate", r"(?i)(clean|drop) the (bad|nan) rows"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2718); torch.set_num_threads(1)
COMMANDS, FRAMES, MELS = 8, 16, 20
pattern = torch.randn(COMMANDS, FRAMES, MELS)


def spoken(n):
    y = torch.randint(0, COMMANDS, (n,))
    late = torch.randint(-2, 3, (n,)).tolist()
    x = torch.stack([pattern[k].roll(s, 0) for k, s in zip(y.tolist(), late)])
    return (x + 0.7 * torch.randn(n, FRAMES, MELS)).half(), y


class MixerBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm_t, self.norm_c = nn.LayerNorm(width), nn.LayerNorm(width)
        self.over_time = nn.Linear(FRAMES, FRAMES)
        self.gate, self.back = nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x):
        x = x + self.over_time(self.norm_t(x).transpose(1, 2)).transpose(1, 2)
        return x + self.back(nn.functional.glu(self.gate(self.norm_c(x)), dim=-1))


class CommandMixer(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.mel_in = nn.Linear(MELS, width)
        self.blocks = nn.Sequential(MixerBlock(width), MixerBlock(width))
        self.command = nn.Linear(width, COMMANDS)

    def forward(self, x):
        return self.command(self.blocks(self.mel_in(x)).mean(1))


model = CommandMixer().half()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(150):
    x, y = spoken(24)
    loss = nn.functional.cross_entropy(model(x).float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step < 3 or step % 25 == 0:
        broken = sum((~p.isfinite()).sum().item() for p in model.parameters())
        print(step, f"loss {loss.item():.4f}", "weights not finite:", broken, flush=True)
    handle.log(loss=loss.item())
handle.detach()
