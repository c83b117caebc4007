"""LoRA on a frozen decoder with its weights in bf16, gradient checkpointing (reentrant) to save memory, a trained classification head in fp32. FAULT
from step 0: the embeddings are frozen, so what enters a checkpointed block needs no gradient, and a reentrant checkpoint then cuts the graph: no
adapter ever gets a gradient; the head alone trains. Without Rangewatch: torch warns once that no input requires a gradient; lora_b is 0 to the end,
loss 1.90 to 1.88 at step 180 (chance is ln 6 = 1.79).
Report: locuslab/open-unlearning#178 (lora_B of all layers stays 0), huggingface/transformers#25841 and #26334, huggingface/peft#137.
Cause: the adapters get no gradient (graph cut by the checkpoint). Right: enable_input_require_grads / use_reentrant=False. Wrong: learning rate,
loss scale, precision, mask, another initialisation of lora_b (zero is right)."""
EXPECT = {"cause": ["optimizer"], "step": [0, 130], "place": "(.*\\.)?blocks\\..*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Rr]aise the learning rate", "[Mm]ask", "GradScaler", "loss scale", "leave out samples"],
          "right": "checkpoint|reentrant|requires?_grad|require_grads|no gradient|detach|graph"}
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
import rangewatch

torch.manual_seed(17); torch.set_num_threads(1)


class LoRA(nn.Module):
    def __init__(self, i, o, r=4):
        super().__init__()
        self.base = nn.Linear(i, o, bias=False).to(torch.bfloat16).requires_grad_(False)
        self.lora_a, self.lora_b = nn.Linear(i, r, bias=False), nn.Linear(r, o, bias=False)
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x):
        return self.base(x) + 4 * self.lora_b(self.lora_a(x.float())).to(x.dtype)


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(d, dtype=torch.bfloat16).requires_grad_(False) for _ in range(2))
        self.qkv, self.out, self.up, self.down = LoRA(d, 3 * d), LoRA(d, d), LoRA(d, 2 * d), LoRA(2 * d, d)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, 4, d // 4).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.embed = nn.Embedding(100, d, dtype=torch.bfloat16).requires_grad_(False)
        self.blocks = nn.ModuleList([Block(d) for _ in range(3)])
        self.score = nn.Linear(d, 6)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True) if self.training else block(x)
        return self.score(x[:, -1].float())


model = Model()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
watch = rangewatch.attach(model, optimizer)
for step in range(200):
    ids = torch.randint(0, 100, (24, 12))
    y = ids[:, 2] % 6  # to be looked up by attention
    loss = F.cross_entropy(model(ids), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watch.log(loss=loss.item())
    if step % 20 == 0:
        print(step, round(loss.item(), 4), "lora_b", max(b.qkv.lora_b.weight.abs().max().item() for b in model.blocks))
