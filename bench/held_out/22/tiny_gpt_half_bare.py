"""A GPT of two blocks over 64 signs, float16 autocast. FAULT at step 0: GradScaler is forgotten. The loss has a weight of 1/65536 (from a joint training,
where Adam does not mind), so the gradients in float16 fall below 6e-8 and are zero.
Without Rangewatch: loss 4.31 to 4.28 at the end; all gradients in the blocks and the head are exactly 0 in each step that was looked at (in bfloat16: loss 0.107).
Causes: loss_scale (none), backward_arithmetic (underflow), no_gradient. Right: GradScaler / loss scaling / bfloat16. Wrong: attention mask, lower the rate, clip."""
EXPECT = {"cause": ["loss_scale", "backward_arithmetic", "no_gradient"], "step": [0, 179], "place": None, "rank": 0,
          "right": "(?i)scal|bfloat16|bf16|underflow", "wrong": ["attention mask", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2228); torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(w), nn.LayerNorm(w)
        self.qkv, self.proj = nn.Linear(w, 3 * w), nn.Linear(w, w)
        self.up, self.down = nn.Linear(w, 4 * w), nn.Linear(4 * w, w)

    def forward(self, x):
        q, k, v = (t.unflatten(2, (4, -1)).transpose(1, 2) for t in self.qkv(self.ln1(x)).chunk(3, 2))
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class GPT(nn.Module):
    def __init__(self, signs=64, w=48, length=24):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(signs, w), nn.Embedding(length, w)
        self.h = nn.ModuleList(Block(w) for _ in range(2))
        self.ln_f, self.lm_head = nn.LayerNorm(w), nn.Linear(w, signs, bias=False)

    def forward(self, x):
        h = self.wte(x) + self.wpe.weight[: x.shape[1]]
        for block in self.h:
            h = block(h)
        return self.lm_head(self.ln_f(h))


gpt = GPT()
optimizer = torch.optim.AdamW(gpt.parameters(), lr=2e-3, eps=1e-15)
handle = rangewatch.attach(gpt, optimizer)
for step in range(180):
    row = (torch.randint(0, 64, (24, 1)) + torch.randint(1, 4, (24, 1)) * torch.arange(25)) % 64
    with torch.autocast("cpu", torch.float16):
        logits = gpt(row[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), row[:, 1:].flatten())
    optimizer.zero_grad()
    (loss / 65536).backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or step == 179:
        zero = {n: round((p.grad == 0).float().mean().item(), 3) for n, p in gpt.named_parameters() if n in ("h.0.up.weight", "h.1.qkv.weight", "lm_head.weight")}
        print(step, loss.item(), "share of zeros", zero, flush=True)
handle.detach()
