"""A vision model with linear attention (ReLU kernel, as in EfficientViT) in float16 autocast with a GradScaler. The normaliser has an eps of 1e-15, which
is 0 in float16. FAULT from step 150 on: each batch holds some pictures that are quite black (a night camera); their q and k are exactly 0, and the
attention is 0 / 0. The input is finite and legal.
Without Rangewatch: loss 1.91 to 0.0002 at step 149, NaN from step 150 on; every step is skipped, the scale falls from 1024 to 1e-18; with an eps of 1e-4
it goes on.
Report: mit-han-lab/efficientvit#15 (NaN in mixed precision; the division's eps must be 1e-5 and not 1e-15), yitu-opensource/T2T-ViT#65 (1e-8 is 0 in fp16).
Cause: forward_arithmetic. Step: 150. Right: division / eps / float32. Wrong: lower the learning rate, attention mask, shuffle."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [150, 151], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "attention mask", "shuffl"],
          "right": "divi|eps|0 ?/ ?0|zero|float32|float16|half"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(806); torch.set_num_threads(1)
PLACES = 6
texture = torch.randn(PLACES, 3, 1, 1) + 0.5 * torch.randn(PLACES, 3, 4, 4).repeat(1, 1, 4, 4)


class LinearAttention(nn.Module):  # ReLU as the kernel, as in EfficientViT
    def __init__(self, width, eps=1e-15):
        super().__init__()
        self.qkv, self.out, self.eps = nn.Conv2d(width, 3 * width, 1, bias=False), nn.Conv2d(width, width, 1), eps

    def forward(self, x):
        q, k, v = self.qkv(x).flatten(2).transpose(1, 2).chunk(3, 2)
        q, k = F.relu(q), F.relu(k)
        v = F.pad(v, (0, 1), value=1.0)
        kv = k.transpose(1, 2) @ v
        o = q @ kv
        o = o[..., :-1] / (o[..., -1:] + self.eps)
        return self.out(o.transpose(1, 2).reshape(x.shape))


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 4, stride=4, bias=False)
        self.attention = LinearAttention(32)
        self.ffn = nn.Sequential(nn.Conv2d(32, 64, 1), nn.Hardswish(), nn.Conv2d(64, 32, 1))
        self.head = nn.Linear(32, PLACES)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.attention(x)
        x = x + self.ffn(x)
        return self.head(x.mean((2, 3)))


model = Segmenter()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(220):
    place = torch.randint(0, PLACES, (24,))
    picture = texture[place] + torch.randn(24, 3, 16, 16)
    if step >= 150:
        picture[::8] = 0.0  # the night camera: black pictures, quite legal ones
    with torch.autocast("cpu", torch.float16):
        logits = model(picture)
    loss = F.cross_entropy(logits.float(), place)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step in (149, 150, 151) or step == 219:
        print(step, loss.item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
