"""MLP-Mixer on patches, Adam with warm-up and a cosine that is nearly at its end; the job is preempted and resumed in place. FAULT at
step 220: weights and moments come back, but the learning rate is set to the command line's unscaled one (0.5 per 4096 samples) instead
of the 4e-4 where the schedule was: the loss jumps far past that of chance. Report: torch-points3d/torch-points3d#630,
pytorch/pytorch#60265, THUDM/slime#1547. Cause: learning_rate, step 220. Right: the learning rate / schedule. Wrong: data, mask, bf16."""
EXPECT = {"cause": ["learning_rate"], "step": [219, 226], "place": None, "rank": 0,
          "wrong": ["[Mm]ask", "bfloat16", "GradScaler", "leave out samples"], "right": "learning rate|lr|schedul|warm"}
import copy
import math
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1); torch.set_num_threads(1)
BASE = 0.5  # per 4096 samples
PEAK = BASE * 48 / 4096

class MixerBlock(nn.Module):
    def __init__(self, tokens=16, d=32):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.mix = nn.Sequential(nn.Linear(tokens, 32), nn.GELU(), nn.Linear(32, tokens))
        self.mlp = nn.Sequential(nn.Linear(d, 64), nn.GELU(), nn.Linear(64, d))
    def forward(self, x):
        x = x + self.mix(self.ln1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.mlp(self.ln2(x))

class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.blocks, self.ln, self.head = nn.Linear(12, 32), nn.Sequential(*(MixerBlock() for _ in range(4))), nn.LayerNorm(32), nn.Linear(32, 10)
    def forward(self, x):
        return self.head(self.ln(self.blocks(self.stem(x))).mean(1))

def schedule(step, peak=PEAK, total=240):
    return peak * min(1, (step + 1) / 30) * (0.06 + 0.94 * 0.5 * (1 + math.cos(math.pi * min(step, total) / total)))

net = Mixer()
opt = torch.optim.Adam(net.parameters(), schedule(0))
watch = rangewatch.attach(net, opt)
classes = torch.randn(10, 16, 12)
for step in range(330):
    if step == 220:
        saved = copy.deepcopy((net.state_dict(), opt.state_dict()))
        net.load_state_dict(saved[0]); opt.load_state_dict(saved[1])
    for group in opt.param_groups:
        group["lr"] = schedule(step) if step < 220 else BASE
    label = torch.randint(0, 10, (48,))
    loss = F.cross_entropy(net(classes[label] + 2.0 * torch.randn(48, 16, 12)), label)
    opt.zero_grad(); loss.backward(); opt.step()
    watch.log(loss=loss.item(), lr=opt.param_groups[0]["lr"])
    if step % 10 == 0:
        print(step, loss.item(), opt.param_groups[0]["lr"])
