"""LoRA on a small ViT whose base linears are int8 buffers; AdamW and a warm-up by LambdaLR. FAULT from step 0 on: the lambda divides with //
(ported from Python 2, where / did the same), so that the factor is 0 for the whole warm-up of 5000 steps: lr is 0, no adapter ever moves, nor does
the head.
Without Rangewatch: lr is 0.0 at every step, every lora_b stays zero, the loss 1.81 to 2.00 without a trend; divided by / and with a warm-up of 50
it falls to 0.003.
Report: facebookresearch/maskrcnn-benchmark#335 (warm-up factor 0 by integer division), verl-project/verl#3674 (lr 0 at warm-up),
karpathy/nanoGPT#578.
Cause: learning_rate. Step: 0. Right: learning rate / schedule / warm-up. Wrong: GradScaler, mask, lower the learning rate."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 120], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"],
          "right": "learning rate|lr\\b|schedul|warm"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(719); torch.set_num_threads(1)
CLASSES, WARMUP = 6, 5000
kinds = torch.randn(CLASSES, 1, 16, 16)


class Int8LoRA(nn.Module):
    def __init__(self, inputs, outputs, r=4):
        super().__init__()
        weight = torch.randn(outputs, inputs) / inputs ** 0.5
        self.register_buffer("scale", weight.abs().amax(1, keepdim=True) / 127)
        self.register_buffer("weight_int8", (weight / self.scale).round().to(torch.int8))
        self.lora_a = nn.Linear(inputs, r, bias=False)
        self.lora_b = nn.Linear(r, outputs, bias=False)
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x):
        return F.linear(x, self.weight_int8.to(x.dtype) * self.scale) + 2 * self.lora_b(self.lora_a(x))


class Block(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width).requires_grad_(False), nn.LayerNorm(width).requires_grad_(False)
        self.qkv, self.proj = Int8LoRA(width, 3 * width), Int8LoRA(width, width)
        self.up, self.down = Int8LoRA(width, 64), Int8LoRA(64, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(1, 32, 4, stride=4).requires_grad_(False)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x):
        return self.head(self.blocks(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


model = ViT()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(step // WARMUP, 1))
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    y = torch.randint(0, CLASSES, (32,))
    loss = F.cross_entropy(model(kinds[y] + 0.5 * torch.randn(32, 1, 16, 16)), y)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    if step % 20 == 0:
        print(step, loss.item(), optimizer.param_groups[0]["lr"], model.blocks[0].qkv.lora_b.weight.abs().max().item(), flush=True)
handle.detach()
