"""LoRA by hand on a frozen decoder, blocks under reentrant gradient checkpointing. FAULT from step 0: the embedding is frozen, so what goes
into the first checkpoint needs no gradient and the reentrant backward never comes into it: the adapters of blocks.0 have no gradient and
never move, nor those of the other blocks; only the head trains. Report: locuslab/open-unlearning#178, cloneofsimo/lora#26, huggingface/peft#1142.
Cause: optimizer, or none named; place a block's adapter. Right: gradient / checkpoint / requires_grad. Wrong: learning rate, mask, bf16."""
EXPECT = {"cause": ["optimizer", "(none)"], "step": None, "place": r"blocks\.\d.*(lora|\.a|\.b|adapter).*|blocks\.\d.*", "rank": None, "least": "info",
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "bfloat16"], "right": "gradient|checkpoint|requires_grad|backward|graph"}
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)
D = 48

class Lora(nn.Module):
    def __init__(self, base, r=4):
        super().__init__()
        self.base = base
        self.lora_a, self.lora_b = nn.Linear(base.in_features, r, bias=False), nn.Linear(r, base.out_features, bias=False)
        nn.init.zeros_(self.lora_b.weight)
        base.requires_grad_(False)
    def forward(self, x):
        return self.base(x) + 4 * self.lora_b(self.lora_a(x))

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(D).requires_grad_(False), nn.LayerNorm(D).requires_grad_(False)
        self.qkv, self.proj, self.up, self.down = (Lora(nn.Linear(i, o)) for i, o in ((D, 3 * D), (D, D), (D, 2 * D), (2 * D, D)))
    def forward(self, x):
        q, k, v = (e.unflatten(-1, (4, -1)).transpose(1, 2) for e in self.qkv(self.ln1(x)).chunk(3, -1))
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.ln2(x))))

class Model(nn.Module):
    def __init__(self, v=40):
        super().__init__()
        self.tok = nn.Embedding(v, D).requires_grad_(False)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(D, v)
    def forward(self, ids):
        x = self.tok(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True)
        return self.head(x)

net = Model()
opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 2e-3)
watch = rangewatch.attach(net, opt)
for step in range(250):
    ids = torch.randint(0, 40, (16, 14))
    labels = torch.cat([ids[:, :2], ids[:, :-2]], 1)  # the token two before: nothing that a head alone can do
    loss = F.cross_entropy(net(ids).flatten(0, 1), labels.flatten())
    opt.zero_grad(); loss.backward(); opt.step()
    watch.log(loss=loss.item())
    if step % 25 == 0:
        print(step, loss.item(), net.blocks[1].qkv.lora_b.weight.abs().max().item())
