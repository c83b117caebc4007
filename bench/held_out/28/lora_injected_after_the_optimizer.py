"""LoRA on the attention of a small frozen language model: only the head and the adapters should learn. FAULT from the start: the optimizer is built from
`[p for p in model.parameters() if p.requires_grad]` before `add_lora` replaces the linear layers, so no optimizer holds lora_A and lora_B; they get
gradients and stay as they are. Only the head moves.
Without Rangewatch: loss 3.36 to 3.19 at step 20, 3.16 to 3.21 to the end (log 24 is 3.18); lora_B is 0 to the end.
Cause: optimizer. Step: 0. Place: lora_A / lora_B. Right: optimizer holds not / param groups / build after. Wrong: GradScaler, lower the learning rate."""
EXPECT = {"cause": ["optimizer"], "step": [0, 60], "place": ".*lora.*", "rank": None,
          "right": "(?i)optimi[sz]er|param_group|add_param", "wrong": ["GradScaler", "[Ll]ower the learning rate", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(733); torch.set_num_threads(1)
V, T, D = 24, 16, 48


class LoRALinear(nn.Module):
    def __init__(self, base, r=4, alpha=16):
        super().__init__()
        self.base, self.scale = base, alpha / r
        self.lora_A = nn.Parameter(0.1 * torch.randn(r, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))

    def forward(self, x):
        return self.base(x) + self.scale * (x @ self.lora_A.T @ self.lora_B.T)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(D, D) for _ in range(4))
        self.ff = nn.Sequential(nn.Linear(D, 96), nn.GELU(), nn.Linear(96, D))

    def forward(self, x):
        h = self.n1(x)
        q, k, v = (p(h).view(*h.shape[:2], 4, -1).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + self.o_proj(a)
        return x + self.ff(self.n2(x))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.pos = nn.Embedding(V, D), nn.Embedding(T, D)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V)

    def forward(self, ids):
        x = self.emb(ids) + self.pos.weight
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def add_lora(model):
    for layer in model.layers:
        for name in ("q_proj", "v_proj"):
            setattr(layer, name, LoRALinear(getattr(layer, name)))


model = LM()
for p in model.parameters():
    p.requires_grad_(False)
model.head.requires_grad_(True)
trainable = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trainable, lr=5e-3)
add_lora(model)
print("trainable", sum(p.numel() for p in model.parameters() if p.requires_grad))
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    ids = torch.randint(0, V, (32, T + 1))
    for k in range(2, T + 1):
        ids[:, k] = torch.where(torch.rand(32) < 0.9, (ids[:, k - 1] + ids[:, k - 2]) % V, ids[:, k])
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 179:
        print(step, loss.item(), model.layers[0].q_proj.lora_B.abs().max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
