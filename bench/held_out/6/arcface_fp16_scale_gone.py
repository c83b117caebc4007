"""A face network with normalised features and centres, autocast to float16, GradScaler, SGD. FAULT from step 100 on: a new loader hands over raw
counts, 40000 times larger. Cast to float16 many are Inf, the loss is NaN; every step is skipped and the scale halves at each. Weights stay finite.
Without Rangewatch: loss 5.42 to 0.008 and scale 1024 to 4096 at step 99; NaN from step 100 on, scale 1.9e-9 at step 140 and 3e-27 at step 199; the
largest centre stays 3.353903.
Report: deepinsight/insightface#2262 (loss NaN, "Fp16 Grad Scale: 0"), NVIDIA/apex#715, ymcui/Chinese-LLaMA-Alpaca#534. None of them names the data as
the cause: the symptom is theirs, the cause is mine.
Cause: data (or forward arithmetic, or loss scale). Step: 100. Right: range of the input / float16 overflow. Wrong: learning rate, mask."""
EXPECT = {"cause": ["data", "forward_arithmetic", "loss_scale"], "step": [100, 101], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "attention mask"],
          "right": "input|normali|range|float16|65504|overflow|bfloat16|batch|data"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(611); torch.set_num_threads(1)


class Face(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 24))
        self.centres = nn.Parameter(torch.randn(10, 24))

    def forward(self, x):
        h = self.backbone(x)
        return 16 * F.normalize(h.float(), dim=1) @ F.normalize(self.centres, dim=1).T


faces = torch.randn(10, 64)
model = Face()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=50)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(200):
    y = torch.randint(0, 10, (32,))
    x = faces[y] + 1.0 * torch.randn(32, 64)
    if step >= 100:
        x = 40000.0 * x  # the new loader hands over raw sensor counts
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(x)
    loss = F.cross_entropy(logits, y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step in (99, 100, 101, 199):
        print(step, loss.item(), scaler.get_scale(), model.centres.abs().max().item(), flush=True)
handle.detach()
