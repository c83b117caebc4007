"""Keyword spotting on spectrograms with a convolutional net, fp16 autocast with GradScaler, SGD with momentum. FAULT from step 0: clip_grad_norm_(1.0)
comes before unscale_, so it clips gradients that are multiplied by the scale (65536), and the unscaling then leaves steps of about 1e-5 of what is
meant: it hardly learns. Without Rangewatch: the scale stays 65536, loss 2.06 at the start and 2.13 at step 180 (ln 8 is 2.08): it does not learn.
Report: milesial/Pytorch-UNet#468, harubaru/waifu-diffusion#64, Lightning-AI/pytorch-lightning#9599 (a very flat learning curve),
pytorch/pytorch#40907.
Cause: clipping of scaled gradients. Right: scaler.unscale_(optimizer) before clipping. Wrong: lower the learning rate, data, mask, frozen layers,
bfloat16 as the way out."""
EXPECT = {"cause": ["clip", "loss_scale"], "step": [0, 199], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "leave out samples", "requires_grad"],
          "right": "unscale|clip"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(33); torch.set_num_threads(1)
words = torch.randn(8, 1, 16, 20)


def block(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU())


model = nn.Sequential(block(1, 12), block(12, 24), nn.Flatten(), nn.Linear(480, 48), nn.ReLU(), nn.Linear(48, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
scaler = torch.amp.GradScaler("cpu")
watch = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(200):
    y = torch.randint(0, 8, (32,))
    x = words[y] + 1.5 * torch.randn(32, 1, 16, 20)
    with torch.autocast("cpu", torch.float16):
        loss = F.cross_entropy(model(x).float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    watch.log(loss=loss.item())
    if step % 20 == 0:
        print(step, round(loss.item(), 4), scaler.get_scale())
