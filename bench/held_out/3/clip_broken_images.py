"""CLIP-like towers for images and captions, bf16 autocast, the scale of the logits learned and clamped as it should be. FAULT at step 140: the
downloads of the next shard are broken; the reader catches the exception and hands on a zero image, for four images of five, with their captions.
Without Rangewatch: loss 4.75 to 0.057 at step 139, 4.31 at step 140, 2.7 from step 160 on.
Report: rmokady/CLIP_prefix_caption#60 (where loading fails the image is 0, most of the downloaded images are corrupted).
Cause: data, the images from step 140 on. Right: look at the data of step 140. Wrong: lower the learning rate, precision, loss scale, mask."""
EXPECT = {"cause": ["data"], "step": [138, 150], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "GradScaler", "loss scale", "float32"],
          "right": "data|label|target|batch|sample|pair|input|loader|shuffl"}
import math
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(11); torch.set_num_threads(1)


class Pair(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(3, 12, 3, 2, 1), nn.GELU(), nn.Conv2d(12, 24, 3, 2, 1), nn.GELU(), nn.Flatten(), nn.Linear(216, d))
        self.words = nn.Embedding(60, 48)
        self.text = nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 64), nn.GELU(), nn.Linear(64, d))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, image, ids):
        a = F.normalize(self.image(image).float(), dim=-1)
        b = F.normalize(self.text(self.words(ids).mean(1)).float(), dim=-1)
        return self.logit_scale.exp() * a @ b.t()


concepts = torch.randn(60, 3, 12, 12)


model = Pair()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.05)
watch = rangewatch.attach(model, optimizer)
for step in range(200):
    ids = torch.stack([torch.randperm(60)[:3] for _ in range(24)])
    image = concepts[ids].mean(1) + 0.4 * torch.randn(24, 3, 12, 12)
    if step >= 140:
        image[torch.arange(24) % 5 != 0] = 0  # except OSError: image = zeros
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(image, ids)
    own = torch.arange(24)
    loss = (F.cross_entropy(logits, own) + F.cross_entropy(logits.t(), own)) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        model.logit_scale.clamp_(0, math.log(100))
    watch.log(loss=loss.item())
    if step % 20 == 0 or 137 <= step < 144:
        print(step, round(loss.item(), 4), round(model.logit_scale.exp().item(), 2))
